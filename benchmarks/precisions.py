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

import numpy as np

from elmokit.engine import compiler
from elmokit.engine.architecture import PRESETS
from elmokit.engine.instruction_sets import INSTRUCTION_SETS, available_sets
from elmokit.engine.interface import NetworkInput
from elmokit.engine.library import Library, choose_kernels
from elmokit.engine.lstm import LSTM
from elmokit.engine.precision import NAMES, Precision
from elmokit.engine.state import Floats, State
from elmokit.engine.token_layer import TokenLayer
from elmokit.network.bilm import BiLM
from elmokit.text.characters import encode_tokens

SIZES = "mini,small,medium,original"  # `en-mini` has the size mini


def random_weights(size: str) -> dict[str, Floats]:
    """Return random weights of a preset's sizes, by the names that the engine knows them by."""
    bilm = BiLM(PRESETS[size])
    bilm.reset_parameters(seed=0)
    return {name: tensor.numpy() for name, tensor in bilm.state_dict().items()}


def lstm_seconds(lstm: LSTM, n_rows: int, n_steps: int) -> float:
    """Measure the processor's time of running all layers once."""
    words = np.arange(n_rows * n_steps)
    vectors = np.random.default_rng(0).standard_normal((len(words), lstm.config.projection_dim), np.float32) / 2
    lengths, start = np.full(n_rows, n_steps), State.zero(lstm.config, n_rows)
    started = time.thread_time()
    lstm.layers(NetworkInput(vectors, words, lengths, start), [lstm.config.n_layers])
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
    cells = [f"{shown[each]} ({ratios[each]:.2f}x)" if each in best else "float32" for each in NAMES]
    print(f"| {head} | {' | '.join(cells)} |", flush=True)
    return [f"{head} | {each} ({ratio:.2f}x)" for each, ratio in ratios.items() if ratio < 1]


def measure_lstms(size: str, rows: list[int], libraries: dict[str, Library], n_rounds: int) -> list[str]:
    """Print the speed of the LSTM layers; return what was slower than float32."""
    config, arrays = PRESETS[size], random_weights(size)
    n_weights = 8 * config.hidden_dim * config.projection_dim
    slower = []
    for name, library in libraries.items():
        packed = {
            each: LSTM(config, arrays, each, library)
            for each in NAMES
            if each == "float32" or choose_kernels(library, each, n_weights).lstm != "float32"
        }
        for n_rows in rows:
            n_steps = 20 if n_rows == 1 else max(6, 64 // n_rows)  # so that a run is long enough to be measured
            runs: dict[Precision, Callable[[], float]] = {
                each: partial(lstm_seconds, lstm, n_rows, n_steps) for each, lstm in packed.items()
            }
            best = fastest(runs, n_rounds)
            shown = {each: f"{n_rows * n_steps / best[each]:,.0f}" for each in best}
            slower += print_row(f"{size} | {n_rows} | {name}", best, shown)
    return slower


def measure_token_layer(size: str, counts: list[int], libraries: dict[str, Library], n_rounds: int) -> list[str]:
    """Print the speed of the char CNN; return what was slower than float32."""
    config, arrays = PRESETS[size], random_weights(size)
    assert config.char_cnn is not None
    rng = random.Random(0)
    # Text has words of about seven letters, in batches of distinct tokens.
    words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 12))) for _ in range(max(counts))]
    ids = encode_tokens(words, config.char_cnn.max_chars)

    def run(layer: TokenLayer, n_tokens: int) -> float:
        started = time.thread_time()
        layer(ids[:n_tokens])
        return time.thread_time() - started

    slower = []
    for name, library in libraries.items():
        packed = {
            each: TokenLayer(config, arrays, each, library)
            for each in NAMES
            if each == "float32" or choose_kernels(library, each, 0).token_layer != "float32"
        }
        for n_tokens in counts:
            best = fastest({each: partial(run, layer, n_tokens) for each, layer in packed.items()}, n_rounds)
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
    names = args.instructions.split(",") if args.instructions else available_sets()
    libraries = {name: compiler.build(name, INSTRUCTION_SETS[name]) for name in names}
    tables = (("rows", args.rows, measure_lstms), ("distinct tokens", args.tokens, measure_token_layer))
    for what, counts, measure in tables:
        if counts == "0":
            continue
        columns = ["size", what, "instructions", *NAMES]
        print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        slower = []
        for size in args.sizes.split(","):
            slower += measure(size, [int(count) for count in counts.split(",")], libraries, args.rounds)
        print(f"\nslower than float32: {'; '.join(slower) or 'none'}\n")


if __name__ == "__main__":
    main()
