"""SQuAD scores follow the official definitions; accuracy is a percentage."""

from __future__ import annotations

import pytest

from elmokit.tasks.scores.counts import accuracy
from elmokit.tasks.scores.squad import normalize_answer, squad_v1, squad_v2


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Old\tchain.", "old chain"),
        ("a AN the", ""),
        ("theatre", "theatre"),
        ("the-end", "theend"),
        ("U.S.", "us"),
        ("$1,000", "1000"),
        ("Beyonc\u00e9 \u201cQ\u201d", "beyonc\u00e9 \u201cq\u201d"),
        ("anthem an apple", "anthem apple"),
    ],
)
def test_answers_are_normalized_like_the_official_script(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("gold", "answer", "exact", "f1"),
    [
        (["in May", "May"], "May", 100, 100),
        (["in May"], "May", 0, 200 / 3),
        (["The old chain"], "old chain!", 100, 100),
        (["old chain"], "chain chain", 0, 50),  # a multiset: one chain is shared
        (["one", "two three"], "three", 0, 200 / 3),
        (["x"], "y", 0, 0),
        (["the"], "a", 100, 0),  # both empty once normalized: exact, but F1 0 in v1.1
    ],
)
def test_v1_takes_the_best_gold_answer(gold: list[str], answer: str, exact: float, f1: float) -> None:
    scores = squad_v1([gold], [answer])
    assert (scores.exact_match, scores.f1) == pytest.approx((exact, f1))


def test_v1_counts_a_missing_prediction_as_wrong() -> None:
    assert squad_v1([["x"], ["y"]], ["x", None]).exact_match == 50


def test_v2_scores_empty_answers() -> None:
    scores = squad_v2([[], [], ["x"], ["the"]], ["", "guess", "", "a"])
    assert scores.unanswerable.exact_match == 50
    assert scores.unanswerable.f1 == 50
    assert scores.answerable.f1 == 50  # "the" and "a" are both empty: right in v2.0
    assert scores.overall.n_questions == 4


def test_v2_leaves_a_missing_prediction_out() -> None:
    assert squad_v2([["x"], ["y"]], ["x", None]).overall.exact_match == 100


def test_no_questions_score_zero() -> None:
    assert squad_v1([], []).f1 == 0
    assert squad_v2([], []).overall.f1 == 0


def test_accuracy_is_a_percentage() -> None:
    assert accuracy(["a", "b", "b"], ["a", "b", "a"]) == pytest.approx(200 / 3)
    assert accuracy([], []) == 0
    with pytest.raises(ValueError, match="zip"):
        accuracy(["a"], [])
