"""Rows are reversed at their own length."""

from __future__ import annotations

import torch

from elmokit.network.lstm_training import reorder, reversed_positions

MASK = torch.tensor([[True] * 5, [True, True, True, False, False], [False] * 5])


def test_each_row_is_reversed_and_padding_stays_in_place() -> None:
    assert reversed_positions(MASK).tolist() == [[4, 3, 2, 1, 0], [2, 1, 0, 3, 4], [0, 1, 2, 3, 4]]


def test_reversing_twice_changes_nothing() -> None:
    positions, values = reversed_positions(MASK), torch.randn(3, 5, 2)
    once = reorder(values, positions)
    assert torch.equal(once[1, :3], values[1, :3].flip(0))
    assert torch.equal(reorder(once, positions), values)
