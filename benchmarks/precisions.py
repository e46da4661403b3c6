"""Measure the speed of the LSTM layers and of the token layer in each precision and instruction set of this machine.

    python benchmarks/precisions.py [--sizes original] [--rows 1,4,16,64] [--tokens 16,64,512] [--instructions amx,avx2]
                                    [--rounds 3]

The first table has the speed of the four LSTM layers alone in tokens/s, the second one the time of the char CNN alone
in microseconds for each distinct token, both on one thread and with random weights of a published size. Ratios are to
float32 on the same instruction set. The variants take turns and the fastest round counts; times are those of the
processor, without waiting for other programs. One row is a sentence of 20 tokens. ``--rows 0`` and ``--tokens 0`` leave
a table out.
"""

from __future__ import annotations

import argparse
import random
import string
import time
from collections.abc import Callable
from functools import partial

import torch

from elmokit.bilm import PRESETS, BiLM
from elmokit.nn.char_cnn import CharCNN
from elmokit.nn.kernels import compiler
from elmokit.nn.kernels.instruction_sets import INSTRUCTION_SETS, available_sets
from elmokit.nn.kernels.lstm_inference import LayerWeights, NativeLayer, pack_native_layer, run_native_layer
from elmokit.nn.kernels.native import PRECISIONS, NativeLibrary, Precision
from elmokit.nn.kernels.token_layer import pack_token_layer, run_token_layer, token_layer_precision
from elmokit.text.characters import encode_tokens

Variant = tuple[str, Precision]  # an instruction set and a precision
N_LAYERS = 4
CLIP = 3.0


def random_layers(size: str) -> list[LayerWeights]:
    """Return random weights of the LSTM layers of a preset."""
    torch.manual_seed(0)
    hidden, projected = PRESETS[size].hidden_dim, PRESETS[size].projection_dim
    return [
        LayerWeights(
            torch.randn(4 * hidden, 2 * projected) / 20,
            torch.randn(4 * hidden) / 10,
            torch.randn(projected, hidden) / 20,
            *(CLIP, CLIP),
        )
        for _ in range(N_LAYERS)
    ]


def seconds(library: NativeLibrary, layers: list[NativeLayer], dim: int, n_rows: int, n_steps: int) -> float:
    """Measure the processor's time of running all layers once."""
    inputs, batch_sizes = torch.randn(n_steps * n_rows, dim) / 2, torch.full((n_steps,), n_rows)
    started = time.thread_time()
    for layer in layers:
        hidden, cell = torch.zeros(n_rows, dim), torch.zeros(n_rows, layer.hidden_dim)
        run_native_layer(library, layer, batch_sizes, inputs, hidden, cell)
    return time.thread_time() - started


def fastest(runs: dict[Variant, Callable[[], float]], n_rounds: int) -> dict[Variant, float]:
    """Return the least time of each variant; they take turns."""
    times: dict[Variant, list[float]] = {variant: [] for variant in runs}
    for _ in range(n_rounds + 1):
        for variant, run in runs.items():
            times[variant].append(run())
    return {variant: min(each[1:]) for variant, each in times.items()}  # the first round fills the caches


def print_rows(head: str, best: dict[Variant, float], shown: dict[Variant, str]) -> None:
    """Print a row of the table for each instruction set, from the time of each variant and how it is shown."""
    for name in dict.fromkeys(name for name, _ in best):
        cells = [f"{shown[name, each]} ({best[name, 'float32'] / best[name, each]:.2f}x)" for each in PRECISIONS]
        print(f"| {head} | {name} | {' | '.join(cells)} |", flush=True)


def measure_lstms(size: str, rows: list[int], libraries: dict[str, NativeLibrary], n_rounds: int) -> None:
    """Print the speed of the LSTM layers."""
    weights, dim = random_layers(size), PRESETS[size].projection_dim
    packed: dict[Variant, list[NativeLayer]] = {}
    for name, library in libraries.items():
        for precision in PRECISIONS:
            packed[name, precision] = [pack_native_layer(library, precision, layer, dim) for layer in weights]
    for n_rows in rows:
        n_steps = 20 if n_rows == 1 else 5
        runs = {
            variant: partial(seconds, libraries[variant[0]], layers, dim, n_rows, n_steps)
            for variant, layers in packed.items()
        }
        n_tokens = n_rows * n_steps
        best = fastest(runs, n_rounds)
        print_rows(f"{size} | {n_rows}", best, {each: f"{n_tokens / best[each]:,.0f}" for each in best})


def measure_token_layer(size: str, counts: list[int], libraries: dict[str, NativeLibrary], n_rounds: int) -> None:
    """Print the speed of the char CNN."""
    bilm = BiLM(PRESETS[size])
    bilm.reset_parameters(seed=0)
    assert isinstance(bilm.token_layer, CharCNN)
    weights = bilm.token_layer.weights()
    rng = random.Random(0)
    # Text has words of about seven letters, in batches of distinct tokens.
    words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 12))) for _ in range(max(counts))]

    def run(library: NativeLibrary, precision: Precision, n_tokens: int) -> Callable[[], float]:
        layer = pack_token_layer(library, token_layer_precision(library, precision), weights)
        assert layer is not None
        ids = torch.from_numpy(encode_tokens(words[:n_tokens], 50))

        def timed() -> float:
            started = time.thread_time()
            run_token_layer(library, layer, ids)
            return time.thread_time() - started

        return timed

    for n_tokens in counts:
        runs = {
            (name, each): run(library, each, n_tokens) for name, library in libraries.items() for each in PRECISIONS
        }
        best = fastest(runs, n_rounds)
        print_rows(f"{size} | {n_tokens}", best, {each: f"{1e6 * best[each] / n_tokens:,.1f}" for each in best})


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="original", help="presets, separated by commas  [default: original]")
    parser.add_argument("--rows", default="1,4,16,64", help="rows, separated by commas  [default: 1,4,16,64]")
    parser.add_argument(
        "--tokens", default="16,64,512", help="distinct tokens, separated by commas  [default: 16,64,512]"
    )
    parser.add_argument("--instructions", help="instruction sets, separated by commas  [default: all available]")
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements  [default: 3]")
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = args.instructions.split(",") if args.instructions else available_sets()
    libraries = {name: compiler.build(name, INSTRUCTION_SETS[name]) for name in names}
    tables = (("rows", args.rows, measure_lstms), ("distinct tokens", args.tokens, measure_token_layer))
    for what, counts, measure in tables:
        if counts == "0":
            continue
        columns = ["size", what, "instructions", *PRECISIONS]
        print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        for size in args.sizes.split(","):
            measure(size, [int(count) for count in counts.split(",")], libraries, args.rounds)
        print()


if __name__ == "__main__":
    main()
