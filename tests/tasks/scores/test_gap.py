"""GAP's scores equal those counted by hand."""

from __future__ import annotations

import pytest

from elmokit.tasks.scores.counts import Counts
from elmokit.tasks.scores.gap import gap_scores


def test_each_name_is_a_decision_counted_by_gender() -> None:
    gold = [(True, False), (False, False), (False, True)]
    predicted = [(True, True), (False, True), (False, True)]
    scores = gap_scores(gold, predicted, [True, True, False])
    assert scores.overall == Counts(2, 4, 2)
    assert scores.feminine == Counts(1, 3, 1)
    assert scores.masculine == Counts(1, 1, 1)
    assert scores.bias == pytest.approx(0.5)


def test_no_questions_score_zero() -> None:
    assert gap_scores([], [], []).overall.f1 == 0
    assert gap_scores([(True, False)], [(True, False)], [True]).bias == 0
