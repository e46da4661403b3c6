"""Turn a stream of sentences into padded batches, and batches back into a stream.

Every part of elmokit that runs a model over text does the same five things, and does them here:

1. :func:`read_ahead` takes a bounded number of sentences from an iterator of any length.
2. :func:`plan_batches` groups these by length, to reduce padding.
3. :func:`number_tokens` adds the sentence boundaries and lists each distinct token once. :func:`pad_batch` also pads
   the sentences, and :func:`make_batch` encodes the tokens, for PyTorch.
4. :func:`restore_order` puts the results back into the order of the sentences.
5. :func:`is_long` says which sentences are too long to be computed at once.

:func:`map_in_batches` combines steps 1, 2 and 4 for the common case of one result per sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import TextError
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE

Item = TypeVar("Item")
Result = TypeVar("Result")
TokenEncoder = Callable[[Sequence[str]], NDArray[np.int64]]
"""Maps distinct tokens to the ids that the token layer reads: ``(tokens, chars)`` or ``(tokens,)``, all above 0."""

N_BOUNDARIES = 2
READ_AHEAD_BATCHES = 8
"""How many batches' worth of sentences to read ahead. With fewer, few sentences of similar length end up in the
same batch; more cost memory and delay without saving much padding."""
LONG_SENTENCE_TOKENS = 16_384
"""Above this length a sentence is computed chunk by chunk, because all its activations would be in memory at once."""


@dataclass(frozen=True)
class NumberedBatch:
    """A batch of sentences with their boundaries, one after the other."""

    words: list[str]
    """The distinct tokens of the batch, boundaries included, in order of appearance."""
    index: NDArray[np.int64]
    """``(positions,)``: the position of each token in ``words``."""
    lengths: NDArray[np.int64]
    """``(sentences,)``: the number of positions of each sentence, at least 2."""

    def inputs(self, backward: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what one direction reads to predict its next position: all but the last that it would read.

        Returns:
            The index and the lengths of these positions.
        """
        return self.index[~self._at_end(first=backward)], self.lengths - 1

    def targets(self, backward: bool) -> NDArray[np.int64]:
        """Return the index of what one direction predicts from each of its :meth:`inputs`."""
        return self.index[self.is_target(backward)]

    def is_target(self, backward: bool) -> NDArray[np.bool_]:
        """Mark the positions that one direction predicts: ``(positions,)``."""
        return ~self._at_end(first=not backward)

    def _at_end(self, first: bool) -> NDArray[np.bool_]:
        """Mark the first or the last position of each sentence."""
        ends = np.cumsum(self.lengths)
        mark = np.zeros(len(self.index), np.bool_)
        mark[ends - self.lengths if first else ends - 1] = True
        return mark


@dataclass(frozen=True)
class PaddedBatch:
    """A batch of sentences with their boundaries, padded on the right."""

    index: NDArray[np.int64]
    """``(batch, time)``: the position of each token in ``words``; 0 on padding."""
    mask: NDArray[np.bool_]
    """``(batch, time)``: True on a real token, boundaries included."""
    words: list[str]
    """The distinct tokens of the batch, boundaries included, in order of appearance."""


@dataclass(frozen=True)
class EncodedBatch(PaddedBatch):
    """A padded batch together with the ids of its distinct tokens."""

    ids: NDArray[np.int64]
    """``(words, chars)`` or ``(words,)``: what the token layer reads for each of ``words``."""


def read_ahead(
    items: Iterable[Item],
    *,
    max_tokens: int | None = None,
    max_items: int | None = None,
    length: Callable[[Any], int] = len,
) -> Iterator[list[Item]]:
    """Yield the items of a stream in consecutive lists of bounded size.

    The lists depend only on the items and the limits. A computation that resumes at the start of a list therefore gets
    the same lists, and the same batches, as an uninterrupted one.

    Args:
        items: Sentences, or any items for which ``length`` returns a token count.
        max_tokens: End a list with the item that brings it to this many tokens, sentence boundaries included.
        max_items: End a list at this many items.
        length: Returns the number of tokens of an item, without boundaries.

    Yields:
        Lists of at least one item.
    """
    taken: list[Item] = []
    n_tokens = 0
    for item in items:
        taken.append(item)
        if max_tokens is not None:
            n_tokens += length(item) + N_BOUNDARIES
        if len(taken) == max_items or (max_tokens is not None and n_tokens >= max_tokens):
            yield taken
            taken, n_tokens = [], 0
    if taken:
        yield taken


