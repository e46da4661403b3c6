"""Speed of the biLM beside AllenNLP's own, on the same sentences and weights, and the share of it that products take.

    python benchmarks/inference.py SENTENCES --work FOLDER [--peer-python PYTHON --peer-script SCRIPT]
        [--sizes small,medium,original] [--batches 1,16,64] [--rounds 3] [--threads N]
    python benchmarks/inference.py --report --work FOLDER [--figure speed]

SENTENCES is a file of one tokenised sentence per line. FOLDER keeps the models (random weights of the published sizes)
and, in ``times.json``, the times, one run after the other; ``--report`` prints them as Markdown and draws the figure.
SCRIPT runs AllenNLP's ``_ElmoBiLm`` with the arguments ``run OPTIONS WEIGHTS SENTENCES BATCH_SIZE --order length
--state reset --repeat N --threads N`` and prints one JSON line with ``seconds.all_runs_total``.

Each round times every backend once, AllenNLP last; a table's numbers are medians over rounds. What is timed is the same
on both sides: characters to ids, the network from a zero state, arrays per sentence. No token is remembered from one
batch to the next. ``products`` are the matrix products of the LSTMs, highways and projection alone, on the same shapes.
"""

from __future__ import annotations

import argparse
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
from torch import nn

from elmokit import Elmo, save_model
from elmokit.bilm import PRESETS, BiLM
from elmokit.io.figures import LINES, PAGE, save_figure, styled_figure
from elmokit.io.text_files import read_lines, split_tokens
from elmokit.nn.kernels import backends, torch_products
from elmokit.nn.kernels.lstm_inference import MAX_CHUNK_ROWS
from elmokit.nn.kernels.native import MAX_CHUNK_ROWS as NATIVE_MAX_CHUNK_ROWS
from elmokit.nn.kernels.packed_linear import pack_linear
from elmokit.nn.lstm import LSTMStack, ProjectedLSTM
from elmokit.text.batching import pad_batch
from elmokit.weights.model import PretrainedBiLM
from elmokit.weights.open import open_model

REQUESTS: tuple[backends.BackendRequest, ...] = ("reference", "float32", "bfloat16", "int8")
PEER = "AllenNLP"
TYPICAL_LENGTH = 20  # of the sentences that are read one at a time
N_BATCHES = {1: 4, 16: 2, 64: 2}
Sentences = list[list[str]]


def batches_of(source: str, size: int) -> list[Sentences]:
    """The file's first sentences, similar lengths together (again from the first, where it is short).

    For a batch of one, those nearest to a typical length.
    """
    sentences = [tokens for line in read_lines(source) if (tokens := split_tokens(line))]
    if size == 1:
        sentences.sort(key=lambda sentence: abs(len(sentence) - TYPICAL_LENGTH))
    n = N_BATCHES.get(size, 2) * size
    chosen = sorted(islice(cycle(sentences), n), key=lambda sentence: -len(sentence))
    return [chosen[start : start + size] for start in range(0, n, size)]


def read(elmo: Elmo, batches: list[Sentences]) -> None:
    """What is timed."""
    for batch in batches:
        elmo.embed_batch(batch, elmo.start_state(len(batch)))


