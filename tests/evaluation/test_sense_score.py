from __future__ import annotations

import pytest

from elmokit.evaluation.senses import score_senses

GOLD = {
    "d0.t0": ["long%3:00:02::", "long%5:00:00:tall:00"],
    "d0.t1": ["play%1:10:01::"],
    "d0.t2": ["play%2:33:00::"],
    "d0.t3": ["bank%1:17:01::"],
    "d0.t4": ["group%1:03:00::"],
}


def test_scores_are_those_that_the_official_program_prints() -> None:
    """P, R and F1 as ``Scorer.java`` of the unified framework printed them for these two files."""
    answers = {
        "d0.t0": ["long%5:00:00:tall:00"],
        "d0.t1": ["play%1:10:01::", "play%1:04:05::"],
        "d0.t2": ["play%2:36:12::"],
        "d0.t3": ["bank%1:17:01::"],
        "d9.t9": ["bank%1:17:01::"],
    }
    assert score_senses(GOLD, answers) == pytest.approx((0.625, 0.5, 0.5555555555555556), abs=1e-15)


def test_one_of_several_gold_senses_is_enough() -> None:
    assert score_senses(GOLD, {name: keys[-1:] for name, keys in GOLD.items()}) == (1, 1, 1)


def test_a_sense_given_twice_counts_once() -> None:
    assert score_senses(GOLD, {"d0.t1": ["play%1:10:01::", "play%1:10:01::", "x"]}).precision == 0.5


def test_no_answer_is_no_wrong_answer() -> None:
    score = score_senses(GOLD, {"d0.t1": ["play%1:10:01::"], "d0.t2": []})
    assert (score.precision, score.recall) == (1, 0.2)
    assert score_senses(GOLD, {}) == (0, 0, 0)
    assert score_senses({}, {"d0.t1": ["x"]}) == (0, 0, 0)
