"""A continuous cache, which favors words from earlier in a document (Grave, Joulin and Usunier 2017).

p = (1 - w) p_model + w p_cache. The cache gives each previously predicted word the weight exp(theta cos(h, h_i)), where
h is the top layer that predicts the next word, and h_i the one that predicted that word. "Previously" refers to the
reading order of a direction: forward, all preceding words; backward, the following words in the sentence and all words
of the preceding sentences, because both directions read a document's sentences in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.config import check_at_least
from elmokit.embedding.computer import Computer, computer_of
from elmokit.embedding.documents import read_texts
from elmokit.embedding.start_state import StartName, start_state
from elmokit.engine.state import Floats, Ids, State
from elmokit.engine.token_cache import TokenCache
from elmokit.errors import ConfigError
from elmokit.lm.surprisal import BATCH_TOKENS, Predictions, Surprisal, predict_rows, softmax_vocabulary, words_as_read
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.batching import check_sentences
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE
from elmokit.text.foreign import UNKNOWN_MARKS

MAX_THETA = 40.0
"""Up to here, exp(theta (cos - 1)) is above 0 in float32."""
ROWS_AT_ONCE = 128
"""Positions that are compared with the cache at a time."""
SIZES = (50, 150, 400, 1000)
"""Cache sizes, in words, at which the weight of the cache changes."""
FORWARD_WEIGHTS = (0.028, 0.077, 0.117, 0.153, 0.200)
"""The cache's forward weights, below and from each of ``SIZES``. Fitted by EM for en-mini on the first 10,000 words of
documents (novels: 6,000) from each of the six kinds of dev texts; see results/documents.md."""
BACKWARD_WEIGHTS = (0.026, 0.071, 0.110, 0.148, 0.191)
"""The backward weights."""


@dataclass(frozen=True)
class CacheSettings:
    """Settings of the cache of a document's words."""

    theta: float = 15.0
    """How much more words at similar positions count: 0 for equal weights, at most 40."""
    size: int = 2000
    """Number of words to remember, including boundaries: the last ones in each direction."""

    def __post_init__(self) -> None:
        if not 0 <= self.theta <= MAX_THETA:
            raise ConfigError(f"theta is {self.theta!r}; expected a number from 0 to {MAX_THETA:g}.")
        check_at_least("size", self.size, 1)


def cache_settings(cache: bool | CacheSettings, documents: bool) -> CacheSettings | None:
    """Return the settings for an argument ``cache``; None for no cache.

    Raises:
        ConfigError: There are no documents.
    """
    if cache is False:
        return None
    if not documents:
        raise ConfigError("cache only works with documents: pass documents=True (--documents).")
    return CacheSettings() if cache is True else cache


class Remembered(NamedTuple):
    """The contents of a cache at some positions."""

    words: Ids
    """``(entries,)``: the numbers of the words, of which some are equal."""
    shares: Floats
    """``(positions, entries)``: the probability of each entry: 0 for words that a position does not have before it."""
    weights: NDArray[np.float64]
    """``(positions,)``: the weight of the cache; 0 for the first word of a document, which has nothing before it."""


