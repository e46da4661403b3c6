"""Measure how fast a training is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class ThroughputMeter:
    """Speed and remaining time of a training.

    Args:
        n_done: What was done before, by the run that is resumed; in any unit, such as steps or predictions.
        seconds_per_evaluation: An estimate that holds until the first evaluation.
    """

    def __init__(self, n_done: int, seconds_per_evaluation: float = 0.0) -> None:
        self._started = self._last_time = time.monotonic()
        self._n_at_start = self._n_last = n_done
        self._seconds_per_evaluation, self._paused_seconds = seconds_per_evaluation, 0.0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time of the block (a checkpoint) out of the speed."""
        started = time.monotonic()
        yield
        seconds = time.monotonic() - started
        self._last_time += seconds
        self._paused_seconds += seconds

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Leave the time of an evaluation out of the speed, and expect later ones to take as long."""
        started = time.monotonic()
        with self.paused():
            yield
        self._seconds_per_evaluation = time.monotonic() - started

    def rate(self, n_done: int) -> float:
        """Return the units per second since the last call."""
        now = time.monotonic()
        rate = (n_done - self._n_last) / max(now - self._last_time, 1e-9)
        self._last_time, self._n_last = now, n_done
        return rate

    def seconds_left(self, n_done: int, total: int, n_evaluations: int = 0) -> float:
        """Estimate the time to ``total`` from the speed since the start, with this many evaluations.

        Evaluations are counted, and not spread over the training: one right after the start would otherwise make the
        rest seem to take many times as long.
        """
        elapsed = time.monotonic() - self._started - self._paused_seconds
        steps = max(0, total - n_done) * elapsed / max(1, n_done - self._n_at_start)
        return steps + n_evaluations * self._seconds_per_evaluation