def bare_products(elmo: Elmo, batches: list[Sentences], backend: backends.Backend) -> Callable[[], None]:
    """The matrix products of reading the batches, and nothing else."""
    runs: list[Callable[[], object]] = []

    def product(weight: torch.Tensor) -> torch_products.Product:
        if backend in ("native", "reference"):
            name: backends.Backend = "native" if backend == "native" else "torch"
            return pack_linear(name, weight, weight.new_zeros(len(weight)))
        return torch_products.pack(backend, weight)

    layers: list[tuple[torch_products.Product, torch_products.Product, torch_products.Product, ProjectedLSTM]] = []
    for stack in elmo.bilm.directions:
        for layer in cast(LSTMStack, stack).layers:
            assert isinstance(layer, ProjectedLSTM)
            assert layer.projection is not None
            from_input, from_state = layer.weight.split([layer.input_dim, layer.projection_dim], dim=1)
            layers.append((*(product(w.contiguous()) for w in (from_input, from_state, layer.projection)), layer))
    exact = backends.select_backend(torch.device("cpu"), "reference" if backend == "reference" else "float32")
    linears = [module for module in elmo.bilm.token_layer.modules() if isinstance(module, nn.Linear)]
    token_products = [
        (pack_linear("torch" if exact == "reference" else exact, linear.weight, linear.bias), linear.in_features)
        for linear in linears
    ]
    for batch in batches:
        padded = pad_batch(batch)
        n_words, lengths = len(padded.words), padded.mask.sum(axis=1)
        steps = [int((lengths > step).sum()) for step in range(int(lengths.max()))]
        for packed, width in token_products:
            runs.append(partial(packed, torch.randn(n_words, width)))
        for from_input, from_state, project, layer in layers:
            max_rows = NATIVE_MAX_CHUNK_ROWS if backend == "native" else MAX_CHUNK_ROWS
            chunk = max(1, min(max_rows, sum(steps)))
            wide = torch.randn(chunk, layer.input_dim)
            for first in range(0, sum(steps), chunk):
                runs.append(partial(from_input, wide[: min(chunk, sum(steps) - first)]))
            hidden, squashed = torch.randn(steps[0], layer.projection_dim), torch.randn(steps[0], layer.hidden_dim)
            for n in steps:
                runs.append(partial(from_state, hidden[:n]))
                runs.append(partial(project, squashed[:n]))

    def run() -> None:
        for each in runs:
            each()

    return run