def plan_batches(
    lengths: Sequence[Any],
    batch_tokens: int | None = None,
    *,
    batch_size: int | None = None,
    n_boundaries: int = N_BOUNDARIES,
) -> list[list[int]]:
    """Group sentences of similar length into batches.

    Padding counts towards ``batch_tokens``, because it costs memory. A single sentence above the limit gets a batch of
    its own, and so does every sentence that must be computed chunk by chunk (:func:`is_long`).

    Args:
        lengths: The number of tokens of each sentence, without boundaries. Without ``batch_tokens`` it may also be
            another sort key, such as a tuple of lengths for an example of several texts.
        batch_tokens: The largest padded size of a batch: sentences times the longest length with its boundaries.
        batch_size: The largest number of sentences in a batch.
        n_boundaries: Positions that will be added to each sentence; 0 for callers without boundaries.

    Returns:
        For each batch the indices of its sentences in ``lengths``. Sentences are sorted by falling length throughout;
        those of equal length keep their order.
    """
    plan: list[list[int]] = []
    max_items = 0  # of the last batch
    for number in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if plan and len(plan[-1]) < max_items:
            plan[-1].append(number)
            continue
        plan.append([number])
        max_items = len(lengths) if batch_size is None else batch_size
        if batch_tokens is not None:
            # The first sentence of a batch is its longest, so it decides how many fit.
            padded_length = lengths[number] + n_boundaries
            fitting = batch_tokens // max(1, padded_length)
            max_items = 1 if is_long(lengths[number]) else min(max_items, fitting)
    return plan


def is_long(n_tokens: int) -> bool:
    """Return whether a sentence is too long to be computed at once.

    :func:`plan_batches` gives each such sentence a batch of its own.
    """
    return n_tokens > LONG_SENTENCE_TOKENS


def restore_order(plan: Iterable[Sequence[int]], results: Iterable[Iterable[Result]]) -> list[Result]:
    """Put the results of planned batches back into the order of the sentences.

    Args:
        plan: The batches of :func:`plan_batches`, which hold every index once.
        results: For each batch, one result per sentence.

    Returns:
        One result per sentence, in the order in which the sentences were given to :func:`plan_batches`.
    """
    found: dict[int, Result] = {}
    for batch, batch_results in zip(plan, results, strict=True):
        found.update(zip(batch, batch_results, strict=True))
    return [found[number] for number in range(len(found))]


def map_in_batches(
    items: Iterable[Item],
    compute: Callable[[list[Item]], Iterable[Result]],
    *,
    batch_tokens: int,
    length: Callable[[Any], int] = len,
) -> Iterator[Result]:
    """Apply a function to batches of items of similar length, and yield its results in the order of the items.

    Args:
        items: Sentences, or any items for which ``length`` returns a token count. They are read a few batches ahead.
        compute: Maps a batch of items to one result per item.
        batch_tokens: The largest size of a batch, as in :func:`plan_batches`.
        length: Returns the number of tokens of an item, without boundaries.

    Yields:
        One result per item.

    Example:
        >>> list(map_in_batches([["a", "b"], ["c"]], lambda batch: map(len, batch), batch_tokens=2048))
        [2, 1]
    """
    for taken in read_ahead(items, max_tokens=READ_AHEAD_BATCHES * batch_tokens, length=length):
        plan = plan_batches([length(item) for item in taken], batch_tokens)
        yield from restore_order(plan, (compute([taken[number] for number in batch]) for batch in plan))


def number_tokens(sentences: Sequence[Sequence[str]]) -> NumberedBatch:
    """Add boundaries to the sentences of a batch, and number their distinct tokens.

    Raises:
        TextError: The sentences are a string or cannot be iterated over, one of them is not a list, or one of its
            tokens is not a string.
    """
    numbers: dict[str, int] = {}
    index: list[int] = []
    lengths: list[int] = []
    for sentence in check_sentences(sentences):
        tokens = [BEGIN_SENTENCE, *check_sentence(sentence), END_SENTENCE]
        index += [numbers.setdefault(token, len(numbers)) for token in tokens]
        lengths.append(len(tokens))
    return NumberedBatch(list(numbers), np.array(index, np.int64), np.array(lengths, np.int64))


