"""SRL F1 equals what the Perl program srl-eval.pl counts."""

from __future__ import annotations

import pytest

from elmokit.tasks.scores.chunks import Chunk
from elmokit.tasks.scores.counts import Counts
from elmokit.tasks.scores.srl import srl_eval


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


def test_a_missed_predicate_loses_all_its_arguments() -> None:
    gold = [{1: chunks("0:A0 1:V 2:A1"), 4: chunks("3:A0 4:V")}]
    assert srl_eval(gold, [{4: chunks("3:A0 4:V")}]).overall == Counts(1, 1, 3)


def test_a_predicate_that_is_only_predicted_is_ignored() -> None:
    assert srl_eval([{}], [{2: chunks("0:A0 2:V")}]).overall == Counts(0, 0, 0)


def test_the_predicate_may_be_the_first_token() -> None:
    assert srl_eval([{0: chunks("0:V 1:A1")}], [{0: chunks("0:V 1:A1")}]).overall.f1 == 100


def test_scores_by_role_and_perfect_propositions() -> None:
    gold = [{1: chunks("0:A0 1:V 2:A1")}, {1: chunks("0:A0 1:V")}]
    scores = srl_eval(gold, [{1: chunks("0:A0 1:V 2:A2")}, {1: chunks("0:A0 1:V")}])
    assert scores.by_role == {"A0": Counts(2, 2, 2), "A1": Counts(0, 0, 1), "A2": Counts(0, 1, 0)}
    assert (scores.n_propositions, scores.perfect) == (2, 50)
