"""Coreference scores against the test cases that come with the reference scorer.

The cases and their expected values are those of the scorer's own test suite (``test/TestCases.README``); where it
gives no value for B-cubed or CEAF-e, it is worked out by hand from the definition and marked so.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elmokit.tasks.scores.coref import Clusters, Ratio, coref_scores

pytest.importorskip("scipy")

A = "a bc def"
B_CUBED_PAPER = "12345 67 89ABC"


def clusters(text: str) -> Clusters:
    """Return clusters of mentions, of which each is one character."""
    return [[(ord(letter), ord(letter)) for letter in word] for word in text.split()]


def harmonic(recall: float, precision: float) -> float:
    return 2 * recall * precision / (recall + precision) if recall + precision else 0.0


def check(ratio: Ratio, recall: float, precision: float) -> None:
    assert (ratio.recall / 100, ratio.precision / 100) == pytest.approx((recall, precision), abs=6e-6)
    assert ratio.f1 / 100 == pytest.approx(harmonic(recall, precision), abs=6e-6)


@pytest.mark.parametrize(
    ("case", "key", "response", "recall", "precision"),
    [
        ("A1", A, "a bc def", 3 / 3, 3 / 3),
        ("A2", A, "a de", 1 / 3, 1 / 1),
        ("A3", A, "a bcx defy z", 3 / 3, 3 / 5),
        ("A4", A, "a bcx dy z", 1 / 3, 1 / 3),
        ("A5", A, "a bcxB dy z", 1 / 3, 1 / 4),
        ("A6", A, "a bcx dy Bz", 1 / 3, 1 / 4),
        ("A7", A, "a bcxb dy z", 1 / 3, 1 / 3),
        ("A8", A, "a bcx dy bz", 1 / 3, 1 / 3),
        ("A9", A, "a bcx dy bbbbbbbbbbz", 1 / 3, 1 / 3),
        ("A10", A, "a b c d e f", 0, 0),
        ("A11", A, "abcdef", 3 / 3, 3 / 5),
        ("A12", A, "a x y c d e z", 0, 0),
        ("A13", A, "axycdez", 1 / 3, 1 / 6),
        ("D1", B_CUBED_PAPER, "12345 6789ABC", 9 / 9, 9 / 10),
        ("E1", B_CUBED_PAPER, "1234589ABC 67", 9 / 9, 9 / 10),
        ("F1", "ABCD", "AB CD", 2 / 3, 2 / 2),
        ("G1", "AB CD", "ABCD", 2 / 2, 2 / 3),
        ("H1", "ABCD", "ABCD", 1, 1),
        ("I1", "ABCD", "AB CD", 2 / 3, 2 / 2),
        ("J1", "ABC", "AC", 1 / 2, 1 / 1),
        ("K1", "BCDEGHJ", "ABC DEF GHI", 3 / 6, 3 / 6),
        ("L1", "ABC DEFG", "AB CD FGH", 2 / 5, 2 / 4),
        ("M1", "abcdef", "abcdef", 1, 1),
        ("M2", "abcdef", "a b c d e f", 0, 0),
        ("M5", "abcdef", "a b c x y z", 0, 0),
        ("N1", "a b c d e f", "a b c d e f", 0, 0),
        ("N4", "a b c d e f", "a b c x y z", 0, 0),
    ],
)
def test_muc_equals_the_scorers_test_cases(case: str, key: str, response: str, recall: float, precision: float) -> None:
    check(coref_scores([clusters(key)], [clusters(response)]).muc, recall, precision)


@pytest.mark.parametrize(
    ("case", "key", "response", "recall", "precision"),
    [
        ("A1", A, "a bc def", 6 / 6, 6 / 6),
        ("A2", A, "a de", (7 / 3) / 6, 3 / 3),
        ("A3", A, "a bcx defy z", 6 / 6, (4 + 7 / 12) / 9),
        ("A4", A, "a bcx dy z", (3 + 1 / 3) / 6, (1 + 4 / 3 + 1 / 2) / 7),
        ("A5", A, "a bcxB dy z", (3 + 1 / 3) / 6, 2.5 / 8),
        ("A6", A, "a bcx dy Bz", (10 / 3) / 6, (1 + 4 / 3 + 1 / 2) / 8),
        ("A7", A, "a bcxb dy z", (10 / 3) / 6, (1 + 4 / 3 + 1 / 2) / 7),
        ("A8", A, "a bcx dy bz", (10 / 3) / 6, (1 + 4 / 3 + 1 / 2) / 7),
        ("A9", A, "a bcx dy bbbbbbbbbbz", (10 / 3) / 6, (1 + 4 / 3 + 1 / 2) / 7),
        ("A10", A, "a b c d e f", 3 / 6, 6 / 6),
        ("A11", A, "abcdef", 6 / 6, (1 / 6 + 2 * 2 / 6 + 3 * 3 / 6) / 6),
        ("A12", A, "a x y c d e z", (1 + 1 / 2 + 2 / 3) / 6, 4 / 7),
        ("A13", A, "axycdez", (1 + 1 / 2 + 2 * 2 / 3) / 6, (1 / 7 + 1 / 7 + 2 * 2 / 7) / 7),
        ("D1", B_CUBED_PAPER, "12345 6789ABC", 12 / 12, 16 / 21),
        ("E1", B_CUBED_PAPER, "1234589ABC 67", 1, 7 / 12),
        ("M1", "abcdef", "abcdef", 1, 1),
        ("N1", "a b c d e f", "a b c d e f", 1, 1),
    ],
)
def test_b_cubed_equals_the_scorers_test_cases(
    case: str, key: str, response: str, recall: float, precision: float
) -> None:
    check(coref_scores([clusters(key)], [clusters(response)]).b_cubed, recall, precision)


@pytest.mark.parametrize(
    ("case", "key", "response", "recall", "precision"),
    [
        ("A1", A, "a bc def", 1, 1),
        ("A2", A, "a de", 0.6, 0.9),
        ("A3", A, "a bcx defy z", 0.88571, 0.66429),
        ("A4", A, "a bcx dy z", 0.73333, 0.55),
        ("A5", A, "a bcxB dy z", 0.68889, 0.51667),
        ("A6", A, "a bcx dy Bz", 0.73333, 0.55),
        ("A7", A, "a bcxb dy z", 0.73333, 0.55),
        ("A8", A, "a bcx dy bz", 0.73333, 0.55),
        ("A9", A, "a bcx dy bbbbbbbbbbz", 0.73333, 0.55),
        ("M1", "abcdef", "abcdef", 1, 1),
        ("N1", "a b c d e f", "a b c d e f", 1, 1),
        ("by hand: one cluster of six against six of one", "abcdef", "a b c d e f", 2 / 7, 2 / 7 / 6),
        ("by hand: each response cluster fits both keys", "AB CD", "AC BD", 1 / 2, 1 / 2),
    ],
)
def test_ceaf_e_equals_the_scorers_test_cases(
    case: str, key: str, response: str, recall: float, precision: float
) -> None:
    check(coref_scores([clusters(key)], [clusters(response)]).ceaf_e, recall, precision)


def test_a_perfect_answer_with_singletons_scores_100_everywhere() -> None:
    scores = coref_scores([clusters(A)], [clusters(A)])
    assert scores.average_f1 == 100
    assert scores.mentions.f1 == 100


def test_documents_are_summed_before_dividing() -> None:
    key, response = [clusters("abcd"), clusters("ab")], [clusters("ab cd"), clusters("ab")]
    assert coref_scores(key, response).muc.recall == pytest.approx(100 * 3 / 4)  # not the mean of 2/3 and 1


def test_an_invented_mention_that_is_repeated_counts_each_time() -> None:
    scores = coref_scores([clusters("ab")], [clusters("abx x")])
    assert scores.b_cubed.precision_whole == 4
    assert scores.mentions.precision_whole == 3


def test_empty_documents_score_zero() -> None:
    scores = coref_scores([[], clusters("ab")], [[], []])
    assert (scores.muc.f1, scores.b_cubed.f1, scores.ceaf_e.f1, scores.average_f1) == (0, 0, 0, 0)
    assert coref_scores([], []).average_f1 == 0


partitions = st.lists(st.integers(0, 3), max_size=6).map(
    lambda labels: [
        [(place, place) for place, label in enumerate(labels) if label == wanted] for wanted in sorted(set(labels))
    ]
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(partitions, partitions)
def test_changing_sides_swaps_recall_and_precision(key: Clusters, response: Clusters) -> None:
    one, other = coref_scores([key], [response]), coref_scores([response], [key])
    for name in ("muc", "b_cubed", "ceaf_e", "mentions"):
        there, back = getattr(one, name), getattr(other, name)
        assert (there.recall, there.precision) == pytest.approx((back.precision, back.recall))