def seconds(call: Callable[[], None]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def model_at(work: Path, size: str) -> tuple[Path, Path]:
    """Options and weights of a random model of a published size, written once for both programs."""
    folder = work / size
    options, weights = folder / "elmo_options.json", folder / "elmo_weights.hdf5"
    if not weights.exists():
        bilm = BiLM(PRESETS[size])
        bilm.reset_parameters(0)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(PretrainedBiLM(bilm, "elmokit"), weights)
    return options, weights


def peer_seconds(args: argparse.Namespace, size: str, batches: list[Sentences]) -> float:
    """AllenNLP's best of two passes over the batches: its first one also fills the caches of its libraries."""
    options, weights = model_at(args.work, size)
    text = args.work / "sentences.txt"
    text.write_text("".join(" ".join(sentence) + "\n" for batch in batches for sentence in batch), encoding="utf-8")
    command = [args.peer_python, args.peer_script, "run", options, weights, text, len(batches[0])]
    command += ["--order", "length", "--state", "reset", "--threads", args.threads, "--repeat", args.peer_repeat]
    printed = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout
    return float(min(json.loads(printed.splitlines()[-1])["seconds"]["all_runs_total"]))


def measure(args: argparse.Namespace) -> None:
    """All times of a run, added to ``times.json``."""
    torch.set_num_threads(args.threads)
    file = args.work / "times.json"
    kept: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    for size in args.sizes.split(","):
        _, weights = model_at(args.work, size)
        elmos: dict[str, Elmo] = {}
        for request in REQUESTS:
            elmos[request] = Elmo(open_model(weights), start="zero", token_cache_mib=0)
        for n_rows in map(int, args.batches.split(",")):
            batches = batches_of(args.sentences, n_rows)
            times: dict[str, list[float]] = {}
            selected = {request: backends.select_backend(torch.device("cpu"), request) for request in REQUESTS}
            bare = {
                request: bare_products(elmos[request], batches, selected[request])
                for request in REQUESTS
                if request != "reference"
            }
            for round_ in range(args.rounds + 1):
                for request in REQUESTS:
                    os.environ[backends.VARIABLE] = request
                    if round_ == 0:
                        read(elmos[request], batches[-1:])  # packs the weights
                        continue
                    times.setdefault(request, []).append(seconds(partial(read, elmos[request], batches)))
                    if request in bare:
                        times.setdefault(f"{request} products", []).append(seconds(bare[request]))
                if args.peer_python and round_:
                    times.setdefault(PEER, []).append(peer_seconds(args, size, batches))
            n_tokens = sum(len(sentence) for batch in batches for sentence in batch)
            kept.append({"size": size, "rows": n_rows, "tokens": n_tokens, "backends": selected, "seconds": times})
            file.write_text(json.dumps(kept, indent=1))
            print("\n".join(rows_of(kept[-1])), flush=True)


def rows_of(run: dict[str, Any]) -> list[str]:
    """The rows of a run in the table."""
    times = {name: statistics.median(each) for name, each in run["seconds"].items()}
    rows = []
    for name in (PEER, *REQUESTS):
        if name not in times:
            continue
        speed = run["tokens"] / times[name]
        ratio = f"{times[PEER] / times[name]:.1f}" if PEER in times else ""
        bare = times.get(f"{name} products")
        share = f"{bare / times[name]:.0%}" if bare else ""
        latency = f"{1000 * times[name] / N_BATCHES.get(run['rows'], 2):,.0f}"
        spread = max(run["seconds"][name]) / min(run["seconds"][name]) - 1
        cells = (run["size"], run["rows"], name, run["backends"].get(name, ""), f"{speed:,.0f}", latency, ratio, share)
        rows.append(f"| {' | '.join(map(str, cells))} | {spread:.0%} |")
    return rows


def report(args: argparse.Namespace) -> None:
    """The table and the figure of the last run of each size and batch."""
    kept = json.loads((args.work / "times.json").read_text())
    last = {(run["size"], run["rows"]): run for run in kept}
    sizes = [size for size in ("small", "medium", "original") if any(key[0] == size for key in last)]
    names = ("size", "sentences a batch", "requested", "backend", "tokens/s", "ms a batch", "times AllenNLP")
    print(f"| {' | '.join((*names, 'in products', 'spread'))} |")
    print("|---|---|---|---|---|---|---|---|---|")
    for key in sorted(last, key=lambda key: (sizes.index(key[0]), key[1])):
        print("\n".join(rows_of(last[key])))
    if not args.figure:
        return
    with styled_figure(width=PAGE, height=2.4) as figure:
        for axes, size in zip(figure.subplots(1, len(sizes), squeeze=False, sharey=True)[0], sizes, strict=True):
            runs = [last[key] for key in sorted(last) if key[0] == size]
            for look, name in zip(LINES, (PEER, *REQUESTS), strict=False):
                speeds = [
                    (r["rows"], r["tokens"] / statistics.median(r["seconds"][name]))
                    for r in runs
                    if name in r["seconds"]
                ]
                if speeds:
                    axes.plot(*zip(*speeds, strict=True), label=name, **look)
            axes.set(title=size, xscale="log", yscale="log", xlabel="sentences a batch")
            axes.set_xticks([1, 16, 64], ["1", "16", "64"])
            axes.set_xticks([], minor=True)
        first = figure.axes[0]
        first.set_ylabel("tokens/s")
        figure.legend(*first.get_legend_handles_labels(), loc="outside upper center", ncols=len(REQUESTS) + 1)
        save_figure(figure, args.figure, overwrite=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, and measure or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentences", nargs="?")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--peer-python")
    parser.add_argument("--peer-script")
    parser.add_argument("--peer-repeat", type=int, default=2)
    parser.add_argument("--sizes", default="small,medium,original")
    parser.add_argument("--batches", default="1,16,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--figure", help="a path without its suffix")
    args = parser.parse_args(arguments)
    if args.report:
        report(args)
    elif args.sentences is None:
        parser.error("give a file of sentences, or --report")
    else:
        measure(args)


if __name__ == "__main__":
    main()
