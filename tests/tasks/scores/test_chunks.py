"""Chunk F1 equals what the Perl program conlleval prints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.tasks.scores.chunks import Chunk, chunk_f1, chunk_f1_per_label, chunks_of
from elmokit.tasks.scores.counts import Counts


def counted(gold: str, predicted: str) -> tuple[int, int, int]:
    """Right, found and expected chunks; sentences divided by bars."""
    sides = [[sentence.split() for sentence in side.split("|")] for side in (gold, predicted)]
    overall = chunk_f1(*([chunks_of(tags) for tags in side] for side in sides))
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
        ("IOE2", "I-X E-X E-X O", "I-X E-X E-X O", (2, 2, 2)),
        ("E then I begins anew", "E-X I-X E-X", "E-X I-X E-X", (2, 2, 2)),
        ("E then B continues: the program has no such rule", "E-X B-X", "E-X O", (0, 1, 1)),
        ("brackets are chunks of one", "[-X ]-X O", "[-X ]-X O", (2, 2, 2)),
        ("two neighboring U are one chunk to it", "U-X U-X", "U-X O", (0, 1, 1)),
        ("BIOUL of different types survives", "U-X U-Y B-Z L-Z", "U-X U-Y B-Z L-Z", (3, 3, 3)),
        ("hyphens in a type", "B-a-b I-a-b", "B-a-b I-a-b", (1, 1, 1)),
        ("no type", "B I O B", "B I O O", (1, 1, 2)),
        ("a type that Perl takes for none", "O S-0 O", "O O O", (0, 0, 0)),
        ("nothing", "O O", "O O", (0, 0, 0)),
        ("a point neither begins nor ends one", ".-X B-X O", ".-X B-X O", (0, 0, 0)),
    ],
)
def test_chunks_are_counted_like_conlleval(
    what: str, gold: str, predicted: str, expected: tuple[int, int, int]
) -> None:
    assert counted(gold, predicted) == expected


def test_scores_by_type() -> None:
    gold, predicted = (
        [chunks_of(tags)] for tags in (["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "I-PER", "B-LOC", "O"])
    )
    assert chunk_f1_per_label(gold, predicted) == {"LOC": Counts(0, 1, 1), "PER": Counts(1, 1, 1)}
    assert chunk_f1(gold, predicted).f1 == 50


iob = st.lists(st.lists(st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"]), max_size=6), max_size=4)


def told_otherwise(tags: list[str]) -> list[Chunk]:
    """Of ill-formed IOB tags: a chunk begins at B, after O, at a new type."""
    found: list[Chunk] = []
    last = "O"
    for place, tag in enumerate(tags):
        if tag != "O":
            if tag[0] == "B" or last == "O" or last[1:] != tag[1:]:
                found.append(Chunk(place, place, tag[2:]))
            found[-1] = found[-1]._replace(stop=place + 1)
        last = tag
    return found


@given(iob)
def test_ill_formed_iob_is_read_as_chunks(sentences: list[list[str]]) -> None:
    assert [chunks_of(tags) for tags in sentences] == [told_otherwise(tags) for tags in sentences]


def test_chunks_of_bioul_are_counted_correctly() -> None:
    gold, predicted = [[Chunk(0, 1, "X"), Chunk(1, 2, "X")]], [[Chunk(0, 1, "X"), Chunk(1, 2, "Y")]]
    assert chunk_f1(gold, predicted) == Counts(1, 2, 2)
