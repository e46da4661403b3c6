"""The share of labels that are right."""

from __future__ import annotations

from collections.abc import Sequence

from elmokit.tasks.scores.counts import percent


def accuracy(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Percent of the places where both lists hold the same label; 0 of none.

    Raises:
        ValueError: lists of different length.
    """
    return percent(sum(one == other for one, other in zip(gold, predicted, strict=True)), len(gold))
