"""All four formats of semantic roles give the same result, and errors name the line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elmokit.tasks.readers.srl import Proposition, _tags_from_brackets, parse_proposition, read_srl
from elmokit.tasks.scores.chunks import chunks_of
from elmokit.text.columns import ColumnSentence
from tests.helpers.srl_columns import CONLL_2012

TOKENS = ("Mira", "fixed", "her", "bike", ".")
SENTENCE = ColumnSentence("x", 1, [])
FIXED = ("B-ARG0", "B-V", "B-ARG1", "I-ARG1", "O")

CONLL_2005 = """Mira  -   (A0*)
fixed fix (V*)
her   -   (A1*
bike  -   *)
.     -   *

Yes   -
"""
PROPBANK = """# sent_id = demo-1
Mira\t-\tB-ARG0
fixed\tfix.01\tB-V
her\t-\tB-ARG1
bike\t-\tI-ARG1
.\t-\tO

# sent_id = demo-2
Yes\t-

"""
ONE_LINE = "1 Mira fixed her bike . ||| B-ARG0 B-V B-ARG1 I-ARG1 O\n"


def read(folder: Path, text: str) -> list[Proposition]:
    path = folder / "roles"
    path.write_text(text)
    return list(read_srl(str(path)))


@pytest.mark.parametrize("text", [CONLL_2012, CONLL_2005.replace("A0", "ARG0").replace("A1", "ARG1"), PROPBANK])
def test_every_column_format_gives_the_same_propositions(text: str, tmp_path: Path) -> None:
    with_roles, without = read(tmp_path, text)
    assert (with_roles.tokens, with_roles.predicate, with_roles.tags) == (TOKENS, 1, FIXED)
    assert (without.tokens, without.predicate, without.tags) == (("Yes",), None, ("O",))


def test_the_one_line_format_gives_them_too(tmp_path: Path) -> None:
    (found,) = read(tmp_path, ONE_LINE)
    assert (found.tokens, found.predicate, found.tags) == (TOKENS, 1, FIXED)
    assert parse_proposition("0 Run ! |||", "here") == Proposition("here", ("Run", "!"), 0, None)


def test_where_names_the_first_line_of_the_sentence(tmp_path: Path) -> None:
    assert [found.where.rpartition(", ")[2] for found in read(tmp_path, PROPBANK)] == ["line 2", "line 9"]


def test_two_predicates_give_two_propositions(tmp_path: Path) -> None:
    text = "He\t-\tB-A0\tO\nsaw\tsee.01\tB-V\tO\nher\t-\tB-A1\tB-A0\nrun\trun.01\tI-A1\tB-V\n"
    assert [found.predicate for found in read(tmp_path, text)] == [1, 3]


def test_a_token_may_be_a_hash_or_a_quote(tmp_path: Path) -> None:
    text = '#\t-\tB-A1\nrose\trise.01\tB-V\n"\t-\tO\n'
    assert read(tmp_path, text)[0].tokens == ("#", "rose", '"')
    assert read(tmp_path, text.replace("\t", " "))[0].tokens == ("#", "rose", '"')


def test_only_the_outermost_of_nested_brackets_is_kept() -> None:
    assert _tags_from_brackets(["(ARG2(ARG1*)", "*)", "(V*)"], SENTENCE) == ["B-ARG2", "I-ARG2", "B-V"]


def test_adjacent_arguments_of_one_role_are_kept_apart() -> None:
    assert _tags_from_brackets(["(A0*)", "(A0*", "*)"], SENTENCE) == ["B-A0", "B-A0", "I-A0"]


roles = st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["ARG0", "C-ARG0", "ARGM-TMP", None])), min_size=1)


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(roles)
def test_brackets_and_tags_describe_the_same_arguments(pieces: list[tuple[int, str | None]]) -> None:
    cells: list[str] = []
    for length, label in pieces:
        piece = ["*"] * length
        if label:
            piece[0] = f"({label}" + piece[0]
            piece[-1] += ")"
        cells += piece
    tags = _tags_from_brackets(cells, SENTENCE)
    starts = {
        place: label for place, label in zip(_starts(pieces), [label for _, label in pieces], strict=True) if label
    }
    assert {chunk.start: chunk.label for chunk in chunks_of(tags)} == starts


def _starts(pieces: list[tuple[int, str | None]]) -> list[int]:
    places = [0]
    for length, _ in pieces:
        places.append(places[-1] + length)
    return places[:-1]


def test_the_shared_propbank_data_is_read_completely(shared: Path) -> None:
    propositions = list(read_srl(str(shared / "data" / "srl-propbank-ewt" / "dev.props")))
    assert sum(one.predicate is not None for one in propositions) == 4906
    assert len({one.where for one in propositions}) == 1938
