"""Predictions of one class among several."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

Probabilities = dict[str, float]
"""Of each class, by its name."""


def probabilities_of(scores: Tensor, classes: Sequence[str]) -> list[Probabilities]:
    """From ``(batch, classes)`` scores to each row's probabilities."""
    return [dict(zip(classes, row, strict=True)) for row in scores.softmax(dim=-1).tolist()]


def likeliest(probabilities: Probabilities) -> str:
    """The class with the highest probability; the first of equals."""
    return max(probabilities, key=probabilities.__getitem__)
