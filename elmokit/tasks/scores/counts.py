"""Accuracy, and precision, recall and F1 from counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def percent(part: float, whole: float) -> float:
    """Return ``100 * part / whole``, or 0 if ``whole`` is 0, as every official script does."""
    return 100 * part / whole if whole else 0.0


def accuracy(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Return the percentage of positions at which both lists have the same label, or 0 if the lists are empty."""
    return percent(sum(one == other for one, other in zip(gold, predicted, strict=True)), len(gold))


def f1(precision: float, recall: float) -> float:
    """Return the harmonic mean of precision and recall, or 0 if both are 0."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@dataclass(frozen=True)
class Counts:
    """The numbers of correct, predicted and gold items, with precision, recall and F1 in percent."""

    correct: int = 0
    predicted: int = 0
    gold: int = 0

    @property
    def precision(self) -> float:
        return percent(self.correct, self.predicted)

    @property
    def recall(self) -> float:
        return percent(self.correct, self.gold)

    @property
    def f1(self) -> float:
        return f1(self.precision, self.recall)
