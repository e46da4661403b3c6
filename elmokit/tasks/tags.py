"""Tags of chunks (IOB1, IOB2, BIOUL), and the rules on their order, which ``nn/crf.py`` obeys.

IOB2, also called BIO, starts every chunk with B. IOB1, the scheme of CoNLL-2003, starts a chunk with I, and with B only
directly after another chunk of the same type. BIOUL ends chunks of several tokens with L and marks chunks of one token
with U.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from elmokit.tasks.nn.crf import TagRules

Scheme = Literal["IOB1", "IOB2", "BIOUL"]
PREFIXES: dict[Scheme, str] = {"IOB1": "BI", "IOB2": "BI", "BIOUL": "BILU"}
OUTSIDE = "O"


class Chunk(NamedTuple):
    """Tokens ``start`` to ``stop - 1`` with a label."""

    start: int
    stop: int
    label: str


class TagError(ValueError):
    """A sequence of tags that is not valid in its scheme."""

    def __init__(self, token: int, reason: str) -> None:
        super().__init__(reason)
        self.token = token
        """Index of the token, from 0."""


def chunks_in(tags: Sequence[str], scheme: Scheme) -> list[Chunk]:
    """Return the chunks of a sentence from its tags.

    IOB1 is read like conlleval does, which is correct for valid IOB2 as well.

    Raises:
        TagError: The tags are not valid in the scheme.
    """
    check_tags(tags, scheme)
    return read_chunks(tags)


def read_chunks(tags: Iterable[str]) -> list[Chunk]:
    """Return the chunks of tags of any scheme, which may be invalid.

    As in conlleval, a chunk starts at B, at I after O, and at any change of type. L is read as I, and U as B.
    """
    chunks: list[Chunk] = []
    start, label = 0, None  # of the open chunk
    for token, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, kind = tag.partition("-")
        continues = prefix in ("I", "L") and kind == label
        if label is not None and not continues:
            chunks.append(Chunk(start, token, label))
            label = None
        if label is None and tag != OUTSIDE:
            start, label = token, kind
    return chunks


def check_tags(tags: Sequence[str], scheme: Scheme) -> None:
    """Raise a TagError unless tags are valid. Those of IOB1 may be in any order, as in IOB2."""
    previous = OUTSIDE
    for token, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, kind = tag.partition("-")
        is_tag = tag == OUTSIDE or (kind != "" and prefix in tuple(PREFIXES[scheme]))
        if not is_tag or not (scheme == "IOB1" or may_follow(previous, tag, scheme)):
            raise _invalid_tag(tags, token, scheme)
        previous = tag


def may_follow(previous: str, tag: str, scheme: Scheme) -> bool:
    """Check whether a tag may come after another one, where ``O`` is before the first tag and after the last one.

    This allows exactly the sequences that ``tags_of`` returns. BIOUL: after O, L and U comes O, B or U; after B and I
    comes I or L of the same type. IOB2: I-X comes only after B-X or I-X. IOB1: B-X comes only after B-X or I-X.
    """
    prefix_before, _, kind_before = previous.partition("-")
    prefix, _, kind = tag.partition("-")
    if scheme == "IOB1":
        return prefix != "B" or kind == kind_before
    is_open = prefix_before in ("B", "I")  # the chunk may continue
    if prefix in ("I", "L"):
        return is_open and kind == kind_before
    return not (is_open and scheme == "BIOUL")


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
        letters = ["I"] * (chunk.stop - chunk.start)
        is_adjacent = previous is not None and previous.stop == chunk.start and previous.label == chunk.label
        if scheme != "IOB1" or is_adjacent:
            letters[0] = "B"
        if scheme == "BIOUL":
            letters[-1] = "U" if len(letters) == 1 else "L"
        tags[chunk.start : chunk.stop] = [f"{letter}-{chunk.label}" for letter in letters]
        previous = chunk
    return tags


def all_tags(types: Sequence[str], scheme: Scheme) -> list[str]:
    """Return ``O`` and every tag of the types."""
    return [OUTSIDE, *(f"{prefix}-{kind}" for kind in types for prefix in PREFIXES[scheme])]


def types_in(tags: Iterable[str]) -> list[str]:
    """Return the types that occur in tags, sorted."""
    return sorted({tag.partition("-")[2] for tag in tags} - {""})


def rules_of(tags: Sequence[str], scheme: Scheme) -> TagRules:
    """Return which tags may follow each other, start and end a sentence."""
    follow = [[may_follow(previous, tag, scheme) for tag in tags] for previous in tags]
    start = [may_follow(OUTSIDE, tag, scheme) for tag in tags]
    end = [may_follow(tag, OUTSIDE, scheme) for tag in tags]
    return TagRules(torch.tensor(follow), torch.tensor(start), torch.tensor(end))


def tag_ids(
    sentences: Iterable[Sequence[str] | None], tags: Sequence[str], mask: Tensor, padding: int
) -> Tensor | None:
    """Return the number of each token's tag, ``(batch, time)`` like ``mask``, with ``padding`` after the tokens.

    Returns None if a sentence has no tags, or one that is not among ``tags``.
    """
    ids = {tag: number for number, tag in enumerate(tags)}
    numbers = torch.full(mask.shape, padding, dtype=torch.int64)
    for row, sentence in zip(numbers, sentences, strict=True):
        if sentence is None or not ids.keys() >= set(sentence):
            return None
        row[: len(sentence)] = torch.tensor([ids[tag] for tag in sentence], dtype=torch.int64)
    return numbers


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
