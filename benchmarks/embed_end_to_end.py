"""``elmokit embed`` beside the network alone: what reading, batching, converting and writing cost.

    python benchmarks/embed_end_to_end.py TEXT [--model MODEL] [--lines 20000] [--rounds 3] [--dtype float16]

The network alone: the sentences are in memory and batched, and of each batch all layers are computed and dropped. End
to end: ``embed_file`` from the text file to the HDF5 file under its name, brought to the disk. Both in one process, one
after the other in each round, each with a cache of tokens that is empty. Prints a Markdown table of medians.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path

import torch

from elmokit import Elmo
from elmokit.corpus.embed import embed_file
from elmokit.io.text_files import read_lines, split_tokens
from elmokit.text.batching import READ_AHEAD_BATCHES, plan_batches, read_ahead
from elmokit.weights.open import open_model

BATCH_TOKENS = 2048


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float16")
    parser.add_argument("--threads", type=int, help="where the machine is busy, 1: waiting threads use processor time")
    parser.add_argument("--folder", type=Path, help="where to write; removed afterwards")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    model = open_model(arguments.model)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        text = Path(folder) / "text.txt"
        lines = list(islice(read_lines(arguments.text), arguments.lines))
        text.write_text("\n".join(lines) + "\n", encoding="utf-8")
        batches = _batches([split_tokens(line) for line in lines])
        n_tokens = sum(len(sentence) for batch in batches for sentence in batch)
        Elmo(model).embed([["warm", "up"]] * 8)
        alone: list[tuple[float, float]] = []
        whole: list[tuple[float, float]] = []
        output = Path(folder) / "vectors.hdf5"
        for _ in range(arguments.rounds):
            elmo = Elmo(model)
            started = _clocks()
            with torch.no_grad():
                for batch in batches:
                    elmo.model.contextualize(batch, elmo.start_state(len(batch)), elmo.token_cache)
            alone.append(_since(started))
            elmo = Elmo(model)
            started = _clocks()
            embed_file(elmo, text, output, dtype=arguments.dtype, overwrite=True)
            whole.append(_since(started))
        n_bytes = output.stat().st_size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{len(lines):,} lines, {n_tokens:,} tokens; {n_bytes / 1e6:,.0f} MB; peak memory {peak:,.0f} MiB", end="; ")
    print(f"threads {torch.get_num_threads()}; rounds {arguments.rounds}\n")
    print("| what | seconds, median | of all | tokens/s | processor seconds, median |")
    print("|---|---|---|---|---|")
    for what, pairs in (("network alone", alone), ("end to end", whole)):
        seconds = [wall for wall, _ in pairs]
        middle = statistics.median(seconds)
        line = f"| {what} | {middle:.1f} | {min(seconds):.1f} to {max(seconds):.1f} | {n_tokens / middle:,.0f} "
        print(line + f"| {statistics.median(processor for _, processor in pairs):.2f} |")
    shares = [[one / two for one, two in zip(*round_, strict=True)] for round_ in zip(alone, whole, strict=True)]
    by_wall, by_processor = (statistics.median(column) for column in zip(*shares, strict=True))
    print(f"\nEnd to end keeps {by_wall:.0%} of the network's speed by the clock, {by_processor:.0%} by processor time")
    print("(medians of the rounds' ratios).")


def _clocks() -> tuple[float, float]:
    """Seconds by the clock, and of the processor for all threads."""
    return time.perf_counter(), time.process_time()


def _since(started: tuple[float, float]) -> tuple[float, float]:
    wall, processor = _clocks()
    return wall - started[0], processor - started[1]


def _batches(sentences: list[list[str]]) -> list[list[list[str]]]:
    """The batches that ``embed_file`` makes."""
    batches: list[list[list[str]]] = []
    for taken in read_ahead(sentences, max_tokens=READ_AHEAD_BATCHES * BATCH_TOKENS):
        batches += [[taken[row] for row in batch] for batch in plan_batches(list(map(len, taken)), BATCH_TOKENS)]
    return batches


if __name__ == "__main__":
    main()