class WordCache:
    """The last words of a document, in the reading order of one direction."""

    def __init__(self, settings: CacheSettings, weights: Sequence[float], dim: int) -> None:
        self.settings, self.weights = settings, np.array(weights)
        self.vectors, self.words = np.zeros((0, dim), np.float32), np.zeros(0, np.int64)

    def expect(self, hidden: Floats, words: Ids) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the probability of each word in the cache at its position, and the cache's weight there.

        Args:
            hidden: What predicts the next words, ``(positions, dim)``, in the order in which they are read.
            words: The numbers of these words, which are remembered.
        """
        probabilities, weights = np.zeros(len(words)), np.zeros(len(words))
        for block, remembered in self.read(hidden, words):
            is_same = remembered.words == words[block, None]
            probabilities[block] = (remembered.shares * is_same).sum(axis=1, dtype=np.float64)
            weights[block] = remembered.weights
        return probabilities, weights

    def read(self, hidden: Floats, words: Ids) -> Iterator[tuple[slice, Remembered]]:
        """Yield the contents of the cache at the next positions, some at a time, and remember their words."""
        norms = np.linalg.norm(hidden, axis=1, keepdims=True)
        vectors = hidden / np.maximum(norms, np.finfo(np.float32).tiny)
        for first in range(0, len(words), ROWS_AT_ONCE):
            block = slice(first, first + ROWS_AT_ONCE)
            yield block, self._read_block(vectors[block], words[block])

    def _read_block(self, vectors: Floats, words: Ids) -> Remembered:
        n_before, size = len(self.words), self.settings.size
        all_vectors = np.concatenate([self.vectors, vectors])
        all_words = np.concatenate([self.words, words])
        self.vectors, self.words = all_vectors[-size:], all_words[-size:]
        entries = np.arange(len(all_words))
        positions = np.arange(n_before, len(all_words))[:, None]
        is_remembered = (entries < positions) & (entries >= positions - size)
        strengths = np.exp(self.settings.theta * (vectors @ all_vectors.T - 1)) * is_remembered
        total = strengths.sum(axis=1, keepdims=True)
        n_remembered = np.minimum(positions[:, 0], size)
        weights = self.weights[np.searchsorted(SIZES, n_remembered, side="right")]
        shares = strengths / np.where(total > 0, total, 1)
        return Remembered(all_words, shares, np.where(n_remembered > 0, weights, 0))


class CachedWords(NamedTuple):
    """The distinct words that a cache expects at a position."""

    words: Ids
    """Their numbers: below 0, ``-1 - i`` for the unknown word ``i`` of :class:`DocumentCache`."""
    probabilities: NDArray[np.float64]
    weight: float
    """That of the cache."""


class DocumentCache:
    """The caches of both directions for a document.

    Args:
        model: The model that reads the documents.
        settings: Those of the caches.
        spell: The nats of the letters of an unknown word, ``Spelling.nats``.
    """

    def __init__(self, model: PretrainedBiLM, settings: CacheSettings, spell: Callable[[str], float]) -> None:
        self.model, self.settings, self.spell = model, settings, spell
        self.unknown: dict[str, float] = {}
        """The unknown words of the document, in order of appearance, with the nats of their letters."""
        self._numbers: dict[str, int] = {}
        self._caches: list[WordCache] = []

    def begin(self) -> None:
        """Forget all words, at the start of a document."""
        self.unknown, self._numbers, self._caches = {}, {}, []

    def add_to(self, predictions: Predictions) -> Surprisal:
        """Return the surprisal of the next sentence with the cache, including ``spelling_nats``; remember its words."""
        found = predictions.surprisal
        expected, weights, spelling = self.expect(predictions)
        # An unknown word that is in a cache is a word of its own, whose letters are part of its nats.
        is_expected = found.is_unknown & (expected > 0).any(axis=0)
        spelled = np.where(is_expected, spelling, 0.0)
        by_model = np.log1p(-weights) - found.nats - spelled
        # -infinity for what the cache does not have; NaN stays where a direction predicts nothing.
        with np.errstate(divide="ignore", invalid="ignore"):
            nats = -np.logaddexp(by_model, np.log(weights * expected))
        nats = nats.clip(min=0).astype(np.float32)  # rounding could give a certain word slightly less than 0
        return replace(found, nats=nats, spelling_nats=spelling - spelled)

    def expect(self, predictions: Predictions) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Remember the words of the next sentence.

        Returns:
            For each direction the probability of each word in its cache, and the weight of the cache, both
            ``(directions, n + 2)`` and 0 where a direction predicts nothing; and the nats of the letters of unknown
            words, ``(n + 2,)``.
        """
        found, word_ids, hidden = predictions
        words, spelling = self._number_words(found.tokens, word_ids)
        expected, weights = np.zeros(found.nats.shape), np.zeros(found.nats.shape)
        for direction, (cache, order, rows) in enumerate(self._directions(hidden)):
            expected[direction, order], weights[direction, order] = cache.expect(rows, words[order])
        return expected, weights, spelling

    def expected_words(
        self, sentence: Sequence[str], hidden: Sequence[Floats], positions: Sequence[int], directions: Collection[int]
    ) -> dict[int, list[CachedWords]]:
        """Return the words that the caches of some directions expect at positions; remember the sentence in all.

        Args:
            sentence: The tokens of the next sentence.
            hidden: As in :class:`Predictions`.
            positions: Indices of its tokens.
            directions: The numbers of these directions.
        """
        tokens = [BEGIN_SENTENCE, *sentence, END_SENTENCE]
        read = map(self.model.read, self.model.read.in_case(sentence))
        word_ids = softmax_vocabulary(self.model).word_ids([BEGIN_SENTENCE, *read, END_SENTENCE])
        words, _ = self._number_words(tokens, word_ids)
        found = {}
        for direction, (cache, order, rows) in enumerate(self._directions(hidden)):
            asked = set(positions) if direction in directions else set()
            expected: dict[int, CachedWords] = {}
            for block, remembered in cache.read(rows, words[order]):
                for row, position in enumerate((order[block] - 1).tolist()):
                    if position in asked:
                        expected[position] = _sum_by_word(remembered, row)
            if direction in directions:
                found[direction] = [expected[position] for position in positions]
        return found

    def _directions(self, hidden: Sequence[Floats]) -> Iterator[tuple[WordCache, NDArray[np.intp], Floats]]:
        """Yield for each direction its cache, the positions that it predicts in its order, and from what it does."""
        read_backward = self.model.config.read_backward
        if not self._caches:
            dim = hidden[0].shape[1]
            for backward in read_backward:
                weights = BACKWARD_WEIGHTS if backward else FORWARD_WEIGHTS
                self._caches.append(WordCache(self.settings, weights, dim))
        for cache, rows, backward in zip(self._caches, hidden, read_backward, strict=True):
            if backward:
                yield cache, np.arange(len(rows) - 1, -1, -1), rows[::-1]
            else:
                yield cache, np.arange(1, len(rows) + 1), rows

    def _number_words(self, tokens: Sequence[str], word_ids: Ids) -> tuple[Ids, NDArray[np.float64]]:
        """Return the number of each word, below 0 for unknown ones, and the nats of the letters of these."""
        numbers, spelling = word_ids.copy(), np.zeros(len(word_ids))
        is_unknown = word_ids == softmax_vocabulary(self.model).unknown_id
        if not is_unknown.any():
            return numbers, spelling
        words = words_as_read(self.model, tokens, is_unknown)
        for position in is_unknown.nonzero()[0].tolist():
            word = words[position]
            if word in UNKNOWN_MARKS:
                continue  # it stands for any unknown word
            if word not in self.unknown:
                self._numbers[word] = -1 - len(self.unknown)
                self.unknown[word] = self.spell(word)
            numbers[position], spelling[position] = self._numbers[word], self.unknown[word]
        return numbers, spelling


