"""Precision, recall and F1 from counts."""

from __future__ import annotations

from dataclasses import dataclass


def percent(part: float, whole: float) -> float:
    """Return ``100 * part / whole``, or 0 if ``whole`` is 0, as every official script does."""
    return 100 * part / whole if whole else 0.0


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
