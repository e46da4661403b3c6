"""Precision, recall and F1 from what they are made of."""

from __future__ import annotations

from dataclasses import dataclass


def percent(part: float, whole: float) -> float:
    """``100 * part / whole``; 0 where there is nothing to divide by, as every official script has it."""
    return 100 * part / whole if whole else 0.0


def f1(precision: float, recall: float) -> float:
    """The harmonic mean; 0 where both are 0."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@dataclass(frozen=True)
class Counts:
    """How many were right, found and expected; precision, recall and F1 in percent."""

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