def pad_batch(sentences: Sequence[Sequence[str]]) -> PaddedBatch:
    """Add boundaries to the sentences of a batch, pad them, and number their distinct tokens.

    Raises:
        TextError: As in :func:`number_tokens`.
    """
    batch = number_tokens(sentences)
    return PaddedBatch(*pad_rows(batch.index, batch.lengths, N_BOUNDARIES), batch.words)


def pad_rows(
    numbers: NDArray[np.int64], lengths: NDArray[np.int64], at_least: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Pad rows that follow each other with 0 on the right.

    Args:
        numbers: All rows, one after the other.
        lengths: The length of each row.
        at_least: The smallest length to pad to.

    Returns:
        The padded rows, ``(rows, longest)``, and True where there is a number.
    """
    mask = np.arange(lengths.max(initial=at_least)) < lengths[:, None]
    padded = np.zeros(mask.shape, dtype=np.int64)
    padded[mask] = numbers
    return padded, mask


def make_batch(sentences: Sequence[Sequence[str]], encode: TokenEncoder) -> EncodedBatch:
    """Pad the sentences of a batch and encode each distinct token once.

    Raises:
        TextError: A sentence is a string, or one of its tokens is not a string.
    """
    batch = pad_batch(sentences)
    return EncodedBatch(batch.index, batch.mask, batch.words, encode(batch.words))


def check_sentences(sentences: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
    """Return an iterator over tokenized sentences, each of which is checked to be a list when it is read.

    ``check_sentence`` also checks the tokens, and ``number_tokens`` calls it.

    Raises:
        TextError: The sentences are a string or cannot be iterated over, or one of them is not a list.
    """
    if isinstance(sentences, str):
        raise TextError(
            f"Expected a list of tokenized sentences, but got the string {_shortened(sentences)!r}. Pass "
            f"[{_first_words(sentences)}], or split raw text with elmokit.tokenize(text)."
        )
    if not isinstance(sentences, Iterable):
        raise TextError(
            f"Expected a list of tokenized sentences, but got {sentences!r} of type {type(sentences).__name__}."
        )
    return map(_check_is_list, sentences)


def check_sentence(sentence: Sequence[str]) -> Sequence[str]:
    """Return the sentence if it is a sequence of tokens.

    Raises:
        TextError: It is a string, or one of its tokens is not a string.
    """
    for token in _check_is_list(sentence):
        if not isinstance(token, str):
            raise TextError(f"Expected tokens to be strings, but got {token!r} of type {type(token).__name__}.")
    return sentence


def tokens_of(text: str | Sequence[str], tokenize: Callable[[str], list[str]]) -> list[str]:
    """Return the tokens of a text; those of a list of tokens are its own.

    Raises:
        TextError: It is neither a string nor a list of strings, such as a missing value of a table.
    """
    return tokenize(text) if isinstance(text, str) else list(check_sentence(text))


def _check_is_list(sentence: Sequence[str]) -> Sequence[str]:
    if isinstance(sentence, str):
        # A string with a space is probably a whole sentence; one without is a token of a sentence that was not wrapped.
        advice = (
            f"Pass {_first_words(sentence)}, or split raw text with elmokit.tokenize(text)."
            if " " in sentence
            else f"Put the tokens of each sentence into a list of their own: [[{_shortened(sentence)!r}, ...]]."
        )
        raise TextError(
            f"Expected a sentence as a list of tokens, but got the string {_shortened(sentence)!r}. {advice}"
        )
    if not isinstance(sentence, Sized):
        raise TextError(
            f"Expected a sentence as a list of tokens, but got {sentence!r} of type {type(sentence).__name__}."
        )
    return sentence


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _first_words(text: str) -> str:
    """Return the list of tokens that a text would be, for an error message."""
    words = text[:40].split()
    return f"[{', '.join(map(repr, words))}{', ...' if len(text) > 40 else ''}]"
