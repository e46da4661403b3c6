"""Tags of chunks (IOB1, IOB2, BIOUL), and the rules on their order, which ``nn/crf.py`` obeys.

IOB2, also called BIO, starts every chunk with B. IOB1, the scheme of CoNLL-2003, starts a chunk with I, and with B only
directly after another chunk of the same type. BIOUL ends chunks of several tokens with L and marks chunks of one token
with U.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from elmokit.tasks.nn.crf import TagRules
from elmokit.tasks.scores import OUTSIDE, Chunk, Counts

Scheme = Literal["IOB1", "IOB2", "BIOUL"]
PREFIXES: dict[Scheme, str] = {"IOB1": "BI", "IOB2": "BI", "BIOUL": "BILU"}


class TagError(ValueError):
    """A sequence of tags that is not valid in its scheme."""

    def __init__(self, token: int, reason: str) -> None:
        super().__init__(reason)
        self.token = token
        """Index of the token, from 0."""


def chunks_in(tags: Sequence[str], scheme: Scheme) -> list[Chunk]:
    """Return the chunks of a sentence from its tags.

    IOB1 is read like conlleval does, where a chunk starts at B, at I after O, and at any change of type. That reading
    is correct for valid IOB2 as well.
    """
    chunks: list[Chunk] = []
    start, label = -1, ""  # of the open chunk
    for token, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, kind = tag.partition("-")
        is_open = start >= 0
        continues = is_open and kind == label and prefix in ("I", "L")
        if not _is_valid(tag, scheme, is_open, continues):
            raise _invalid_tag(tags, token, scheme)
        if is_open and continues and prefix == "L":
            chunks.append(Chunk(start, token + 1, label))
            start = -1
        elif is_open and not continues:
            chunks.append(Chunk(start, token, label))
            start = -1
        if prefix == "U":
            chunks.append(Chunk(token, token + 1, kind))
        elif tag != OUTSIDE and not continues:
            start, label = token, kind
    return chunks


def _is_valid(tag: str, scheme: Scheme, is_open: bool, continues: bool) -> bool:
    """Check a tag of a scheme.

    Args:
        tag: The tag.
        scheme: Its scheme.
        is_open: Whether a chunk has begun and may have to go on.
        continues: Whether the tag continues it.
    """
    prefix, _, kind = tag.partition("-")
    if tag != OUTSIDE and (not kind or len(prefix) != 1 or prefix not in PREFIXES[scheme]):
        return False
    if scheme == "BIOUL" and is_open:
        return continues
    if scheme != "IOB1" and prefix in ("I", "L"):
        return continues
    return True


def _invalid_tag(tags: Sequence[str], token: int, scheme: Scheme) -> TagError:
    """Return the error about a tag, or about the end of the sentence."""
    after = repr(tags[token - 1]) if token else "the start of the sentence"
    what = "the end of the sentence" if token == len(tags) else repr(tags[token])
    names = ", ".join(f"{letter}-TYPE" for letter in PREFIXES[scheme])
    problem = f"{what} after {after} is not valid in {scheme}, whose tags are {OUTSIDE}, {names}"
    return TagError(min(token, len(tags) - 1), problem)


def tags_of(chunks: Iterable[Chunk], n_tokens: int, scheme: Scheme) -> list[str]:
    """Return one tag per token. The chunks must not overlap."""
    tags = [OUTSIDE] * n_tokens
    previous: Chunk | None = None
    for chunk in sorted(chunks):
        first, end = "B", "I"
        if scheme == "BIOUL":
            first, end = ("U", "U") if chunk.start + 1 == chunk.stop else ("B", "L")
        elif scheme == "IOB1":
            is_adjacent = previous is not None and previous.stop == chunk.start and previous.label == chunk.label
            first = "B" if is_adjacent else "I"
        for token in range(chunk.start, chunk.stop):
            letter = first if token == chunk.start else end if token + 1 == chunk.stop else "I"
            tags[token] = f"{letter}-{chunk.label}"
        previous = chunk
    return tags


def all_tags(types: Sequence[str], scheme: Scheme) -> list[str]:
    """Return ``O`` and every tag of the types."""
    return [OUTSIDE, *(f"{prefix}-{kind}" for kind in types for prefix in PREFIXES[scheme])]


def types_in(tags: Iterable[str]) -> list[str]:
    """Return the types that occur in tags, sorted."""
    return sorted({tag.partition("-")[2] for tag in tags} - {""})


def rules_of(tags: Sequence[str], scheme: Scheme) -> TagRules:
    """Return which tags may follow each other, start and end a sentence.

    The rules allow exactly the sequences that ``tags_of`` returns. BIOUL: after O, L and U comes O, B or U; after B and
    I comes I or L of the same type. IOB2: I-X comes only after B-X or I-X. IOB1: B-X comes only after B-X or I-X.
    """
    n_tags = len(tags)
    follow = torch.ones(n_tags, n_tags, dtype=torch.bool)
    start, end = torch.ones(n_tags, dtype=torch.bool), torch.ones(n_tags, dtype=torch.bool)
    if scheme == "IOB1":
        kinds = [tag.partition("-")[2] for tag in tags]
        for column, tag in enumerate(tags):
            if tag.startswith("B-"):
                start[column] = False
                follow[:, column] = torch.tensor([kind == kinds[column] for kind in kinds])
        return TagRules(follow, start, end)
    for row, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        is_open = prefix in ("B", "I")  # the chunk may continue
        must_continue = scheme == "BIOUL" and is_open
        start[row] = prefix not in ("I", "L")
        end[row] = not must_continue
        for column, next_tag in enumerate(tags):
            next_prefix, _, next_kind = next_tag.partition("-")
            continues = next_prefix in ("I", "L")
            follow[row, column] = is_open and kind == next_kind if continues else not must_continue
    return TagRules(follow, start, end)


def tag_ids(sentences: Iterable[Sequence[str]], tags: Sequence[str], mask: Tensor, padding: int) -> Tensor:
    """Return the number of each token's tag, ``(batch, time)`` like ``mask``, with ``padding`` after the tokens."""
    ids = {tag: number for number, tag in enumerate(tags)}
    numbers = torch.full(mask.shape, padding, dtype=torch.int64)
    for row, sentence in zip(numbers, sentences, strict=True):
        row[: len(sentence)] = torch.tensor([ids[tag] for tag in sentence], dtype=torch.int64)
    return numbers


def f1_scores(overall: Counts, by_type: Mapping[str, Counts], **others: float) -> dict[str, float]:
    """Return F1, precision, recall, any other scores, and the F1 of each type that the gold data contains."""
    per_type = {f"f1-{kind}": counts.f1 for kind, counts in by_type.items() if counts.gold}
    return {"f1": overall.f1, "precision": overall.precision, "recall": overall.recall, **others, **per_type}


def chunk_records(tokens: Sequence[str], chunks: Iterable[Chunk]) -> list[dict[str, Any]]:
    """Return chunks as plain values for JSON, with their text."""
    return [{**chunk._asdict(), "text": " ".join(tokens[chunk.start : chunk.stop])} for chunk in chunks]


def mark_chunks(tokens: Iterable[str], chunks: Iterable[Chunk]) -> str:
    """Return the sentence with its chunks in brackets, such as ``[PER Mira] visits [LOC Oslo] .``"""
    words = list(tokens)
    for chunk in chunks:
        words[chunk.start] = f"[{chunk.label} {words[chunk.start]}"
        words[chunk.stop - 1] += "]"
    return " ".join(words)
