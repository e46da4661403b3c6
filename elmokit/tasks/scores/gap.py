"""GAP's scores: whether a system links a pronoun to each of two names (Webster et al. 2018).

The counts follow ``gap_scorer.py`` of the data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elmokit.tasks.scores.counts import Counts

Answers = tuple[bool, bool]
"""Whether the pronoun refers to name A, and whether it refers to name B."""


@dataclass(frozen=True)
class GapScores:
    """Counts over all names, and by the gender of the pronoun."""

    overall: Counts
    masculine: Counts
    feminine: Counts

    @property
    def bias(self) -> float:
        """Feminine F1 divided by masculine F1, or 0 if the latter is 0."""
        return self.feminine.f1 / self.masculine.f1 if self.masculine.f1 else 0.0


def gap_scores(gold: Sequence[Answers], predicted: Sequence[Answers], is_feminine: Sequence[bool]) -> GapScores:
    """Score the answers to questions, of which each name is one decision."""
    counted = {gender: [0, 0, 0] for gender in (False, True)}
    for gold_answers, answers, gender in zip(gold, predicted, is_feminine, strict=True):
        correct_predicted_gold = counted[gender]
        for expected, answer in zip(gold_answers, answers, strict=True):
            correct_predicted_gold[0] += expected and answer
            correct_predicted_gold[1] += answer
            correct_predicted_gold[2] += expected
    masculine, feminine = Counts(*counted[False]), Counts(*counted[True])
    both = [one + other for one, other in zip(*counted.values(), strict=True)]
    return GapScores(Counts(*both), masculine, feminine)
