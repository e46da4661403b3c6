"""Turn a stream of sentences into padded batches, and batches back into a stream.

All parts of elmokit that run a model over text share these five steps:

1. :func:`read_ahead` takes a limited number of sentences from an iterator of any length.
2. :func:`plan_batches` groups these by length, to reduce padding.
3. :func:`number_tokens` adds sentence boundaries and lists each distinct token once. :func:`pad_batch` also pads
   the sentences, and :func:`make_batch` encodes the tokens, for PyTorch.
4. :func:`restore_order` returns the results to the order of the sentences.
5. :func:`is_long` identifies sentences that are too long to be computed at once.

:func:`map_in_batches` combines steps 1, 2 and 4 for the common case of one result per sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import TextError, missing_advice
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE

Item = TypeVar("Item")
SizedItem = TypeVar("SizedItem", bound=Sized)
Result = TypeVar("Result")
TokenEncoder = Callable[[Sequence[str]], NDArray[np.int64]]
"""Maps distinct tokens to the token layer's input ids: ``(tokens, chars)`` or ``(tokens,)``, all above 0."""
CaseReader = Callable[[Sequence[str]], Sequence[str]]
"""Maps a sentence to its tokens in the case in which the model reads them."""

N_BOUNDARIES = 2
READ_AHEAD_BATCHES = 8
"""Number of batches to read ahead. With fewer, few sentences of similar length end up in the same batch; more cost
memory and time without saving much padding."""
LONG_SENTENCE_TOKENS = 16_384
"""Longer sentences are computed in chunks, because all their activations would be in memory at once."""


