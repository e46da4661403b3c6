"""Compare the inference speed of the biLM with AllenNLP's, on the same sentences and weights.

    python benchmarks/inference.py SENTENCES --work FOLDER [--peer-python PYTHON --peer-script SCRIPT]
        [--sizes small,medium,original] [--batches 1,16,64] [--lines 3000] [--rounds 3] [--threads N]
    python benchmarks/inference.py --report --work FOLDER [--figure speed.svg]

SENTENCES is a file with one tokenized sentence per line. Its first 3,000 sentences are sorted by length and grouped
into batches; some of these, evenly spaced, are timed, so that lengths and words vary as in the text. FOLDER stores the
models (random weights of the published sizes) and the times of all runs so far (``times.json``). ``--report`` prints
the times as a Markdown table and draws the figure.

SCRIPT runs AllenNLP's ``_ElmoBiLm`` with the arguments ``run OPTIONS WEIGHTS SENTENCES BATCH_SIZE --order length
--state reset --repeat N --threads N`` and prints one line of JSON with ``seconds.all_runs_total``.

Each round times every backend once, AllenNLP last; the table shows medians over rounds. The same work is timed on both
sides: converting characters to ids, running the network from a zero state, and making one array per sentence. No token
is cached between batches. The column "in matrix products" is the time of the bare matrix products of the LSTMs, the
highway layers and the projection, on the same shapes, as a fraction of the total time. It is empty for the kernels in
lower precision, whose products would take longer alone than inside the layer. Where
products are small, the calls from Python cost as much as the rest of the network, and the fraction can exceed 100 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, cast

import torch
from pages import LINES, PAGE, save_figure, styled_figure
from torch import nn

from elmokit import Elmo, open_model, save_model
from elmokit.engine import compiler
from elmokit.engine.architecture import PRESETS
from elmokit.engine.library import Library
from elmokit.engine.precision import VARIABLE, BackendRequest
from elmokit.engine.softmax import Matrix
from elmokit.network.bilm import BiLM
from elmokit.network.lstm_module import LSTMStack, ProjectedLSTM
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.text_files import read_lines
from elmokit.text.batching import pad_batch
from elmokit.text.tokenize import split_tokens

REQUESTS: tuple[BackendRequest, ...] = ("reference", "float32", "bfloat16", "int8")
CHUNK_ROWS = 256  # rows whose input products are computed together, as in lstm.c
PEER = "AllenNLP"
N_BATCHES = {1: 16, 16: 8, 64: 4}
Sentences = list[list[str]]
Product = Callable[[torch.Tensor], object]


def read_sentences(source: str, n_lines: int) -> Sentences:
    """Read the first sentences of a file, the longest first."""
    sentences = (tokens for line in read_lines(source) if (tokens := split_tokens(line)))
    return sorted(islice(sentences, n_lines), key=len, reverse=True)


def make_batches(sentences: Sentences, size: int) -> list[Sentences]:
    """Make batches of sentences of similar lengths, evenly spaced over all lengths.

    If there are too few sentences, they are repeated.
    """
    n_batches = N_BATCHES.get(size, 4)
    if len(sentences) < n_batches * size:
        sentences = sorted(islice(cycle(sentences), n_batches * size), key=len, reverse=True)
    n_available = len(sentences) // size
    starts = [size * (n_available * (2 * batch + 1) // (2 * n_batches)) for batch in range(n_batches)]
    return [sentences[start : start + size] for start in starts]


def embed_batches(elmo: Elmo, batches: list[Sentences]) -> None:
    """Embed batches: the work that is timed."""
    for batch in batches:
        elmo.embed(batch, batch_tokens=2**30)


def bare_products(bilm: BiLM, batches: list[Sentences], library: Library) -> Callable[[], None]:
    """Return a function that runs the matrix products of embedding the batches, and nothing else."""
    products: list[Callable[[], object]] = []

    def product(weight: torch.Tensor) -> Product:
        matrix = Matrix(weight.detach().numpy(), "float32", library)
        return lambda rows: matrix(rows.numpy(), torch.get_num_threads())

    layers: list[tuple[Product, Product, Product, ProjectedLSTM]] = []
    for stack in bilm.directions:
        for layer in cast(LSTMStack, stack).layers:
            assert isinstance(layer, ProjectedLSTM)
            assert layer.projection is not None
            from_input, from_state = layer.weight.split([layer.input_dim, layer.projection_dim], dim=1)
            layers.append((*(product(w.contiguous()) for w in (from_input, from_state, layer.projection)), layer))
    linears = [module for module in bilm.token_layer.modules() if isinstance(module, nn.Linear)]
    token_products = [(product(linear.weight), linear.in_features) for linear in linears]
    for batch in batches:
        padded = pad_batch(batch)
        n_words, lengths = len(padded.words), padded.mask.sum(axis=1)
        steps = [int((lengths > step).sum()) for step in range(int(lengths.max()))]
        for packed, width in token_products:
            products.append(partial(packed, torch.randn(n_words, width)))
        for from_input, from_state, project, layer in layers:
            chunk = max(1, min(CHUNK_ROWS, sum(steps)))
            wide = torch.randn(chunk, layer.input_dim)
            for first in range(0, sum(steps), chunk):
                products.append(partial(from_input, wide[: min(chunk, sum(steps) - first)]))
            hidden, squashed = torch.randn(steps[0], layer.projection_dim), torch.randn(steps[0], layer.hidden_dim)
            for n in steps:
                products.append(partial(from_state, hidden[:n]))
                products.append(partial(project, squashed[:n]))

    def run() -> None:
        for each in products:
            each()

    return run


def seconds(call: Callable[[], None]) -> float:
    """Measure the wall-clock time of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def model_at(work: Path, size: str) -> tuple[Path, Path]:
    """Write a random model of a published size, if it does not exist. Return its options and weights files."""
    folder = work / size
    options, weights = folder / "elmo_options.json", folder / "elmo_weights.hdf5"
    if not weights.exists():
        bilm = BiLM(PRESETS[size])
        bilm.reset_parameters(0)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(PretrainedBiLM.from_modules(bilm), weights)
    return options, weights


