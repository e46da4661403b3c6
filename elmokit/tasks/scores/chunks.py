"""F1 of chunks: of tags, counted like ``conlleval`` (Tjong Kim Sang, version 2004-01-26), and of spans.

``conlleval`` reads gold and predicted tags side by side and decides from two adjacent tags whether a chunk starts or
ends between them: a chunk starts at B, at I after O, at any change of type, and so on. Inconsistent tags form chunks
too. It supports IOB1, IOB2, IOE1, IOE2 and the brackets ``[`` and ``]``, but not BIOUL or BIOES: it reads two adjacent
``U-PER`` as one chunk. Convert such tags to chunks and use ``chunk_f1``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from elmokit.tasks.scores.counts import Counts, percent

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


@dataclass(frozen=True)
class ChunkScores:
    """What ``conlleval`` prints: all chunks, chunks by type, and the percentage of correct tags."""

    overall: Counts
    by_type: dict[str, Counts]
    tag_accuracy: float


def conlleval(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> ChunkScores:
    """Score the tags of sentences, such as ``B-PER``, ``I-PER``, ``E-PER`` and ``O``."""
    outside: tuple[Tag, Tag] = ((OUTSIDE, ""), (OUTSIDE, ""))
    rows: list[tuple[Tag, Tag]] = []  # of all sentences, with one outside tag between them to end open chunks
    n_tags = 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        rows += [outside] if rows else []
        rows += [(_split(one), _split(other)) for one, other in zip(gold_tags, predicted_tags, strict=True)]
        n_tags += len(gold_tags)
    n_boundaries = len(rows) - n_tags
    n_correct = sum(one == other for one, other in rows) - n_boundaries
    of_type: tuple[Counter[str], Counter[str]] = (Counter(), Counter())  # gold, predicted
    correct: Counter[str] = Counter()
    matching = False  # a chunk of the same type that started at the same token is open on both sides
    previous = outside
    for current in rows:
        ends = [_ends(previous[side], current[side]) for side in (0, 1)]
        starts = [_starts(previous[side], current[side]) for side in (0, 1)]
        same_type = current[0][1] == current[1][1]
        if matching and all(ends) and previous[0][1] == previous[1][1]:
            correct[previous[0][1]] += 1
            matching = False
        elif ends[0] != ends[1] or not same_type:
            matching = False
        if all(starts) and same_type:
            matching = True
        for side in (0, 1):
            of_type[side][current[side][1]] += starts[side]
        previous = current
    if matching:
        correct[previous[0][1]] += 1
    types = sorted(+(of_type[0] + of_type[1]))
    by_type = {label: Counts(correct[label], of_type[1][label], of_type[0][label]) for label in types}
    overall = Counts(correct.total(), of_type[1].total(), of_type[0].total())
    return ChunkScores(overall, by_type, percent(n_correct, n_tags))


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
