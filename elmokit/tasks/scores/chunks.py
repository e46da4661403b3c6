"""F1 of chunks, read and counted like ``conlleval`` (Tjong Kim Sang, version 2004-01-26).

``conlleval`` decides from two adjacent tags whether a chunk starts or ends between them: it starts at B, at I after
O, at any change of type, and so on. Inconsistent tags form chunks too. It supports IOB1, IOB2, IOE1, IOE2 and the
brackets ``[`` and ``]``, but not BIOUL or BIOES: it reads two adjacent ``U-PER`` as one chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from elmokit.tasks.scores.counts import Counts

OUTSIDE = "O"
# Pairs of prefixes (previous tag, this tag) between which a chunk starts or ends, as listed in conlleval.
STARTS = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I"), ("E", "E"), ("E", "I"), ("O", "E")}
ENDS = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O"), ("E", "E"), ("E", "I"), ("E", "O")}
SINGLE = {"[", "]"}  # a chunk of one token
NO_CHUNK = {OUTSIDE, "."}

Tag = tuple[str, str]  # prefix and type


class Chunk(NamedTuple):
    """Tokens ``start`` to ``stop - 1`` with a label."""

    start: int
    stop: int
    label: str


def chunks_of(tags: Sequence[str]) -> list[Chunk]:
    """Return the chunks of one sentence as ``conlleval`` reads its tags, which may be inconsistent."""
    chunks: list[Chunk] = []
    start: int | None = None
    previous = (OUTSIDE, "")
    for token, current in enumerate([*map(_split, tags), (OUTSIDE, "")]):
        if start is not None and (_ends(previous, current) or _starts(previous, current)):
            chunks.append(Chunk(start, token, previous[1]))
            start = None
        if _starts(previous, current):
            start = token
        previous = current
    return chunks


def chunk_f1(gold: Sequence[Sequence[Chunk]], predicted: Sequence[Sequence[Chunk]]) -> Counts:
    """Count the chunks of sentences over all labels. A chunk is correct if its bounds and its label are."""
    by_label = chunk_f1_per_label(gold, predicted).values()
    return Counts(
        sum(counts.correct for counts in by_label),
        sum(counts.predicted for counts in by_label),
        sum(counts.gold for counts in by_label),
    )


def chunk_f1_per_label(gold: Sequence[Sequence[Chunk]], predicted: Sequence[Sequence[Chunk]]) -> dict[str, Counts]:
    """Count like ``chunk_f1`` for each label separately, with the labels in alphabetical order."""
    counted: dict[str, list[int]] = {}
    for gold_chunks, predicted_chunks in zip(gold, predicted, strict=True):
        expected, answered = set(gold_chunks), set(predicted_chunks)
        for kind, chunks in enumerate((expected & answered, answered, expected)):  # correct, predicted, gold
            for chunk in chunks:
                counted.setdefault(chunk.label, [0, 0, 0])[kind] += 1
    return {label: Counts(*counted[label]) for label in sorted(counted)}


def _split(tag: str) -> Tag:
    prefix, _, label = tag.partition("-")
    return prefix, "" if label == "0" else label  # in Perl the string "0" is false, so the type "0" is no type


def _starts(previous: Tag, current: Tag) -> bool:
    prefix = current[0]
    return (previous[0], prefix) in STARTS or prefix in SINGLE or (prefix not in NO_CHUNK and previous[1] != current[1])


def _ends(previous: Tag, current: Tag) -> bool:
    prefix = previous[0]
    return (prefix, current[0]) in ENDS or prefix in SINGLE or (prefix not in NO_CHUNK and previous[1] != current[1])
