"""GAP's scores: whether a system links a pronoun to each of two names (Webster et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elmokit.tasks.scores.counts import Counts

Answers = tuple[bool, bool]
"""Whether the pronoun means name A, and whether it means name B."""


@dataclass(frozen=True)
class GapScores:
    """Over all names, and by the pronoun's gender; ``bias`` is feminine F1 over masculine, 0 where undefined."""

    overall: Counts
    masculine: Counts
    feminine: Counts

    @property
    def bias(self) -> float:
        return self.feminine.f1 / self.masculine.f1 if self.masculine.f1 else 0.0


def gap_scores(gold: Sequence[Answers], predicted: Sequence[Answers], is_feminine: Sequence[bool]) -> GapScores:
    """Score questions: each name is one decision.

    Raises:
        ValueError: questions without a counterpart.
    """
    counted = {gender: [0, 0, 0] for gender in (False, True)}
    for right, found, gender in zip(gold, predicted, is_feminine, strict=True):
        numbers = counted[gender]
        for wanted, given in zip(right, found, strict=True):
            numbers[0] += wanted and given
            numbers[1] += given
            numbers[2] += wanted
    masculine, feminine = Counts(*counted[False]), Counts(*counted[True])
    both = [one + other for one, other in zip(*counted.values(), strict=True)]
    return GapScores(Counts(*both), masculine, feminine)
