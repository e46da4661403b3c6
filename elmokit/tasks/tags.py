"""Chunks to one tag per token and back: IOB1, IOB2 and BIOUL; and which tag may follow which.

IOB2 (often BIO) begins every chunk with B. IOB1 (CoNLL-2003) begins it with I, and with B only right after a chunk of
the same type. BIOUL ends long chunks with L and marks those of one token by U.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch

from elmokit.tasks.nn.crf import Rules
from elmokit.tasks.scores.chunks import OUTSIDE, Chunk

Scheme = Literal["IOB1", "IOB2", "BIOUL"]
PREFIXES: dict[Scheme, str] = {"IOB1": "BI", "IOB2": "BI", "BIOUL": "BILU"}


class TagError(ValueError):
    """A sequence of tags that the scheme does not allow."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        """Of the token, from 0."""


def chunks_in(tags: Sequence[str], scheme: Scheme) -> list[Chunk]:
    """The chunks of a sentence's tags.

    IOB1 is read as conlleval does, where a chunk begins at B, at I after O, and at any change of type: that
    reads sound IOB2 as well.

    Raises:
        TagError: a tag that the scheme does not have, or (IOB2, BIOUL) one that may not stand there.
    """
    chunks: list[Chunk] = []
    start, label = -1, ""  # of the open chunk
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, kind = tag.partition("-")
        if tag != OUTSIDE and (not kind or len(prefix) != 1 or prefix not in PREFIXES[scheme]):
            names = ", ".join(f"{letter}-TYPE" for letter in PREFIXES[scheme])
            raise TagError(place, f"the tag {tag!r}, where {scheme} has {OUTSIDE}, {names}")
        goes_on = start >= 0 and kind == label and prefix in ("I", "L")
        if scheme == "BIOUL" and start >= 0 and not goes_on:
            after = "the end" if place == len(tags) else repr(tag)
            raise TagError(min(place, len(tags) - 1), f"{after} after {tags[place - 1]!r}, where I or L of it belongs")
        if prefix in ("I", "L") and not goes_on and scheme != "IOB1":
            raise TagError(place, f"{tag!r} does not go on with a chunk of its type; {scheme} begins one with B")
        if start >= 0 and (not goes_on or prefix == "L"):
            chunks.append(Chunk(start, place + 1 if goes_on else place, label))
            start = -1
        if prefix == "U":
            chunks.append(Chunk(place, place + 1, kind))
        elif tag != OUTSIDE and not goes_on:
            start, label = place, kind
    return chunks


def tags_of(chunks: Iterable[Chunk], n_tokens: int, scheme: Scheme) -> list[str]:
    """One tag for each token; the chunks must not overlap."""
    tags = [OUTSIDE] * n_tokens
    last: Chunk | None = None
    for chunk in sorted(chunks):
        first, inside, end = "B", "I", "I"
        if scheme == "BIOUL":
            first, end = ("U", "U") if chunk.start + 1 == chunk.stop else ("B", "L")
        elif scheme == "IOB1":
            touches = last is not None and last.stop == chunk.start and last.label == chunk.label
            first = "B" if touches else "I"
        for place in range(chunk.start, chunk.stop):
            letter = first if place == chunk.start else end if place + 1 == chunk.stop else inside
            tags[place] = f"{letter}-{chunk.label}"
        last = chunk
    return tags


def all_tags(types: Iterable[str], scheme: Scheme) -> list[str]:
    """``O`` and every tag of the types."""
    return [OUTSIDE, *(f"{prefix}-{kind}" for kind in types for prefix in PREFIXES[scheme])]


def rules_of(tags: Sequence[str], scheme: Scheme) -> Rules:
    """What may follow what, start and end, so that exactly the sequences that ``chunks_in`` reads are allowed.

    BIOUL: after O, L and U come O, B or U; after B and I comes I or L of the same type. IOB2: I-X comes after B-X or
    I-X only. IOB1 (as conlleval reads it) allows everything.
    """
    n_tags = len(tags)
    follow = torch.ones(n_tags, n_tags, dtype=torch.bool)
    start, end = torch.ones(n_tags, dtype=torch.bool), torch.ones(n_tags, dtype=torch.bool)
    if scheme == "IOB1":
        return Rules(follow, start, end)
    for row, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        is_open = prefix in ("B", "I")
        start[row] = prefix not in ("I", "L")
        end[row] = scheme == "IOB2" or not is_open
        for column, after in enumerate(tags):
            next_prefix, _, next_kind = after.partition("-")
            goes_on = next_prefix in ("I", "L")
            fits = is_open and kind == next_kind
            must_go_on = scheme == "BIOUL" and is_open
            follow[row, column] = fits if goes_on else not must_go_on
    return Rules(follow, start, end)
