"""Scores equal what the official programs count: conlleval, srl-eval.pl, SQuAD's scripts, the coreference scorer."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elmokit.tasks.scores import (
    Clusters,
    Counts,
    accuracy,
    chunk_f1,
    chunk_f1_per_label,
    coref_scores,
    normalize_answer,
    squad_v1,
    squad_v2,
    srl_eval,
)
from elmokit.tasks.tags import Chunk, read_chunks


def counted(gold: str, predicted: str) -> tuple[int, int, int]:
    """Right, found and expected chunks; sentences divided by bars."""
    sides = [[sentence.split() for sentence in side.split("|")] for side in (gold, predicted)]
    overall = chunk_f1(*([read_chunks(tags) for tags in side] for side in sides))
    return overall.correct, overall.predicted, overall.gold


@pytest.mark.parametrize(
    ("what", "gold", "predicted", "expected"),
    [
        ("IOB2", "B-PER I-PER O B-LOC", "B-PER I-PER O B-LOC", (2, 2, 2)),
        ("IOB1", "I-PER I-PER B-PER O", "I-PER I-PER I-PER O", (0, 1, 2)),
        ("the two schemes mixed", "B-PER I-PER O", "I-PER I-PER O", (1, 1, 1)),
        ("I after O begins a chunk", "O B-X I-X", "O I-X I-X", (1, 1, 1)),
        ("a change of type begins a chunk", "B-X I-Y", "B-X B-Y", (2, 2, 2)),
        ("a chunk cut in two", "B-X I-X I-X", "B-X B-X I-X", (0, 2, 1)),
        ("right bounds, wrong type", "B-X I-X", "B-Y I-Y", (0, 1, 1)),
        ("right start, wrong end", "B-X I-X O", "B-X O O", (0, 1, 1)),
        ("right end, wrong start", "O B-X I-X", "O O B-X", (0, 1, 1)),
        ("a sentence's end ends a chunk", "B-X I-X|I-X", "B-X I-X|I-X", (2, 2, 2)),
        ("a chunk does not run on", "B-X|O", "B-X|I-X", (1, 2, 1)),
        ("BIOUL of different types survives", "U-X U-Y B-Z L-Z", "U-X U-Y B-Z L-Z", (3, 3, 3)),
        ("hyphens in a type", "B-a-b I-a-b", "B-a-b I-a-b", (1, 1, 1)),
        ("no type", "B I O B", "B I O O", (1, 1, 2)),
        ("nothing", "O O", "O O", (0, 0, 0)),
    ],
)
def test_chunks_are_counted_like_conlleval(
    what: str, gold: str, predicted: str, expected: tuple[int, int, int]
) -> None:
    assert counted(gold, predicted) == expected


def test_scores_by_type() -> None:
    gold, predicted = (
        [read_chunks(tags)] for tags in (["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "I-PER", "B-LOC", "O"])
    )
    assert chunk_f1_per_label(gold, predicted) == {"LOC": Counts(0, 1, 1), "PER": Counts(1, 1, 1)}
    assert chunk_f1(gold, predicted).f1 == 50


def test_chunks_of_bioul_are_counted_correctly() -> None:
    gold, predicted = [[Chunk(0, 1, "X"), Chunk(1, 2, "X")]], [[Chunk(0, 1, "X"), Chunk(1, 2, "Y")]]
    assert chunk_f1(gold, predicted) == Counts(1, 2, 2)


def chunks(text: str) -> list[Chunk]:
    """``0-1:A0 3:V`` (first and last token) as chunks."""
    found = []
    for piece in text.split():
        bounds, label = piece.split(":")
        start, _, end = bounds.partition("-")
        found.append(Chunk(int(start), int(end or start) + 1, label))
    return found


@pytest.mark.parametrize(
    ("what", "gold", "predicted", "expected"),
    [
        ("all right, V left out", "0-1:A0 2:V 3-4:A1", "0-1:A0 2:V 3-4:A1", (2, 2, 2)),
        ("wrong role", "0:A0 1:V", "0:A1 1:V", (0, 1, 1)),
        ("wrong bounds", "0-1:A0 2:V", "0:A0 2:V", (0, 1, 1)),
        ("a missed V costs nothing", "0:A0 1:V", "0:A0", (1, 1, 1)),
        ("pieces of one argument", "0:A1 1:V 3:C-A1", "0:A1 1:V 3:C-A1", (1, 1, 1)),
        ("one piece is wrong", "0:A1 1:V 3:C-A1", "0:A1 1:V 3-4:C-A1", (0, 1, 1)),
        ("the gap is wrong, the outer bounds are right", "0:A1 2:V 3-4:C-A1", "0-1:A1 2:V 3-4:C-A1", (0, 1, 1)),
        ("a piece is missing", "0:A1 1:V 3:C-A1", "0:A1 1:V", (0, 1, 1)),
        ("three pieces", "0:A1 1:V 3:C-A1 5:C-A1", "0:A1 1:V 3:C-A1 5:C-A1", (1, 1, 1)),
        ("pieces with different roles", "0:A1 1:V 3:C-A1", "0:A1 1:V 3:A1", (0, 2, 1)),
        ("a continuation without its argument is the argument", "1:V 3:C-A1", "1:V 3:A1", (1, 1, 1)),
        ("a continuation joins the last of two", "0:A1 1:A1 2:V 3:C-A1", "0:A1 1:A1 2:V", (1, 2, 2)),
        ("a reference is a role of its own", "0:A1 1:R-A1 2:V", "0:A1 2:V", (1, 1, 2)),
        ("R- and C- of one role", "0:A1 1:R-A1 2:V 3:C-A1", "0:A1 1:R-A1 2:V 3:C-A1", (2, 2, 2)),
        ("a continued reference", "0:R-A1 1:V 3:C-R-A1", "0:R-A1 1:V 3:C-R-A1", (1, 1, 1)),
        ("C-V is part of the predicate", "0:A0 1:V 3:C-V", "0:A0 1:V", (1, 1, 1)),
        ("C-V alone counts for nothing either", "0:A0 1:V", "0:A0 3:C-V", (1, 1, 1)),
        ("C-AM-TMP does not join AM-LOC", "0:AM-LOC 1:V 3:C-AM-TMP", "0:AM-LOC 1:V 3:AM-TMP", (2, 2, 2)),
        ("no argument at all", "1:V", "1:V", (0, 0, 0)),
    ],
)
def test_arguments_are_counted_like_srl_eval(
    what: str, gold: str, predicted: str, expected: tuple[int, int, int]
) -> None:
    assert srl_eval([{1: chunks(gold)}], [{1: chunks(predicted)}]).overall == Counts(*expected)


def test_a_missed_predicate_loses_its_arguments_and_one_that_is_only_predicted_is_ignored() -> None:
    gold = [{0: chunks("0:V 1:A1"), 1: chunks("0:A0 1:V 2:A1")}]
    assert srl_eval(gold, [{0: chunks("0:V 1:A1")}]).overall == Counts(1, 1, 3)
    assert srl_eval([{}], [{2: chunks("0:A0 2:V")}]).overall == Counts(0, 0, 0)


def test_scores_by_role_and_perfect_propositions() -> None:
    gold = [{1: chunks("0:A0 1:V 2:A1")}, {1: chunks("0:A0 1:V")}]
    scores = srl_eval(gold, [{1: chunks("0:A0 1:V 2:A2")}, {1: chunks("0:A0 1:V")}])
    assert scores.by_role == {"A0": Counts(2, 2, 2), "A1": Counts(0, 0, 1), "A2": Counts(0, 1, 0)}
    assert (scores.n_propositions, scores.perfect) == (2, 50)


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


def test_v2_scores_empty_answers() -> None:
    scores = squad_v2([[], [], ["x"], ["the"]], ["", "guess", "", "a"])
    assert scores.unanswerable.exact_match == 50
    assert scores.unanswerable.f1 == 50
    assert scores.answerable.f1 == 50  # "the" and "a" are both empty: right in v2.0
    assert scores.overall.n_questions == 4


def test_a_missing_prediction_is_wrong_in_v1_and_left_out_in_v2_and_no_questions_score_zero() -> None:
    assert squad_v1([["x"], ["y"]], ["x", None]).exact_match == 50
    assert squad_v2([["x"], ["y"]], ["x", None]).overall.exact_match == 100
    assert squad_v1([], []).f1 == 0
    assert squad_v2([], []).overall.f1 == 0


def test_accuracy_is_a_percentage() -> None:
    assert accuracy(["a", "b", "b"], ["a", "b", "a"]) == pytest.approx(200 / 3)
    assert accuracy([], []) == 0
    with pytest.raises(ValueError, match="zip"):
        accuracy(["a"], [])


pytest.importorskip("scipy")

A = "a bc def"
B_CUBED_PAPER = "12345 67 89ABC"


def clusters(text: str) -> Clusters:
    """Return clusters of mentions, of which each is one character."""
    return [[(ord(letter), ord(letter)) for letter in word] for word in text.split()]


# The test cases of the official scorer, and two by hand: recall and precision of MUC, B-cubed and CEAF-e.
Pair = tuple[float, float] | None
BY_THE_SCORER: list[tuple[str, str, str, Pair, Pair, Pair]] = [
    ("A1", A, "a bc def", (1, 1), (1, 1), (1, 1)),
    ("A2", A, "a de", (1 / 3, 1), ((7 / 3) / 6, 1), (0.6, 0.9)),
    ("A3", A, "a bcx defy z", (1, 3 / 5), (1, (4 + 7 / 12) / 9), (0.88571, 0.66429)),
    ("A4", A, "a bcx dy z", (1 / 3, 1 / 3), ((10 / 3) / 6, (1 + 4 / 3 + 1 / 2) / 7), (0.73333, 0.55)),
    ("A5", A, "a bcxB dy z", (1 / 3, 1 / 4), ((10 / 3) / 6, 2.5 / 8), (0.68889, 0.51667)),
    ("A6", A, "a bcx dy Bz", (1 / 3, 1 / 4), ((10 / 3) / 6, (1 + 4 / 3 + 1 / 2) / 8), (0.73333, 0.55)),
    ("A7", A, "a bcxb dy z", (1 / 3, 1 / 3), ((10 / 3) / 6, (1 + 4 / 3 + 1 / 2) / 7), (0.73333, 0.55)),
    ("A8", A, "a bcx dy bz", (1 / 3, 1 / 3), ((10 / 3) / 6, (1 + 4 / 3 + 1 / 2) / 7), (0.73333, 0.55)),
    ("A9", A, "a bcx dy bbbbbbbbbbz", (1 / 3, 1 / 3), ((10 / 3) / 6, (1 + 4 / 3 + 1 / 2) / 7), (0.73333, 0.55)),
    ("A10", A, "a b c d e f", (0, 0), (3 / 6, 1), None),
    ("A11", A, "abcdef", (1, 3 / 5), (1, (1 / 6 + 2 * 2 / 6 + 3 * 3 / 6) / 6), None),
    ("A12", A, "a x y c d e z", (0, 0), ((1 + 1 / 2 + 2 / 3) / 6, 4 / 7), None),
    ("A13", A, "axycdez", (1 / 3, 1 / 6), ((1 + 1 / 2 + 4 / 3) / 6, (1 / 7 + 1 / 7 + 4 / 7) / 7), None),
    ("D1", B_CUBED_PAPER, "12345 6789ABC", (1, 9 / 10), (1, 16 / 21), None),
    ("E1", B_CUBED_PAPER, "1234589ABC 67", (1, 9 / 10), (1, 7 / 12), None),
    ("F1", "ABCD", "AB CD", (2 / 3, 1), None, None),
    ("G1", "AB CD", "ABCD", (1, 2 / 3), None, None),
    ("H1", "ABCD", "ABCD", (1, 1), None, None),
    ("I1", "ABCD", "AB CD", (2 / 3, 1), None, None),
    ("J1", "ABC", "AC", (1 / 2, 1), None, None),
    ("K1", "BCDEGHJ", "ABC DEF GHI", (3 / 6, 3 / 6), None, None),
    ("L1", "ABC DEFG", "AB CD FGH", (2 / 5, 2 / 4), None, None),
    ("M1", "abcdef", "abcdef", (1, 1), (1, 1), (1, 1)),
    ("M2", "abcdef", "a b c d e f", (0, 0), None, (2 / 7, 2 / 7 / 6)),  # CEAF-e by hand
    ("M5", "abcdef", "a b c x y z", (0, 0), None, None),
    ("N1", "a b c d e f", "a b c d e f", (0, 0), (1, 1), (1, 1)),
    ("N4", "a b c d e f", "a b c x y z", (0, 0), None, None),
    ("each response cluster fits both keys", "AB CD", "AC BD", None, None, (1 / 2, 1 / 2)),
]


@pytest.mark.parametrize(("case", "key", "response", "muc", "b_cubed", "ceaf_e"), BY_THE_SCORER)
def test_coreference_equals_the_scorers_test_cases(
    case: str, key: str, response: str, muc: Pair, b_cubed: Pair, ceaf_e: Pair
) -> None:
    scores = coref_scores([clusters(key)], [clusters(response)])
    for found, expected in ((scores.muc, muc), (scores.b_cubed, b_cubed), (scores.ceaf_e, ceaf_e)):
        if expected is not None:
            recall, precision = expected
            f1 = 2 * recall * precision / (recall + precision) if recall + precision else 0.0
            ratios = [found.recall / 100, found.precision / 100, found.f1 / 100]
            assert ratios == pytest.approx([recall, precision, f1], abs=6e-6)


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
