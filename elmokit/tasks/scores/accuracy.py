"""Accuracy: the percentage of correct labels."""

from __future__ import annotations

from collections.abc import Sequence

from elmokit.tasks.scores.counts import percent


def accuracy(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Return the percentage of positions at which both lists have the same label, or 0 if the lists are empty."""
    return percent(sum(one == other for one, other in zip(gold, predicted, strict=True)), len(gold))
