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

    The first step of a stage is left out of the estimate: it often loads, compiles or packs what the others use.

    Pass it to any function that takes a ``progress`` callback, or count yourself with :meth:`update`. Output goes to
    standard error.

    Args:
        unit: What is counted, such as ``"tokens"``; empty if each stage counts something else.
        total: How much there is, for counting with :meth:`update`; None if unknown. A callback reports its own total.
        clock: Returns the time in seconds.
        lines: Print lines even on a terminal.

    Example:
        >>> with ProgressBar("tokens") as progress:
        ...     embed_file(elmo, "in.txt", "out.hdf5", progress=progress)
    """

    def __init__(
        self, unit: str, total: int | None = None, clock: Callable[[], float] = time.monotonic, lines: bool = False
    ) -> None:
        self.unit, self.total, self._clock, self._lines = unit, total, clock, lines
        self.done = self._first = 0
        self._stage: str | None = None
        self._started = self._last_line = clock()
        self._is_warm = False
        self._bar: Any = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Show that ``done`` of ``total`` units of a stage are finished; a new name starts a new stage."""
        # The first report of a stage says what an earlier, interrupted run has done, which is left out of the estimated
        # time. Where less is done than before, a stage of the same name has begun, such as for the next file.
        if stage != self._stage or done < self.done:
            self._last_line = self._clock()
            self._start(stage, done)
        self.done, self.total = done, total
        self._show()

    def update(self, n: int) -> None:
        """Show that ``n`` more units are finished."""
        if self._stage is None:
            self._start("", 0)
        self.done += n
        self._show()

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
        if not self._lines and not _quiet and (tqdm := _bar_class()):
            self._bar = tqdm(
                initial=done,
                desc=stage or None,
                unit=f" {self.unit or 'it'}",
                unit_scale=True,
                leave=False,
                smoothing=0,  # the mean speed: after a pause of the machine, the last one predicts minutes for seconds
            )

    def _show(self) -> None:
        now = self._clock()
        is_first_step = not self._is_warm and self.done > self._first
        if is_first_step:
            self._is_warm, self._first, self._started = True, self.done, now
        if self._bar is not None:
            self._bar.total = self.total
            if is_first_step:
                self._bar.n = self._bar.initial = self.done
                self._bar.unpause()  # the clock of tqdm starts here
                self._bar.refresh()
            else:
                self._bar.update(self.done - self._bar.n)
            return
        if _quiet or now - self._last_line < SECONDS_BETWEEN_LINES:
            return
        self._last_line = now
        line = f"{self.done:,} {self.unit}".rstrip()
        if self.total:
            line = f"{min(1, self.done / self.total):4.0%} of {self.total:,} {self.unit}".rstrip()
            if done_here := self.done - self._first:
                seconds = (now - self._started) * max(0, self.total - self.done) / done_here
                line += f", {format_duration(seconds)} left"
        print(f"{self._stage}: {line}" if self._stage else line, file=sys.stderr, flush=True)


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
    return f"{days} day{'s' if days > 1 else ''}{f' {hours} h' if hours else ''}"


def _in_notebook() -> bool:
    """Check whether a notebook's kernel runs this process; programs that only start kernels import ipykernel too."""
    kernel = sys.modules.get("ipykernel.kernelapp")
    return kernel is not None and kernel.IPKernelApp.initialized()


def _bar_class() -> Any:
    """Return tqdm's class for the place we are in, or None where a bar would be a mess of lines (a file, a pipe)."""
    if _in_notebook():
        from tqdm.auto import tqdm  # widgets; without ipywidgets the plain bar

        return tqdm
    if sys.stderr.isatty():
        from tqdm import tqdm as terminal_tqdm

        return terminal_tqdm
    return None
