"""What the parts of the server share about its processes."""

from __future__ import annotations

import time
from dataclasses import dataclass

METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""The directory through which several processes add up their metrics. prometheus_client reads it when it is imported,
so it must be set before."""


@dataclass
class Lifecycle:
    """Whether the server is about to stop."""

    is_stopping: bool = False


class WaitingRequests:
    """The requests that wait for an answer, and for how long none of them has been answered."""

    def __init__(self) -> None:
        self.n = 0
        self._since = 0.0

    def add(self) -> None:
        """Add a request."""
        if not self.n:
            self._since = time.monotonic()
        self.n += 1

    def remove(self, is_answered: bool) -> None:
        """Remove a request that has its answer, or one that was given up."""
        self.n -= 1
        if is_answered:
            self._since = time.monotonic()

    @property
    def seconds_without_answer(self) -> float:
        """For how long requests have waited and none has been answered; 0 if none waits."""
        return time.monotonic() - self._since if self.n else 0.0
