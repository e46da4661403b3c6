"""Measure how fast a training is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class ThroughputMeter:
    """Speed and remaining time of a training.

    Args:
        n_done: What was done before, by the run that is resumed; in any unit, such as steps or predictions.
    """

    def __init__(self, n_done: int) -> None:
        self._started = self._last_time = time.monotonic()
        self._n_at_start = self._n_last = n_done

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time of the block (an evaluation, a checkpoint) out of :meth:`rate`.

        It still counts in :meth:`seconds_left`: the rest of the training has evaluations, too.
        """
        started = time.monotonic()
        yield
        self._last_time += time.monotonic() - started

    def rate(self, n_done: int) -> float:
        """Return the units per second since the last call."""
        now = time.monotonic()
        rate = (n_done - self._n_last) / max(now - self._last_time, 1e-9)
        self._last_time, self._n_last = now, n_done
        return rate

    def seconds_left(self, n_done: int, total: int) -> float:
        """Estimate the time to ``total`` from the overall speed since the start."""
        elapsed = time.monotonic() - self._started
        return max(0, total - n_done) * elapsed / max(1, n_done - self._n_at_start)
