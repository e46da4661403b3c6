"""Progress of long work on a terminal, one bar a stage."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from tqdm import tqdm


class StageBars:
    """What to hand to a function that reports ``(stage, done, total)``; shows nothing in a pipe."""

    def __init__(self) -> None:
        self._bar: tqdm[NoReturn] | None = None
        self._stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Move the bar of the stage; a new stage gets a new bar."""
        from tqdm import tqdm

        if self._bar is None or stage != self._stage:
            self.close()
            shown = sys.stderr.isatty()
            self._bar = tqdm(total=total, desc=stage, initial=done, unit_scale=True, disable=not shown, leave=False)
            self._stage = stage
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> StageBars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
