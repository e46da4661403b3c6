"""Measure how fast this machine computes a model (``elmokit bench``)."""

from __future__ import annotations

import os
import platform
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from elmokit.embedding.elmo import Elmo
from elmokit.engine import compiler
from elmokit.engine.instruction_sets import available_sets
from elmokit.engine.precision import NATIVE, PRECISIONS, REQUESTS, VARIABLE, Backend, BackendRequest, Precision
from elmokit.engine.threads import n_threads
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.progress import ProgressCallback, StageCounter

N_ROWS = (1, 16, 64)
SENTENCE_TOKENS = 20
MEASURE_SECONDS = 0.7


class Speed(NamedTuple):
    """The speed of one backend at one batch size."""

    request: BackendRequest
    """A precision, or "reference" for plain NumPy."""
    n_rows: int
    """Sentences in a batch."""
    backend: Backend
    computed_in: tuple[Precision, ...]
    """The precisions of the LSTM layers' weights, which differ from the requested one if that would be slower."""
    tokens_per_second: float


class SpeedReport(NamedTuple):
    """The results of ``measure_speed``."""

    machine: dict[str, Any]
    speeds: list[Speed]

    def speed(self, request: BackendRequest, n_rows: int) -> Speed:
        """Return the speed for a request and a batch size."""
        return next(speed for speed in self.speeds if (speed.request, speed.n_rows) == (request, n_rows))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return {**self._asdict(), "speeds": [speed._asdict() for speed in self.speeds]}


def measure_speed(
    model: PretrainedBiLM,
    n_rows: Sequence[int] = N_ROWS,
    *,
    seconds: float | None = None,
    progress: ProgressCallback | None = None,
) -> SpeedReport:
    """Measure a model in every precision and in plain NumPy, on the CPU.

    Each batch has sentences of 20 made-up words of common lengths. Half of the words in a large batch are distinct, as
    in running text. ``Elmo.embed_batch`` is timed from zero states, without the token cache; the fastest of several
    calls counts.
    """
    seconds = MEASURE_SECONDS if seconds is None else seconds
    elmo = Elmo(model, start="zero", token_cache_mib=0)
    count = StageCounter(progress, "measurements", len(REQUESTS) * len(n_rows))
    speeds: list[Speed] = []
    for request in REQUESTS:
        with _requested(request):
            _, *kernels = elmo.computer.network.computation().kernels
            computed_in = _precisions(kernels)
            for n in n_rows:
                batch = _sentences(n)
                best = _best_seconds(partial(elmo.embed_batch, batch, elmo.zero_state(n)), seconds)
                speeds.append(Speed(request, n, kernels[0], computed_in, n * SENTENCE_TOKENS / best))
                count()
    return SpeedReport(describe_machine(), speeds)


def describe_machine() -> dict[str, Any]:
    """Collect the facts about this machine that determine which kernels run."""
    library = compiler.load_library()
    used = origin = None
    if library is not None:
        used = library.instructions
        origin = "package" if compiler.is_packaged(used) else "compiled here"
    return {
        "processor": processor_name(),
        "threads": n_threads(),
        "numpy": np.__version__,
        "instruction_sets": available_sets(),
        "used": used,
        "library": origin,
        "why_no_library": compiler.why_unavailable(),
    }


def processor_name() -> str:
    """Return the processor's name, or the best available description."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    name = re.search(r"^model name\s*:\s*(.+?)\s*$", text, re.MULTILINE)
    if name is not None:
        return name[1]
    return platform.processor() or platform.machine()


@contextmanager
def _requested(request: BackendRequest) -> Iterator[None]:
    """Request a backend by the environment variable, the only way to select plain NumPy."""
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
    drawn = generator.choices(words, weights=weights, k=n_rows * SENTENCE_TOKENS)
    return [drawn[row * SENTENCE_TOKENS : (row + 1) * SENTENCE_TOKENS] for row in range(n_rows)]


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
    """List the precisions of the LSTM layers' weights, most precise first."""
    used = {NATIVE.get(kernel, "float32") for kernel in kernels}
    return tuple(precision for precision in PRECISIONS if precision in used)
