"""Progress of work in stages."""

from __future__ import annotations

from elmokit.cli.common import Progress


class StageProgress:
    """What to hand to a function that reports ``(stage, done, total)``: a ``Progress`` for each stage.

    The first report of a stage says what was done before, by a call that was killed; the time left is of the rest.
    """

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._stage = ""
        self._done = 0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """So much of the stage is done; a new stage begins with its first report."""
        if self._progress is None or stage != self._stage:
            self.__exit__()
            self._progress, self._stage, self._done = Progress(total - done, stage), stage, done
        elif done > self._done:
            self._progress(done - self._done)
            self._done = done

    def __enter__(self) -> StageProgress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress is not None:
            self._progress.__exit__()
