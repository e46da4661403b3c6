"""Measure the speed of the LSTM layers in each precision and instruction set of this machine.

    python benchmarks/precisions.py [--sizes original] [--rows 1,4,16,64] [--instructions amx,avx2] [--rounds 3]

Each number is the speed of the four LSTM layers alone (random weights of a published size), on one thread, in tokens/s.
The ratio is to float32 on the same instruction set. The variants take turns and the fastest round counts; times are
those of the processor, without waiting for other programs. One row is a sentence of 20 tokens.
"""

from __future__ import annotations

import argparse
import time

import torch

from elmokit.bilm import PRESETS
from elmokit.nn.kernels import compiler
from elmokit.nn.kernels.instruction_sets import INSTRUCTION_SETS, available_sets
from elmokit.nn.kernels.lstm_inference import LayerWeights, NativeLayer, pack_native_layer, run_native_layer
from elmokit.nn.kernels.native import PRECISIONS, NativeLibrary, Precision

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


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="original", help="presets, separated by commas  [default: original]")
    parser.add_argument("--rows", default="1,4,16,64", help="rows, separated by commas  [default: 1,4,16,64]")
    parser.add_argument("--instructions", help="instruction sets, separated by commas  [default: all available]")
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements  [default: 3]")
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = args.instructions.split(",") if args.instructions else available_sets()
    libraries = {name: compiler.build(name, INSTRUCTION_SETS[name]) for name in names}
    print("| size | rows | instructions | " + " | ".join(PRECISIONS) + " |\n|---|---|---|" + "---|" * len(PRECISIONS))
    for size in args.sizes.split(","):
        weights, dim = random_layers(size), PRESETS[size].projection_dim
        packed: dict[tuple[str, Precision], list[NativeLayer]] = {}
        for name, library in libraries.items():
            for precision in PRECISIONS:
                packed[name, precision] = [pack_native_layer(library, precision, layer, dim) for layer in weights]
        for n_rows in map(int, args.rows.split(",")):
            n_steps = 20 if n_rows == 1 else 5
            times: dict[tuple[str, Precision], list[float]] = {variant: [] for variant in packed}
            for _ in range(args.rounds + 1):
                for variant, layers in packed.items():
                    times[variant].append(seconds(libraries[variant[0]], layers, dim, n_rows, n_steps))
            best = {variant: min(each[1:]) for variant, each in times.items()}  # the first round fills the caches
            for name in names:
                cells = [
                    f"{n_rows * n_steps / best[name, each]:,.0f} ({best[name, 'float32'] / best[name, each]:.2f}x)"
                    for each in PRECISIONS
                ]
                print(f"| {size} | {n_rows} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
