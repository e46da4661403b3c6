"""Chunk F1 as ``conlleval`` counts it (Tjong Kim Sang, version 2004-01-26), and as spans.

``conlleval`` walks through gold and predicted tags side by side and looks at neighbours only: a chunk begins at B, at I
after O, at any change of type, and so on; ill-formed tags make chunks too. It knows IOB1, IOB2, IOE1, IOE2 and the
brackets ``[`` and ``]``. It does not know BIOUL or BIOES (two neighbouring ``U-PER`` are one chunk to it): turn such
tags into chunks and count with ``chunk_f1``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from elmokit.tasks.scores.counts import Counts, percent

OUTSIDE = "O"
STARTS = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I"), ("E", "E"), ("E", "I"), ("O", "E")}
ENDS = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O"), ("E", "E"), ("E", "I"), ("E", "O")}
ALONE = {"[", "]"}  # a chunk of one token
NO_CHUNK = {OUTSIDE, "."}

Tag = tuple[str, str]  # prefix and type


class Chunk(NamedTuple):
    """Tokens ``start`` to ``stop - 1`` under a label."""

    start: int
    stop: int
    label: str


@dataclass(frozen=True)
class ChunkScores:
    """What ``conlleval`` prints: all chunks, chunks by type, and the percentage of right tags."""

    overall: Counts
    by_type: dict[str, Counts]
    tag_accuracy: float


def conlleval(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> ChunkScores:
    """Score sentences of tags: ``B-PER``, ``I-PER``, ``E-PER``, ``O``.

    Raises:
        ValueError: sentences or tags without a counterpart.
    """
    outside: tuple[Tag, Tag] = ((OUTSIDE, ""), (OUTSIDE, ""))
    rows: list[tuple[Tag, Tag]] = []
    n_tags = 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        rows += [outside] if rows else []
        rows += [(_split(one), _split(other)) for one, other in zip(gold_tags, predicted_tags, strict=True)]
        n_tags += len(gold_tags)
    n_boundaries = len(rows) - n_tags
    n_right = sum(one == other for one, other in rows) - n_boundaries
    found: tuple[Counter[str], Counter[str]] = (Counter(), Counter())  # gold, predicted
    correct: Counter[str] = Counter()
    matching = False  # a chunk is open on both sides that began together with one type
    before = outside
    for now in rows:
        ends = [_ends(before[side], now[side]) for side in (0, 1)]
        starts = [_starts(before[side], now[side]) for side in (0, 1)]
        same_type = now[0][1] == now[1][1]
        if matching and all(ends) and before[0][1] == before[1][1]:
            correct[before[0][1]] += 1
            matching = False
        elif ends[0] != ends[1] or not same_type:
            matching = False
        if all(starts) and same_type:
            matching = True
        for side in (0, 1):
            found[side][now[side][1]] += starts[side]
        before = now
    if matching:
        correct[before[0][1]] += 1
    types = sorted(+(found[0] + found[1]))
    by_type = {label: Counts(correct[label], found[1][label], found[0][label]) for label in types}
    overall = Counts(correct.total(), found[1].total(), found[0].total())
    return ChunkScores(overall, by_type, percent(n_right, n_tags))


def chunks_of(tags: Sequence[str]) -> list[Chunk]:
    """The chunks of one sentence as ``conlleval`` reads its tags, ill-formed ones too (IOB1, IOB2, IOE1, IOE2)."""
    chunks: list[Chunk] = []
    start: int | None = None
    before = (OUTSIDE, "")
    for place, now in enumerate([*map(_split, tags), (OUTSIDE, "")]):
        if start is not None and (_ends(before, now) or _starts(before, now)):
            chunks.append(Chunk(start, place, before[1]))
            start = None
        if _starts(before, now):
            start = place
        before = now
    return chunks


def chunk_f1(gold: Sequence[Sequence[Chunk]], predicted: Sequence[Sequence[Chunk]]) -> Counts:
    """Score sentences of chunks, all labels together: right are those with the same bounds and label.

    Raises:
        ValueError: sentences without a counterpart.
    """
    by_label = chunk_f1_per_label(gold, predicted).values()
    return Counts(
        sum(counts.correct for counts in by_label),
        sum(counts.predicted for counts in by_label),
        sum(counts.gold for counts in by_label),
    )


def chunk_f1_per_label(gold: Sequence[Sequence[Chunk]], predicted: Sequence[Sequence[Chunk]]) -> dict[str, Counts]:
    """``chunk_f1`` for each label by itself, labels in alphabetical order."""
    counted: dict[str, list[int]] = {}
    for gold_chunks, predicted_chunks in zip(gold, predicted, strict=True):
        expected, found = set(gold_chunks), set(predicted_chunks)
        for place, chunks in enumerate((expected & found, found, expected)):
            for chunk in chunks:
                counted.setdefault(chunk.label, [0, 0, 0])[place] += 1
    return {label: Counts(*counted[label]) for label in sorted(counted)}


def _split(tag: str) -> Tag:
    prefix, _, label = tag.partition("-")
    return prefix, "" if label == "0" else label  # to Perl the type "0" is no type


def _starts(before: Tag, now: Tag) -> bool:
    return (before[0], now[0]) in STARTS or now[0] in ALONE or (now[0] not in NO_CHUNK and before[1] != now[1])


def _ends(before: Tag, now: Tag) -> bool:
    return (before[0], now[0]) in ENDS or before[0] in ALONE or (before[0] not in NO_CHUNK and before[1] != now[1])
