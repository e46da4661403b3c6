"""Measure how fast this machine computes a model, and how fast it could (``elmokit bench``).

The *ceiling* is what the processor could reach if computing a batch were nothing but matrix products:

- the products run at the rate of the fastest one that was measured in the same precision, by the kernels or by NumPy;
- but no faster than the weights can be read. One sentence at a time reads every recurrent weight for a single row, so
  that reading takes longer than multiplying.

The products are those of the LSTMs, of the highway layers and of the token projection. The convolutions over
characters are not counted, so small models stay further below their ceiling.
"""

from __future__ import annotations

import math
import os
import platform
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.elmo import Elmo
from elmokit.engine import compiler
from elmokit.engine.architecture import BiLMConfig, tensor_shapes
from elmokit.engine.instruction_sets import available_sets
from elmokit.engine.precision import NATIVE, PRECISIONS, REQUESTS, VARIABLE, Backend, BackendRequest, Precision
from elmokit.engine.softmax import Matrix
from elmokit.engine.threads import n_threads
from elmokit.formats.model import PretrainedBiLM
from elmokit.storage.progress import ProgressCallback, StageCounter
from elmokit.text.batching import N_BOUNDARIES

N_ROWS = (1, 16, 64)
SENTENCE_TOKENS = 20
MEASURE_SECONDS = 0.7
CHUNK_ROWS = 256  # rows whose input products are computed together, as in lstm.c
# Of products on the way to a model: of a chunk, of a step, and of a size that libraries are tuned for.
PRODUCT_SHAPES = ((CHUNK_ROWS, 512, 2048), (64, 512, 4096), (512, 1024, 1024))


class Speed(NamedTuple):
    """The speed of one backend at one batch size."""

    request: BackendRequest
    """A precision, or "reference" for plain NumPy."""
    n_rows: int
    """Sentences in a batch."""
    backend: Backend
    computed_in: tuple[Precision, ...]
    """The precisions of the LSTM layers' weights: not the requested one where that would be slower."""
    tokens_per_second: float
    ceiling: float
    """Tokens per second if there were only matrix products, at the fastest rate measured."""


class SpeedReport(NamedTuple):
    """What ``measure_speed`` found out."""

    machine: dict[str, Any]
    operations_per_second: dict[Precision, float]
    """The rate of the fastest product in each precision; a multiplication and an addition are two operations."""
    bytes_per_second: dict[Precision, float]
    """The rate at which as many bytes can be read as the LSTM weights take in each precision."""
    speeds: list[Speed]

    def speed(self, request: BackendRequest, n_rows: int) -> Speed:
        """Return the speed for a request and a batch size."""
        return next(speed for speed in self.speeds if (speed.request, speed.n_rows) == (request, n_rows))

    def as_dict(self) -> dict[str, Any]:
        """Return the report in types that JSON has."""
        return {**self._asdict(), "speeds": [speed._asdict() for speed in self.speeds]}


def measure_speed(
    model: PretrainedBiLM,
    n_rows: Sequence[int] = N_ROWS,
    *,
    seconds: float | None = None,
    progress: ProgressCallback | None = None,
) -> SpeedReport:
    """Measure a model in every precision and in plain NumPy, on the CPU.

    Each batch has sentences of 20 made-up words of common lengths. Half of the words of a large batch are distinct, as
    in running text. What is timed is ``Elmo.embed_batch`` from zero states, without the token cache; the fastest of
    several calls counts.
    """
    seconds = MEASURE_SECONDS if seconds is None else seconds
    elmo = Elmo(model, start="zero", token_cache_mib=0)
    count = StageCounter(progress, "measurements", len(PRECISIONS) + len(REQUESTS) * len(n_rows))
    operations: dict[Precision, float] = {}
    reading: dict[Precision, float] = {}
    n_weights = sum(map(sum, _layer_weights(model.config)))
    for precision in PRECISIONS:
        operations[precision] = _product_rate(precision, seconds)
        reading[precision] = _reading_rate(n_weights * PRECISIONS[precision].bytes_per_weight, seconds)
        count()
    speeds: list[Speed] = []
    for request in REQUESTS:
        with _requested(request):
            _, *kernels = model.network.computation().kernels
            computed_in = _precisions(kernels)
            for n in n_rows:
                batch = _sentences(n)
                best = _best_seconds(partial(elmo.embed_batch, batch, elmo.zero_state(n)), seconds)
                ceiling = min(
                    _ceiling_seconds(model.config, batch, operations[each], reading[each], each) for each in computed_in
                )
                n_tokens = n * SENTENCE_TOKENS
                speeds.append(Speed(request, n, kernels[0], computed_in, n_tokens / best, n_tokens / ceiling))
                count()
    return SpeedReport(describe_machine(), operations, reading, speeds)


def describe_machine() -> dict[str, Any]:
    """Collect the facts about this machine that decide which kernels run."""
    library = compiler.load_library()
    used = None if library is None else library.instructions
    return {
        "processor": processor_name(),
        "threads": n_threads(),
        "numpy": np.__version__,
        "instruction_sets": available_sets(),
        "used": used,
        "library": None if used is None else "package" if compiler.is_packaged(used) else "compiled here",
        "why_no_library": compiler.why_unavailable(),
    }


