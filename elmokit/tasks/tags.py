"""Tagging schemes for chunks (IOB1, IOB2, BIOUL), and the rules on the order of tags for ``nn/crf.py``.

IOB2, also called BIO, starts each chunk with B. IOB1, the scheme of CoNLL-2003, starts a chunk with I, and with B only
directly after another chunk of the same type. BIOUL ends chunks of several tokens with L and marks single-token chunks
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
    """A tag sequence that is invalid in its scheme."""

    def __init__(self, token: int, reason: str) -> None:
        super().__init__(reason)
        self.token = token
        """Index of the token, from 0."""


def chunks_in(tags: Sequence[str], scheme: Scheme) -> list[Chunk]:
    """Read the chunks of a sentence from its tags.

    IOB1 is read like in conlleval, which is also correct for valid IOB2.

    Raises:
        TagError: The tags are invalid in the scheme.
    """
    check_tags(tags, scheme)
    return read_chunks(tags)


def read_chunks(tags: Iterable[str]) -> list[Chunk]:
    """Read the chunks from tags of any scheme, which may be invalid.

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
    """Raise a TagError unless tags are valid. IOB1 allows any order, because valid IOB2 is also read as IOB1."""
    previous = OUTSIDE
    for token, tag in enumerate([*tags, OUTSIDE]):
        is_valid = _is_tag(tag, scheme)
        if scheme != "IOB1":
            is_valid = is_valid and may_follow(previous, tag, scheme)
        if not is_valid:
            raise _invalid_tag(tags, token, scheme)
        previous = tag


def _is_tag(tag: str, scheme: Scheme) -> bool:
    if tag == OUTSIDE:
        return True
    prefix, _, kind = tag.partition("-")
    return kind != "" and prefix in tuple(PREFIXES[scheme])


def may_follow(previous: str, tag: str, scheme: Scheme) -> bool:
    """Check whether a tag may follow another one. Use ``O`` for the positions before the first and after the last tag.

    This allows exactly the sequences that ``tags_of`` returns. In BIOUL, O, L and U are followed by O, B or U, and B
    and I by I or L of the same type. In IOB2, I-X only follows B-X or I-X. In IOB1, B-X only follows B-X or I-X.
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
    """Return the error for an invalid tag, or for an invalid end of the sentence."""
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
        if scheme != "IOB1" or _continues(previous, chunk):
            letters[0] = "B"
        if scheme == "BIOUL":
            letters[-1] = "U" if len(letters) == 1 else "L"
        tags[chunk.start : chunk.stop] = [f"{letter}-{chunk.label}" for letter in letters]
        previous = chunk
    return tags


def _continues(previous: Chunk | None, chunk: Chunk) -> bool:
    """Check whether a chunk directly follows another one with the same label."""
    if previous is None:
        return False
    return previous.stop == chunk.start and previous.label == chunk.label


def all_tags(types: Sequence[str], scheme: Scheme) -> list[str]:
    """Return ``O`` and all tags of the types."""
    tags = [OUTSIDE]
    for kind in types:
        tags += [f"{prefix}-{kind}" for prefix in PREFIXES[scheme]]
    return tags


def types_in(tags: Iterable[str]) -> list[str]:
    """Return the types that occur in tags, in alphabetical order."""
    return sorted({tag.partition("-")[2] for tag in tags} - {""})


def rules_of(tags: Sequence[str], scheme: Scheme) -> TagRules:
    """Return which tags may follow each other, start a sentence, and end one."""
    follow = []
    for previous in tags:
        follow.append([may_follow(previous, tag, scheme) for tag in tags])
    start = [may_follow(OUTSIDE, tag, scheme) for tag in tags]
    end = [may_follow(tag, OUTSIDE, scheme) for tag in tags]
    return TagRules(torch.tensor(follow), torch.tensor(start), torch.tensor(end))


def tag_ids(
    sentences: Iterable[Sequence[str] | None], tags: Sequence[str], mask: Tensor, padding: int
) -> Tensor | None:
    """Return the index of each token's tag, ``(batch, time)`` like ``mask``, with ``padding`` after the tokens.

    Returns None if a sentence has no tags, or one that is not in ``tags``.
    """
    index_of = {tag: index for index, tag in enumerate(tags)}
    indices = torch.full(mask.shape, padding, dtype=torch.int64)
    for row, sentence in zip(indices, sentences, strict=True):
        if sentence is None or not index_of.keys() >= set(sentence):
            return None
        of_sentence = [index_of[tag] for tag in sentence]
        row[: len(of_sentence)] = torch.tensor(of_sentence, dtype=torch.int64)
    return indices


def chunk_records(tokens: Sequence[str], chunks: Iterable[Chunk]) -> list[dict[str, Any]]:
    """Return chunks with their text as plain values for JSON."""
    records = []
    for chunk in chunks:
        text = " ".join(tokens[chunk.start : chunk.stop])
        records.append({**chunk._asdict(), "text": text})
    return records


def mark_chunks(tokens: Iterable[str], chunks: Iterable[Chunk]) -> str:
    """Return a sentence with its chunks in brackets, such as ``[PER Mira] visits [LOC Oslo] .``"""
    words = list(tokens)
    for chunk in chunks:
        words[chunk.start] = f"[{chunk.label} {words[chunk.start]}"
        words[chunk.stop - 1] += "]"
    return " ".join(words)
