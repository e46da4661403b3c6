"""Progress of long computations: a callback type for the library, and a progress bar."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

ProgressCallback = Callable[[str, int, int | None], None]
"""Called as ``progress(stage, done, total)``, with the finished and total units of a stage (None if unknown).

All long-running functions of the library accept such a callback. :class:`ProgressBar` is one.
"""

SECONDS_BETWEEN_LINES = 30.0


class Stage(str):
    """The name of a stage, with its unit if that differs from the other stages of a computation.

    Callbacks can treat it as the name.
    """

    unit: str
    """Such as "sentences"."""

    def __new__(cls, name: str, unit: str) -> Stage:
        """Make the name of a stage that counts ``unit``."""
        stage = super().__new__(cls, name)
        stage.unit = unit
        return stage


_quiet = False


def set_quiet(quiet: bool) -> None:
    """Hide or show progress in this process (``elmokit --quiet``). Warnings and errors are always shown."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Check whether progress is hidden."""
    return _quiet


class StageCounter:
    """Counts the finished units of a stage, and reports each change to a progress callback, if any.

    Add 0 at the start to report what an earlier, interrupted run has done.
    """

    def __init__(self, progress: ProgressCallback | None, stage: str, total: int | None, done: int = 0) -> None:
        self.progress, self.stage, self.total, self.done = progress, stage, total, done

    def __call__(self, n: int = 1) -> None:
        """Count ``n`` more units."""
        self.done += n
        if self.progress is not None:
            self.progress(self.stage, self.done, self.total)


class ProgressBar:
    """Shows progress and the time left: as a bar on a terminal or in a notebook, otherwise as a line every 30 seconds.

    It is a ``progress`` callback. The estimate ignores the first step of a stage, which often includes loading,
    compiling or packing. Output goes to standard error.

    Args:
        unit: What is counted, such as ``"tokens"``, in stages without a unit of their own; empty if it varies.
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
        # The first report of a stage is what an earlier, interrupted run has done, and does not count for the estimate.
        # If the count decreases, a new stage of the same name has started, such as for the next file.
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
            self._bar.unpause()  # starts tqdm's clock
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
        shows_bars = sys.stderr.isatty() or "ipykernel.kernelapp" in sys.modules
        if shows_bars and not self._lines and not _quiet:
            from tqdm.auto import tqdm  # uses widgets in notebooks; elsewhere, a bar would print a mess of lines

            self._bar = tqdm(
                initial=done,
                desc=stage or None,
                unit=f" {self._stage_unit or 'it'}",
                unit_scale=True,
                leave=False,
                smoothing=0,  # the mean speed: after the machine has slept, recent speed would predict minutes
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
    """Format a count, such as "1 sentence" or "2,000 sentences"."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def format_duration(seconds: float) -> str:
    """Format a duration, such as "45 s", "3 min", "1 h 20 min" or "2 days 3 h"."""
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
