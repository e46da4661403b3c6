"""Compare the speed of ``elmokit embed`` with that of the network alone.

    python benchmarks/embed_end_to_end.py TEXT [--model MODEL] [--lines 20000] [--rounds 3] [--dtype float16]

The difference is the cost of reading, batching, converting and writing. For "network alone", the sentences are batched
in memory, and all layers of each batch are computed and discarded. "End to end" is ``embed_file``, from the text file
to the finished HDF5 file, flushed to disk. Both run in one process, one after the other in each round, each with an
empty token cache. The script prints a Markdown table of medians.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path

from elmokit import Elmo, Layout, open_model
from elmokit.embedding.corpus import embed_file
from elmokit.engine.threads import n_threads, set_threads
from elmokit.storage.text_files import read_lines
from elmokit.text.batching import READ_AHEAD_BATCHES, plan_batches, read_ahead
from elmokit.text.tokenize import split_tokens

BATCH_TOKENS = 2048


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="tokenized text, one sentence per line")
    parser.add_argument("--model", help="path, URL or published name  [default: en-mini]")
    parser.add_argument("--lines", type=int, default=20_000, help="number of lines to embed  [default: 20000]")
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements  [default: 3]")
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float16", help="type of the stored numbers")
    parser.add_argument(
        "--threads", type=int, help="CPU threads; use 1 on a busy machine, as waiting threads use CPU time"
    )
    parser.add_argument("--folder", type=Path, help="directory for temporary files  [default: the system's]")
    arguments = parser.parse_args()
    if arguments.threads:
        set_threads(arguments.threads)
    model = open_model(arguments.model)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        text = Path(folder) / "text.txt"
        lines = list(islice(read_lines(arguments.text), arguments.lines))
        text.write_text("\n".join(lines) + "\n", encoding="utf-8")
        batches = _batches([split_tokens(line) for line in lines])
        n_tokens = sum(len(sentence) for batch in batches for sentence in batch)
        Elmo(model).embed([["warm", "up"]] * 8)
        network_times: list[tuple[float, float]] = []
        total_times: list[tuple[float, float]] = []
        output = Path(folder) / "vectors.hdf5"
        for _ in range(arguments.rounds):
            elmo = Elmo(model)
            started = _clocks()
            for batch in batches:
                elmo.embed(batch, batch_tokens=2**30)
            network_times.append(_since(started))
            elmo = Elmo(model)
            started = _clocks()
            embed_file(elmo, text, output, Layout(dtype=arguments.dtype), overwrite=True)
            total_times.append(_since(started))
        n_bytes = output.stat().st_size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{len(lines):,} lines, {n_tokens:,} tokens; {n_bytes / 1e6:,.0f} MB; peak memory {peak:,.0f} MiB", end="; ")
    print(f"threads {n_threads()}; rounds {arguments.rounds}\n")
    print("| run | seconds, median | seconds, range | tokens/s | CPU seconds, median |")
    print("|---|---|---|---|---|")
    for name, pairs in (("network alone", network_times), ("end to end", total_times)):
        seconds = [wall for wall, _ in pairs]
        middle = statistics.median(seconds)
        line = f"| {name} | {middle:.1f} | {min(seconds):.1f} to {max(seconds):.1f} | {n_tokens / middle:,.0f} "
        print(line + f"| {statistics.median(cpu for _, cpu in pairs):.2f} |")
    ratios = [
        [one / two for one, two in zip(*round_, strict=True)] for round_ in zip(network_times, total_times, strict=True)
    ]
    wall_ratio, cpu_ratio = (statistics.median(column) for column in zip(*ratios, strict=True))
    print(f"\nEnd to end reaches {wall_ratio:.0%} of the speed of the network alone in wall-clock time")
    print(f"and {cpu_ratio:.0%} in CPU time (medians of the ratios within each round).")


def _clocks() -> tuple[float, float]:
    """Read the wall clock and the CPU time of all threads, in seconds."""
    return time.perf_counter(), time.process_time()


def _since(started: tuple[float, float]) -> tuple[float, float]:
    wall, cpu = _clocks()
    return wall - started[0], cpu - started[1]


def _batches(sentences: list[list[str]]) -> list[list[list[str]]]:
    """Make the batches that ``embed_file`` makes."""
    batches: list[list[list[str]]] = []
    for taken in read_ahead(sentences, max_tokens=READ_AHEAD_BATCHES * BATCH_TOKENS):
        batches += [[taken[row] for row in batch] for batch in plan_batches(list(map(len, taken)), BATCH_TOKENS)]
    return batches


if __name__ == "__main__":
    main()
