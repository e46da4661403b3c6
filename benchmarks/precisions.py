"""Measure the speed of the LSTM layers and of the token layer in each precision and instruction set of this machine.

    python benchmarks/precisions.py [--sizes mini,original] [--rows 1,4,16,64] [--tokens 16,64,512]
                                    [--instructions amx,avx2] [--rounds 5]

The first table has the speed of the four LSTM layers alone in tokens/s, the second one the time of the char CNN alone
in microseconds for each distinct token, both on one thread and with random weights of a published size. Ratios are to
float32 on the same instruction set; ``float32`` in place of a number says that float32 computes these layers, because
the precision would be slower. The precisions take turns and the fastest round counts; times are those of the processor,
without waiting for other programs. One row is a sentence of 20 tokens. ``--rows 0`` and ``--tokens 0`` leave a table
out. The last line of a table names what was slower than float32.
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

N_LAYERS = 4
CLIP = 3.0
SIZES = "mini,small,medium,original"  # `en-mini` has the size mini


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


def seconds(layers: list[NativeLayer], dim: int, n_rows: int, n_steps: int) -> float:
    """Measure the processor's time of running all layers once."""
    inputs, batch_sizes = torch.randn(n_steps * n_rows, dim) / 2, torch.full((n_steps,), n_rows)
    states = [(torch.zeros(n_rows, dim), torch.zeros(n_rows, layer.hidden_dim)) for layer in layers]
    started = time.thread_time()
    for layer, (hidden, cell) in zip(layers, states, strict=True):
        run_native_layer(layer, batch_sizes, inputs, hidden, cell)
    return time.thread_time() - started


def fastest(runs: dict[Precision, Callable[[], float]], n_rounds: int) -> dict[Precision, float]:
    """Return the least time of each precision; they take turns."""
    times: dict[Precision, list[float]] = {precision: [] for precision in runs}
    for _ in range(n_rounds + 1):
        for precision, run in runs.items():
            times[precision].append(run())
    # The first round fills the caches, and widens weights where the number of rows asks for it.
    return {precision: min(each[1:]) for precision, each in times.items()}


def print_row(head: str, best: dict[Precision, float], shown: dict[Precision, str]) -> list[str]:
    """Print a row of the table, from the time in each precision and how it is shown; return what was slower."""
    ratios = {each: best["float32"] / best[each] for each in best}
    cells = [f"{shown[each]} ({ratios[each]:.2f}x)" if each in best else "float32" for each in PRECISIONS]
    print(f"| {head} | {' | '.join(cells)} |", flush=True)
    return [f"{head} | {each} ({ratio:.2f}x)" for each, ratio in ratios.items() if ratio < 1]


def measure_lstms(size: str, rows: list[int], libraries: dict[str, NativeLibrary], n_rounds: int) -> list[str]:
    """Print the speed of the LSTM layers; return what was slower than float32."""
    weights, dim = random_layers(size), PRESETS[size].projection_dim
    slower = []
    for name, library in libraries.items():
        packed = {each: [pack_native_layer(library, each, layer, dim) for layer in weights] for each in PRECISIONS}
        for n_rows in rows:
            n_steps = 20 if n_rows == 1 else max(6, 64 // n_rows)  # so that a run is long enough to be measured
            runs: dict[Precision, Callable[[], float]] = {
                each: partial(seconds, layers, dim, n_rows, n_steps)
                for each, layers in packed.items()
                if each == "float32" or layers[0].precision != "float32"
            }
            best = fastest(runs, n_rounds)
            shown = {each: f"{n_rows * n_steps / best[each]:,.0f}" for each in best}
            slower += print_row(f"{size} | {n_rows} | {name}", best, shown)
    return slower


def measure_token_layer(size: str, counts: list[int], libraries: dict[str, NativeLibrary], n_rounds: int) -> list[str]:
    """Print the speed of the char CNN; return what was slower than float32."""
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

    slower = []
    for name, library in libraries.items():
        for n_tokens in counts:
            runs = {
                each: run(library, each, n_tokens)
                for each in PRECISIONS
                if each == "float32" or token_layer_precision(library, each) != "float32"
            }
            best = fastest(runs, n_rounds)
            shown = {each: f"{1e6 * best[each] / n_tokens:,.1f}" for each in best}
            slower += print_row(f"{size} | {n_tokens} | {name}", best, shown)
    return slower


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=SIZES, help=f"presets, separated by commas  [default: {SIZES}]")
    parser.add_argument("--rows", default="1,4,16,64", help="rows, separated by commas  [default: 1,4,16,64]")
    parser.add_argument(
        "--tokens", default="16,64,512", help="distinct tokens, separated by commas  [default: 16,64,512]"
    )
    parser.add_argument("--instructions", help="instruction sets, separated by commas  [default: all available]")
    parser.add_argument("--rounds", type=int, default=5, help="number of measurements  [default: 5]")
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
        slower = []
        for size in args.sizes.split(","):
            slower += measure(size, [int(count) for count in counts.split(",")], libraries, args.rounds)
        print(f"\nslower than float32: {'; '.join(slower) or 'none'}\n")


if __name__ == "__main__":
    main()