@dataclass(frozen=True)
class NumberedBatch:
    """A batch of concatenated sentences with their boundaries."""

    words: list[str]
    """The distinct tokens of the batch, including boundaries, in order of appearance."""
    index: NDArray[np.int64]
    """``(positions,)``: the position of each token in ``words``."""
    lengths: NDArray[np.int64]
    """``(sentences,)``: the number of positions in each sentence, at least 2."""

    def inputs(self, backward: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the index and lengths of a direction's inputs: all positions but its last."""
        return self.index[~self._at_end(first=backward)], self.lengths - 1

    def targets(self, backward: bool) -> NDArray[np.int64]:
        """Return the index of what a direction predicts from each of its :meth:`inputs`."""
        return self.index[self.is_target(backward)]

    def is_target(self, backward: bool) -> NDArray[np.bool_]:
        """Mark the positions that a direction predicts: ``(positions,)``."""
        return ~self._at_end(first=not backward)

    def _at_end(self, first: bool) -> NDArray[np.bool_]:
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
    """``(batch, time)``: True on real tokens, including boundaries."""
    words: list[str]
    """The distinct tokens of the batch, boundaries included, in order of appearance."""


@dataclass(frozen=True)
class EncodedBatch(PaddedBatch):
    """A padded batch together with the ids of its distinct tokens."""

    ids: NDArray[np.int64]
    """``(words, chars)`` or ``(words,)``: the token layer's input for each of ``words``."""


def read_ahead(
    items: Iterable[Item],
    *,
    max_tokens: int | None = None,
    max_items: int | None = None,
    length: Callable[[Any], int] = len,
) -> Iterator[list[Item]]:
    """Yield the items of a stream in consecutive lists of ``max_items``, or less if they reach ``max_tokens``.

    The lists depend only on the items and the limits, so a computation that resumes at the start of a list gets the
    same lists and batches as an uninterrupted one. ``max_tokens`` includes sentence boundaries; ``length`` returns an
    item's number of tokens without them.
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
    """Group sentences of similar length into batches: lists of indices into ``lengths``, longest sentence first.

    Args:
        lengths: The number of tokens in each sentence, without boundaries. Without ``batch_tokens``, it can be another
            sort key, such as a tuple of lengths for an example with several texts.
        batch_tokens: Maximum padded size of a batch: the number of sentences times the longest length with boundaries.
            A single sentence above it gets a batch of its own, as does any sentence that :func:`is_long`.
        batch_size: Maximum number of sentences in a batch.
        n_boundaries: Number of positions that will be added to each sentence.
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
            # The first sentence of a batch is the longest, so it determines how many fit.
            padded_length = lengths[number] + n_boundaries
            fitting = batch_tokens // max(1, padded_length)
            max_items = 1 if is_long(lengths[number]) else min(max_items, fitting)
    return plan


def is_long(n_tokens: int) -> bool:
    """Check whether a sentence is too long to be computed at once. ``plan_batches`` gives it a batch of its own."""
    return n_tokens > LONG_SENTENCE_TOKENS


def restore_order(plan: Iterable[Sequence[int]], results: Iterable[Iterable[Result]]) -> list[Result]:
    """Return the results of planned batches in the order in which :func:`plan_batches` got the sentences."""
    by_number: dict[int, Result] = {}
    for batch, batch_results in zip(plan, results, strict=True):
        by_number.update(zip(batch, batch_results, strict=True))
    return [by_number[number] for number in range(len(by_number))]


def map_in_batches(
    items: Iterable[SizedItem], compute: Callable[[list[SizedItem]], Iterable[Result]], *, batch_tokens: int
) -> Iterator[Result]:
    """Apply a function to batches of items of similar length, and yield the results in the order of the items.

    Items are read a few batches ahead. ``compute`` maps a batch of items to one result per item.

    Example:
        >>> list(map_in_batches([["a", "b"], ["c"]], lambda batch: map(len, batch), batch_tokens=2048))
        [2, 1]
    """
    for taken in read_ahead(items, max_tokens=READ_AHEAD_BATCHES * batch_tokens):
        plan = plan_batches(list(map(len, taken)), batch_tokens)
        yield from restore_order(plan, (compute([taken[number] for number in batch]) for batch in plan))


def number_tokens(sentences: Sequence[Sequence[str]], in_case: CaseReader | None = None) -> NumberedBatch:
    """Check the sentences of a batch, add boundaries, and number the distinct tokens.

    ``in_case`` returns a sentence in the case in which the model reads it.
    """
    numbers: dict[str, int] = {}
    index: list[int] = []
    lengths: list[int] = []
    for sentence in check_sentences(sentences):
        check_sentence(sentence)
        tokens = [BEGIN_SENTENCE, *(sentence if in_case is None else in_case(sentence)), END_SENTENCE]
        index += [numbers.setdefault(token, len(numbers)) for token in tokens]
        lengths.append(len(tokens))
    return NumberedBatch(list(numbers), np.array(index, np.int64), np.array(lengths, np.int64))


def pad_batch(sentences: Sequence[Sequence[str]], in_case: CaseReader | None = None) -> PaddedBatch:
    """Add boundaries to the sentences of a batch, pad them, and number the distinct tokens."""
    batch = number_tokens(sentences, in_case)
    return PaddedBatch(*pad_rows(batch.index, batch.lengths, N_BOUNDARIES), batch.words)


def pad_rows(
    numbers: NDArray[np.int64], lengths: NDArray[np.int64], at_least: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Pad concatenated rows with 0 on the right to ``(rows, longest)``; also return the mask of real values."""
    mask = np.arange(lengths.max(initial=at_least)) < lengths[:, None]
    padded = np.zeros(mask.shape, dtype=np.int64)
    padded[mask] = numbers
    return padded, mask


def make_batch(
    sentences: Sequence[Sequence[str]], encode: TokenEncoder, in_case: CaseReader | None = None
) -> EncodedBatch:
    """Pad the sentences of a batch and encode each distinct token once."""
    batch = pad_batch(sentences, in_case)
    return EncodedBatch(batch.index, batch.mask, batch.words, encode(batch.words))


def check_sentences(sentences: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
    """Check that ``sentences`` is not a string and, as they are read, that each is a list (not the tokens in it)."""
    if isinstance(sentences, str):
        _check_is_list(sentences)
    return map(_check_is_list, sentences)


def check_sentence(sentence: Sequence[str]) -> Sequence[str]:
    """Return the sentence if it is a sequence of tokens, else raise a TextError."""
    for token in _check_is_list(sentence):
        if not isinstance(token, str):
            raise TextError(f"Expected tokens to be strings, but got {_described(token)}.{missing_advice(token)}")
    return sentence


def check_texts(texts: Iterable[str | Sequence[str]]) -> None:
    """Raise a TextError for a string instead of a list of strings: it would be read as a list of characters."""
    if isinstance(texts, str):
        raise TextError(f"Expected a list of strings, but got the string {_shortened(texts)!r}. Wrap it in a list.")


def sentences_of_all(
    texts: Iterable[str | Sequence[str]], tokenize: Callable[[str], list[str]] | None
) -> list[list[list[str]]]:
    """Return the tokenized sentences of texts, or of lists of tokens, each of which is one sentence.

    By default, texts are split by :func:`elmokit.tokenize`. A custom ``tokenize`` returns one sentence.
    """
    from elmokit.text.tokenize import tokenize as split_text  # imported here because tokenized text does not need it

    check_texts(texts)
    split = split_text if tokenize is None else lambda text: [tokenize(text)]
    sentences = []
    for text in texts:
        if isinstance(text, str):
            sentences.append(split(text))
        else:  # anything but tokens, such as a missing value from a table, raises a TextError
            sentences.append([list(check_sentence(text))])
    return sentences


def _check_is_list(sentence: Sequence[str]) -> Sequence[str]:
    # Sets and mappings are not sequences of tokens.
    if isinstance(sentence, Sized) and not isinstance(sentence, str | bytes | Set | Mapping):
        return sentence
    if advice := missing_advice(sentence):
        raise TextError(f"Expected a text or a list of tokens, but got {_described(sentence)}.{advice}")
    given = _described(sentence)
    if isinstance(sentence, str):
        # A string with a space is probably a raw sentence; one without is a token of a sentence not wrapped in a list.
        given = f"the string {_shortened(sentence)!r}"
        advice = " To split raw text, pass tokenize=True to Elmo.embed, or call elmokit.tokenize(text)."
        if " " not in sentence:
            advice = f" Put the tokens of each sentence into a separate list: [[{_shortened(sentence)!r}, ...]]."
    raise TextError(f"Expected a sentence as a list of tokens, but got {given}.{advice}")


def _described(value: object) -> str:
    return f"{value!r} of type {type(value).__name__}"


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
