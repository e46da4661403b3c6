"""Measure the speed of a training while it runs, and estimate the time that is left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class ThroughputMeter:
    """Speed and remaining time of a training, which counts in any unit, such as predictions.

    The first step is left out of the remaining time as soon as there is another one: it allocates memory and compiles.
    """

    def __init__(self, n_done: int) -> None:
        self._started = self._last_time = time.monotonic()
        self._n_at_start = self._n_last = n_done
        self._is_warm = False
        self._seconds_per_evaluation, self._paused_seconds = 0.0, 0.0

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

    def step_done(self, n_done: int, total: int, n_evaluations: int = 0) -> float:
        """Note that a step is done, and estimate the time to ``total`` with this many evaluations."""
        # Evaluations are counted, and not spread over the training: one right after the start would otherwise make the
        # rest seem to take many times as long.
        now = time.monotonic() - self._paused_seconds
        steps = max(0, total - n_done) * (now - self._started) / max(1, n_done - self._n_at_start)
        if not self._is_warm:
            self._is_warm, self._started, self._n_at_start = True, now, n_done
        return steps + n_evaluations * self._seconds_per_evaluation


def count_evaluations(n_steps_done: int, n_steps: int, eval_every: int) -> int:
    """Return how many evaluations are left: one every ``eval_every`` steps, and one after the last step."""
    return n_steps // eval_every - n_steps_done // eval_every + (n_steps % eval_every > 0)
