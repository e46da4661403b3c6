"""Runs that end in the middle, as those of a process that is killed."""

from __future__ import annotations

from elmokit.storage.progress import ProgressCallback


class Killed(BaseException):
    """Ends a run where it is. Nothing catches it, as nothing catches SIGKILL."""


def kill_at(stage: str, done: int) -> ProgressCallback:
    """Return a callback that ends a run once so much of a stage is done."""

    def progress(running: str, n: int, total: int | None) -> None:
        if running == stage and n >= done:
            raise Killed

    return progress