def peer_seconds(args: argparse.Namespace, size: str, batches: list[Sentences]) -> float:
    """Measure AllenNLP's best of ``--peer-repeat`` passes: the first one also fills the caches of its libraries."""
    options, weights = model_at(args.work, size)
    text = args.work / "sentences.txt"
    text.write_text("".join(" ".join(sentence) + "\n" for batch in batches for sentence in batch), encoding="utf-8")
    command = [args.peer_python, args.peer_script, "run", options, weights, text, len(batches[0])]
    command += ["--order", "length", "--state", "reset", "--threads", args.threads, "--repeat", args.peer_repeat]
    printed = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout
    return float(min(json.loads(printed.splitlines()[-1])["seconds"]["all_runs_total"]))


def measure(args: argparse.Namespace) -> None:
    """Measure everything and append the times to ``times.json``."""
    torch.set_num_threads(args.threads)
    file = args.work / "times.json"
    runs: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    sentences = read_sentences(args.sentences, args.lines)
    for size in args.sizes.split(","):
        _, weights = model_at(args.work, size)
        bilm = open_model(weights).build_bilm()
        elmos: dict[str, Elmo] = {}
        for request in REQUESTS:
            elmos[request] = Elmo(open_model(weights), start="zero", token_cache_mib=0)
        for n_rows in map(int, args.batches.split(",")):
            batches = make_batches(sentences, n_rows)
            times: dict[str, list[float]] = {}
            library, selected = compiler.load_library(), {}
            products = {} if library is None else {"float32": bare_products(bilm, batches, library)}
            for round_ in range(args.rounds + 1):
                for request in REQUESTS:
                    os.environ[VARIABLE] = request
                    if round_ == 0:
                        embed_batches(elmos[request], batches[-1:])  # packs the weights
                        selected[request] = elmos[request].computer.network.computation().kernels[1]
                        continue
                    times.setdefault(request, []).append(seconds(partial(embed_batches, elmos[request], batches)))
                    if request in products:
                        times.setdefault(f"{request} products", []).append(seconds(products[request]))
                if args.peer_python and round_:
                    times.setdefault(PEER, []).append(peer_seconds(args, size, batches))
            n_tokens = sum(len(sentence) for batch in batches for sentence in batch)
            n_distinct = sum(len({token for sentence in batch for token in sentence}) for batch in batches)
            run = {"size": size, "rows": n_rows, "tokens": n_tokens, "distinct": n_distinct, "batches": len(batches)}
            runs.append({**run, "backends": selected, "seconds": times})
            file.write_text(json.dumps(runs, indent=1))
            print("\n".join(table_rows(runs[-1])), flush=True)


