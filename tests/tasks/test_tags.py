"""Chunks are converted to tags and back, and the rules allow exactly the valid sequences."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.tasks.tags import PREFIXES, Chunk, Scheme, TagError, all_tags, chunks_in, rules_of, tags_of

SCHEMES: tuple[Scheme, ...] = ("IOB1", "IOB2", "BIOUL")


@st.composite
def chunked(draw: st.DrawFn) -> tuple[list[Chunk], int]:
    lengths = draw(st.lists(st.integers(1, 4), max_size=6))
    chunks, place = [], 0
    for length in lengths:
        label = draw(st.sampled_from(["PER", "B-side", "", None]))
        if label:
            chunks.append(Chunk(place, place + length, label))
        place += length
    return chunks, place


@given(chunked(), st.sampled_from(SCHEMES))
def test_chunks_can_be_recovered_from_their_tags(case: tuple[list[Chunk], int], scheme: Scheme) -> None:
    chunks, n_tokens = case
    tags = tags_of(chunks, n_tokens, scheme)
    assert len(tags) == n_tokens
    assert chunks_in(tags, scheme) == chunks


@given(st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"]), max_size=8))
def test_iob1_is_read_as_conlleval_reads_it(tags: list[str]) -> None:
    chunks = chunks_in(tags, "IOB1")
    starts = [
        token
        for token, tag in enumerate(tags)
        if tag != "O" and (token == 0 or tag[0] == "B" or tag[1:] != tags[token - 1][1:])
    ]
    assert [chunk.start for chunk in chunks] == starts
    inside = [token for chunk in chunks for token in range(chunk.start, chunk.stop)]
    assert inside == [token for token, tag in enumerate(tags) if tag != "O"]


def test_the_three_schemes_by_example() -> None:
    chunks = [Chunk(0, 2, "X"), Chunk(2, 3, "X"), Chunk(4, 7, "Y")]
    assert tags_of(chunks, 7, "IOB1") == ["I-X", "I-X", "B-X", "O", "I-Y", "I-Y", "I-Y"]
    assert tags_of(chunks, 7, "IOB2") == ["B-X", "I-X", "B-X", "O", "B-Y", "I-Y", "I-Y"]
    assert tags_of(chunks, 7, "BIOUL") == ["B-X", "L-X", "U-X", "O", "B-Y", "I-Y", "L-Y"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rules_allow_exactly_the_valid_sequences(scheme: Scheme) -> None:
    tags = all_tags(["X", "Y"], scheme)
    follow, start, end = rules_of(tags, scheme)
    for length in (1, 2, 3):
        for path in itertools.product(range(len(tags)), repeat=length):
            inside = all(follow[one, two] for one, two in itertools.pairwise(path))
            allowed = bool(start[path[0]] and end[path[-1]] and inside)
            written = [tags[tag] for tag in path]
            try:
                # Reading IOB1 is lenient: it also accepts what is not written like this.
                is_sound = tags_of(chunks_in(written, scheme), length, scheme) == written
            except TagError:
                is_sound = False
            assert allowed == is_sound, written


def test_a_type_has_every_tag_of_its_scheme() -> None:
    assert all_tags(["X"], "BIOUL") == ["O", *(f"{prefix}-X" for prefix in PREFIXES["BIOUL"])]


@pytest.mark.parametrize(
    ("tags", "scheme", "token", "named"),
    [
        (["O", "I-X"], "IOB2", 1, "'I-X' after 'O' is not valid in IOB2"),
        (["B-X", "I-Y"], "IOB2", 1, "'I-Y' after 'B-X'"),
        (["B-X", "O"], "BIOUL", 1, "'O' after 'B-X'"),
        (["O", "B-X"], "BIOUL", 1, "the end of the sentence after 'B-X'"),
        (["L-X"], "BIOUL", 0, "'L-X' after the start of the sentence"),
        (["O", "X"], "IOB1", 1, "'X' after 'O' is not valid in IOB1, whose tags are O, B-TYPE, I-TYPE"),
        (["U-X"], "IOB2", 0, "'U-X' after the start of the sentence is not valid in IOB2"),
    ],
)
def test_invalid_tags_are_named_with_their_token(tags: list[str], scheme: Scheme, token: int, named: str) -> None:
    with pytest.raises(TagError, match=named) as error:
        chunks_in(tags, scheme)
    assert error.value.token == token
