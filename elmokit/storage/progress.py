"""Progress of long computations: one callback type for the library, one display for people."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

ProgressCallback = Callable[[str, int, int | None], None]
"""Called as ``progress(stage, done, total)``: how much of a stage is done, and how much there is (None if unknown).

Every long function of the library accepts such a callback. :class:`ProgressBar` is one.
"""

SECONDS_BETWEEN_LINES = 30.0


class Stage(str):
    """The name of a stage, and what is counted in it, where that differs from the other stages of a computation.

    To a callback it is the name.
    """

    unit: str
    """Such as "sentences"."""

    def __new__(cls, name: str, unit: str) -> Stage:
        """Make the name of a stage."""
        stage = super().__new__(cls, name)
        stage.unit = unit
        return stage


_quiet = False


def set_quiet(quiet: bool) -> None:
    """Show no progress in this process, or show it again (``elmokit --quiet``). Warnings and errors stay."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Check whether progress is hidden."""
    return _quiet


class StageCounter:
    """Counts how much of a stage is done, and tells a progress callback after each addition; None tells nobody.

    Add 0 at the start to say what an earlier, interrupted run has done.
    """

    def __init__(self, progress: ProgressCallback | None, stage: str, total: int | None, done: int = 0) -> None:
        self.progress, self.stage, self.total, self.done = progress, stage, total, done

    def __call__(self, n: int = 1) -> None:
        """Count ``n`` more units."""
        self.done += n
        if self.progress is not None:
            self.progress(self.stage, self.done, self.total)


class ProgressBar:
    """Shows progress: a bar on a terminal or in a notebook, otherwise a line every 30 seconds, both with the time left.

    It is a ``progress`` callback. The first step of a stage is left out of the estimate: it often loads, compiles or
    packs what the others use. Output goes to standard error.

    Args:
        unit: What is counted, such as ``"tokens"``, in stages that do not say it themselves; empty if each counts
            something else.
        clock: Returns the time in seconds.
        lines: Print lines even on a terminal.

    Example:
        >>> with ProgressBar("tokens") as progress:
        ...     embed_file(elmo, "in.txt", "out.hdf5", progress=progress)
    """

    def __init__(self, unit: str, clock: Callable[[], float] = time.monotonic, lines: bool = False) -> None:
        self._unit, self._clock, self._lines = unit, clock, lines
        self._stage: str | None = None
        self._stage_unit = unit
        self._done = self._first = 0
        self._started = self._last_line = clock()
        self._is_warm = False
        self._bar: Any = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Show that ``done`` of ``total`` units of a stage are finished; a new name starts a new stage."""
        now = self._clock()
        # The first report of a stage says what an earlier, interrupted run has done, which is left out of the estimated
        # time. Where less is done than before, a stage of the same name has begun, such as for the next file.
        if stage != self._stage or done < self._done:
            self._last_line = now
            self._start(stage, done)
        self._done = done
        is_first_step = not self._is_warm and done > self._first
        if is_first_step:
            self._is_warm, self._first, self._started = True, done, now
        if self._bar is not None:
            self._move_bar(done, total, is_first_step)
        elif not _quiet and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            self._print_line(stage, done, total, now)

    def _move_bar(self, done: int, total: int | None, is_first_step: bool) -> None:
        self._bar.total = total
        if is_first_step:
            self._bar.n = self._bar.initial = done
            self._bar.unpause()  # the clock of tqdm starts here
            self._bar.refresh()
        else:
            self._bar.update(done - self._bar.n)

    def write(self, line: str) -> None:
        """Print a line above the bar."""
        if _quiet:
            return
        if self._bar is None:
            print(line, file=sys.stderr)
        else:
            self._bar.write(line, file=sys.stderr)

    def close(self) -> None:
        """Remove the bar from the screen."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _start(self, stage: str, done: int) -> None:
        self.close()
        self._stage, self._first, self._is_warm = stage, done, False
        self._stage_unit = stage.unit if isinstance(stage, Stage) else self._unit
        if not self._lines and not _quiet and (sys.stderr.isatty() or "ipykernel.kernelapp" in sys.modules):
            from tqdm.auto import tqdm  # in a notebook widgets; elsewhere a bar would be a mess of lines

            self._bar = tqdm(
                initial=done,
                desc=stage or None,
                unit=f" {self._stage_unit or 'it'}",
                unit_scale=True,
                leave=False,
                smoothing=0,  # the mean speed: after a pause of the machine, the last one predicts minutes for seconds
            )

    def _print_line(self, stage: str, done: int, total: int | None, now: float) -> None:
        line = f"{done:,} {self._stage_unit}".rstrip()
        if total:
            line = f"{min(1, done / total):4.0%} of {total:,} {self._stage_unit}".rstrip()
            if done_here := done - self._first:
                seconds = (now - self._started) * max(0, total - done) / done_here
                line += f", {format_duration(seconds)} left"
        print(f"{stage}: {line}" if stage else line, file=sys.stderr, flush=True)


def count_of(n: int, what: str) -> str:
    """Return a number and what it counts, such as "1 sentence" or "2,000 sentences"."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def format_duration(seconds: float) -> str:
    """Return a duration such as "45 s", "3 min", "1 h 20 min" or "2 days 3 h"."""
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(hours + minutes / 60), 24)
    text = count_of(days, "day")
    return f"{text} {hours} h" if hours else text
