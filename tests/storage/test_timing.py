from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from elmokit.storage.progress import ENOUGH_SECONDS, seconds_per_unit


def _pieces(now: list[float], *steps: tuple[float, float]) -> Iterator[Callable[[], float]]:
    for seconds, n_units in steps:

        def piece(seconds: float = seconds, n_units: float = n_units) -> float:
            now[0] += seconds
            return n_units

        yield piece


@pytest.mark.parametrize("stalled", range(5))
def test_one_piece_that_a_busy_machine_holds_up_changes_nothing(stalled: int) -> None:
    now = [0.0]
    steps = [(0.01 if number != stalled else 0.9, 100.0) for number in range(5)]
    assert seconds_per_unit(_pieces(now, *steps), lambda: now[0]) == pytest.approx(0.0001)


def test_pieces_may_differ_in_size() -> None:
    now = [0.0]
    assert seconds_per_unit(_pieces(now, (0.2, 100), (0.02, 10), (0.03, 15)), lambda: now[0]) == pytest.approx(0.002)


def test_no_more_than_two_long_pieces_are_run_and_one_is_enough_if_there_is_no_other() -> None:
    now = [0.0]
    assert seconds_per_unit(_pieces(now, *[(ENOUGH_SECONDS, 1.0)] * 5), lambda: now[0]) == ENOUGH_SECONDS
    assert now == [2 * ENOUGH_SECONDS]
    assert seconds_per_unit(_pieces(now, (3.0, 1.0)), lambda: now[0]) == 3.0