def table_rows(run: dict[str, Any]) -> list[str]:
    """Format a run as rows of the table."""
    times = {name: statistics.median(each) for name, each in run["seconds"].items()}
    rows = []
    for name in (PEER, *REQUESTS):
        if name not in times:
            continue
        speed = run["tokens"] / times[name]
        ratio = f"{times[PEER] / times[name]:.1f}" if PEER in times else ""
        products = times.get(f"{name} products")
        fraction = f"{products / times[name]:.0%}" if products else ""
        latency = f"{1000 * times[name] / run['batches']:,.0f}"
        spread = max(run["seconds"][name]) / min(run["seconds"][name]) - 1
        cells = (
            run["size"],
            run["rows"],
            name,
            run["backends"].get(name, ""),
            f"{speed:,.0f}",
            latency,
            ratio,
            fraction,
        )
        rows.append(f"| {' | '.join(map(str, cells))} | {spread:.0%} |")
    return rows


def report(args: argparse.Namespace) -> None:
    """Print the table, and draw the figure, of the last run of each size and batch size."""
    all_runs = json.loads((args.work / "times.json").read_text())
    last = {(run["size"], run["rows"]): run for run in all_runs}
    sizes = [size for size in ("small", "medium", "original") if any(key[0] == size for key in last)]
    names = ("size", "batch size", "requested", "backend", "tokens/s", "ms per batch", "speed / AllenNLP")
    print(f"| {' | '.join((*names, 'in matrix products', 'spread'))} |")
    print("|---|---|---|---|---|---|---|---|---|")
    for key in sorted(last, key=lambda key: (sizes.index(key[0]), key[1])):
        print("\n".join(table_rows(last[key])))
    print()
    for n_rows, run in sorted({run["rows"]: run for run in last.values()}.items()):
        shares = f"{run['tokens']:,} tokens, {run['distinct'] / run['tokens']:.0%} of them distinct in their batch"
        print(f"Batch size {n_rows}: {run['batches']} batches, {shares}.")
    if not args.figure:
        return
    with styled_figure(width=PAGE, height=2.4) as figure:
        for axes, size in zip(figure.subplots(1, len(sizes), squeeze=False, sharey=True)[0], sizes, strict=True):
            runs = [last[key] for key in sorted(last) if key[0] == size]
            for style, name in zip(itertools.cycle(LINES), (PEER, *REQUESTS)):
                speeds = [
                    (r["rows"], r["tokens"] / statistics.median(r["seconds"][name]))
                    for r in runs
                    if name in r["seconds"]
                ]
                if speeds:
                    axes.plot(*zip(*speeds, strict=True), label=name, **style)
            axes.set(title=size, xscale="log", yscale="log", xlabel="batch size")
            axes.set_xticks([1, 16, 64], ["1", "16", "64"])
            axes.set_xticks([], minor=True)
        first = figure.axes[0]
        first.set_ylabel("tokens/s")
        figure.legend(*first.get_legend_handles_labels(), loc="outside upper center", ncols=len(REQUESTS) + 1)
        save_figure(figure, Path(args.figure))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or report what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentences", nargs="?", help="tokenized text, one sentence per line")
    parser.add_argument("--work", type=Path, required=True, help="directory for models and times")
    parser.add_argument("--peer-python", help="Python interpreter with AllenNLP")
    parser.add_argument("--peer-script", help="script that runs AllenNLP")
    parser.add_argument("--peer-repeat", type=int, default=2, help="passes of the script per round  [default: 2]")
    parser.add_argument("--sizes", default="small,medium,original", help="presets, separated by commas  [default: all]")
    parser.add_argument("--batches", default="1,16,64", help="batch sizes, separated by commas  [default: 1,16,64]")
    parser.add_argument("--lines", type=int, default=3000, help="lines of the text to use  [default: 3000]")
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements  [default: 3]")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads  [default: all cores]")
    parser.add_argument("--report", action="store_true", help="print the table instead of measuring")
    parser.add_argument("--figure", help="the figure, such as speed.svg")
    args = parser.parse_args(arguments)
    if args.report:
        report(args)
    elif args.sentences is None:
        parser.error("no SENTENCES given. Give a file of sentences, or --report.")
    else:
        measure(args)


if __name__ == "__main__":
    main()
