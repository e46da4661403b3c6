"""Measure how long a piece of work takes, to predict how long much of it will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

MIN_PIECES = 2
ENOUGH_SECONDS = 1.0


def seconds_per_unit(pieces: Iterable[Callable[[], float]], clock: Callable[[], float] = time.perf_counter) -> float:
    """Run pieces of work and return the lower median of their seconds per unit.

    The median, because on a busy machine one piece in a few takes many times as long as the others: the mean of a short
    measurement then predicts minutes for what takes seconds. No more pieces are run when a second has passed, but two
    at least.

    Args:
        pieces: Functions that do some work, and return how many units it was. What happens only once, such as
            compiling, should have happened before.
        clock: Returns the time in seconds.
    """
    rates: list[float] = []
    total = 0.0
    for piece in pieces:
        started = clock()
        n_units = piece()
        seconds = clock() - started
        rates.append(seconds / n_units)
        total += seconds
        if len(rates) >= MIN_PIECES and total >= ENOUGH_SECONDS:
            break
    return sorted(rates)[(len(rates) - 1) // 2]