def _sum_by_word(remembered: Remembered, row: int) -> CachedWords:
    """Sum the entries of each word at a position."""
    is_before = remembered.shares[row] > 0
    words, places = np.unique(remembered.words[is_before], return_inverse=True)
    probabilities = np.zeros(len(words))
    np.add.at(probabilities, places, remembered.shares[row, is_before])
    return CachedWords(words, probabilities, float(remembered.weights[row]))


class DocumentStarts:
    """Documents that are read once, with a record of the sentences that begin one."""

    def __init__(self, documents: Iterable[Iterable[Sequence[str]]]) -> None:
        self._documents = documents
        self._begins: deque[bool] = deque()

    def __iter__(self) -> Iterator[Iterator[Sequence[str]]]:
        return map(self._read, self._documents)

    def _read(self, document: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
        begins = True
        for sentence in check_sentences(document):
            self._begins.append(begins)
            begins = False
            yield sentence

    def next_begins(self) -> bool:
        """Check whether the next sentence begins a document, in reading order."""
        return self._begins.popleft()


def cached_surprisals(
    model: PretrainedBiLM | Computer,
    documents: Iterable[Iterable[Sequence[str]]],
    cache: DocumentCache,
    start: StartName | State = "warm",
    batch_tokens: int = BATCH_TOKENS,
) -> Iterator[Surprisal]:
    """Yield the surprisal of each sentence in documents, with a cache of each document's words.

    An unknown word that is in a direction's cache is treated as a known word: its nats are those of the whole word, and
    its ``spelling_nats`` are 0. So the sum of both is minus the log probability of the word, with or without the cache.

    Args:
        model, start, batch_tokens: As in ``surprisals``.
        documents: The tokenized sentences of each document.
        cache: The cache, which no other call is using.
    """
    computer = computer_of(model)
    softmax_vocabulary(computer.model)
    starts = DocumentStarts(documents)
    compute = partial(predict_rows, computer, TokenCache())
    read = read_texts(starts, compute, start_state(computer, start), batch_tokens, documents=True)
    return _add_cache(read, starts, cache)


def _add_cache(read: Iterator[Predictions], starts: DocumentStarts, cache: DocumentCache) -> Iterator[Surprisal]:
    for predictions in read:
        if starts.next_begins():
            cache.begin()
        yield cache.add_to(predictions)
