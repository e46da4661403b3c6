"""Sentences to padded batches: boundaries added, each distinct token encoded once, similar lengths together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import TextError
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE

TokenEncoder = Callable[[Sequence[str]], NDArray[np.int64]]
"""Distinct tokens to what the token layer reads: ``(tokens, chars)`` char ids or ``(tokens,)`` word ids, from 1 up."""

N_BOUNDARIES = 2


@dataclass(frozen=True)
class Layout:
    """Which token stands where in a batch of sentences with their boundaries, padded on the right."""

    index: NDArray[np.int64]  # (batch, time): places in ``words``; 0 where there is none
    mask: NDArray[np.bool_]  # (batch, time): True on a real token, boundaries included
    words: list[str]  # the distinct tokens


@dataclass(frozen=True)
class Batch(Layout):
    """A layout and what the token layer reads for its words."""

    tokens: NDArray[np.int64]  # (distinct, chars) or (distinct,): each distinct token once


def make_batch(sentences: Sequence[Sequence[str]], encode: TokenEncoder) -> Batch:
    """One batch of the sentences, in their order.

    Raises:
        TextError: a sentence is a string, or a token is none.
    """
    layout = lay_out(sentences)
    return Batch(layout.index, layout.mask, layout.words, encode(layout.words))


def lay_out(sentences: Sequence[Sequence[str]]) -> Layout:
    """A batch of the sentences, in their order, before anything is encoded.

    Raises:
        TextError: a sentence is a string, or a token is none.
    """
    places: dict[str, int] = {}
    longest = max(map(len, sentences), default=0) + N_BOUNDARIES
    index = np.zeros((len(sentences), longest), dtype=np.int64)
    mask = np.zeros((len(sentences), longest), dtype=np.bool_)
    for row, sentence in enumerate(sentences):
        tokens = [BEGIN_SENTENCE, *check_sentence(sentence), END_SENTENCE]
        index[row, : len(tokens)] = [places.setdefault(token, len(places)) for token in tokens]
        mask[row, : len(tokens)] = True
    return Layout(index, mask, list(places))


def check_sentence(sentence: Sequence[str]) -> Sequence[str]:
    """The sentence itself.

    Raises:
        TextError: it is a string, where a list of tokens belongs, or one of its tokens is no string.
    """
    if isinstance(sentence, str):
        raise TextError(
            f"A sentence is a list of tokens; given the string {sentence[:40]!r}. "
            "Split it, for example with sentence.split()."
        )
    for token in sentence:
        if not isinstance(token, str):
            raise TextError(f"A token is a string; given {token!r} of type {type(token).__name__}.")
    return sentence


def plan_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Which sentences go together: similar lengths, and at most ``batch_tokens`` positions a batch.

    Positions count with padding and boundaries; a single sentence above the limit is a batch of its own.

    Args:
        lengths: tokens of each sentence, without boundaries.

    Returns:
        for each batch the places of its sentences in ``lengths``, longest first.
    """
    plan: list[list[int]] = []
    longest = 0
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if plan and longest * (len(plan[-1]) + 1) <= batch_tokens:
            plan[-1].append(place)
        else:
            longest = lengths[place] + N_BOUNDARIES
            plan.append([place])
    return plan