def processor_name() -> str:
    """Read the name that the processor reports, or the best that is known of it."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    name = re.search(r"^model name\s*:\s*(.+?)\s*$", text, re.MULTILINE)
    return name[1] if name else platform.processor() or platform.machine()


@contextmanager
def _requested(request: BackendRequest) -> Iterator[None]:
    """Request a backend by the environment variable, which alone can name plain NumPy."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = request
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def _sentences(n_rows: int) -> list[list[str]]:
    """Make up a batch. Few words are common and many are rare, by Zipf's law, as in running text."""
    generator = random.Random(0)
    lengths = generator.choices(range(1, 13), weights=(3, 17, 21, 16, 11, 9, 8, 6, 4, 3, 1, 1), k=20_000)
    words = ["".join(generator.choices("etaoinshrdlucmfwypvbgkqjxz", k=length)) for length in lengths]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    drawn = iter(generator.choices(words, weights=weights, k=n_rows * SENTENCE_TOKENS))
    return [[next(drawn) for _ in range(SENTENCE_TOKENS)] for _ in range(n_rows)]


def _best_seconds(call: Callable[[], object], seconds: float) -> float:
    """Time the fastest call among as many as fit into the given time: at least two."""
    call()  # packs the weights and fills the caches
    times: list[float] = []
    while len(times) < 2 or sum(times) < seconds:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def _precisions(kernels: Sequence[Backend]) -> tuple[Precision, ...]:
    """List the precisions of the LSTM layers' weights, the most precise first."""
    used = {NATIVE.get(kernel, "float32") for kernel in kernels}
    return tuple(precision for precision in PRECISIONS if precision in used)


def _layer_weights(config: BiLMConfig) -> Iterator[tuple[int, int]]:
    """Yield for each LSTM layer how many weights multiply its input, and how many its state."""
    n_gates, dim = 4 * config.hidden_dim, config.projection_dim
    n_projecting = 0 if config.hidden_dim == dim else config.hidden_dim * dim
    for _ in range(config.n_directions * config.n_layers):
        yield n_gates * dim, n_gates * dim + n_projecting


def _token_weights(config: BiLMConfig) -> int:
    """Count the weights that multiply each distinct token: those of the highway layers and of the projection."""
    return sum(
        math.prod(shape)
        for name, shape in tensor_shapes(config).items()
        if name.startswith("token_layer.") and len(shape) == 2 and not name.endswith("embedding.weight")
    )


def _ceiling_seconds(
    config: BiLMConfig, batch: list[list[str]], operations: float, reading: float, precision: Precision
) -> float:
    """Compute the time that the products of a batch would take at the given rates."""
    n_rows, n_steps = len(batch), SENTENCE_TOKENS + N_BOUNDARIES
    n_chunks = -(-n_rows * n_steps // max(CHUNK_ROWS, n_rows))

    def product_seconds(n_weights: int, rows: int, n_reads: int) -> float:
        return max(
            2 * n_weights * rows / operations, n_weights * PRECISIONS[precision].bytes_per_weight * n_reads / reading
        )

    total = 0.0
    for from_input, from_state in _layer_weights(config):
        # The input products of many steps are computed together, the others step by step.
        total += product_seconds(from_input, n_rows * n_steps, n_chunks)
        total += product_seconds(from_state, n_rows * n_steps, n_steps)
    n_distinct = len({word for sentence in batch for word in sentence}) + N_BOUNDARIES
    return total + 2 * _token_weights(config) * n_distinct / operations


def _product_rate(precision: Precision, seconds: float) -> float:
    """Measure the operations per second of the fastest matrix product: of the C functions, and in float32 of NumPy."""
    library = compiler.load_library()
    draw = np.random.default_rng(0)
    rates: list[float] = []
    for rows, n_inputs, n_outputs in PRODUCT_SHAPES:
        inputs = draw.standard_normal((rows, n_inputs), np.float32)
        weight = draw.standard_normal((n_outputs, n_inputs), np.float32)
        products: list[Callable[[], object]] = []
        if library is not None:
            products.append(partial(Matrix(weight, precision, library), inputs, n_threads()))
        if library is None or precision == "float32":
            products.append(partial(np.matmul, inputs, weight.T))
        for product in products:
            fastest = _best_seconds(product, seconds / (2 * len(PRODUCT_SHAPES)))
            rates.append(2 * rows * n_inputs * n_outputs / fastest)
    return max(rates)


def _reading_rate(n_bytes: int, seconds: float) -> float:
    """Measure the bytes per second at which a block of this size can be read again and again."""
    # The maximum, because NumPy computes it as fast as memory can be read; and by as many threads as compute a model.
    parts = np.array_split(np.ones(max(n_bytes // 4, 1), np.float32), n_threads())
    with ThreadPoolExecutor(len(parts)) as pool:
        return n_bytes / _best_seconds(lambda: list(pool.map(_maximum, parts)), seconds / 4)


def _maximum(numbers: NDArray[np.float32]) -> float:
    return float(numbers.max(initial=0))
