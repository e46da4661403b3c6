"""A continuous cache: words that a document has had are expected again (Grave, Joulin and Usunier 2017).

p = (1 - w) p_model + w p_cache. The cache gives each word that was predicted before the weight exp(theta cos(h, h_i)),
where h is the top layer that predicts the next word now, and h_i the one that predicted that word then. "Before" is the
order in which a direction reads: forward all words before; backward the words after in the sentence, and all words of
the sentences before it, as a document's sentences are read in their order in both directions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from elmokit.config import check_at_least
from elmokit.embedding.computer import Computer, computer_of
from elmokit.embedding.documents import read_texts
from elmokit.embedding.start_state import StartName, start_state
from elmokit.engine.state import Floats, Ids, State
from elmokit.engine.token_cache import TokenCache
from elmokit.errors import ConfigError
from elmokit.formats.model import PretrainedBiLM
from elmokit.lm.surprisal import BATCH_TOKENS, Predictions, Surprisal, predict_rows, softmax_vocabulary, words_as_read
from elmokit.text.batching import check_sentences

MAX_THETA = 40.0
"""Up to here, exp(theta (cos - 1)) is above 0 in float32."""
ROWS_AT_ONCE = 128
"""Positions that are compared with the cache at a time."""
SIZES = (50, 150, 400, 1000)
"""Numbers of words in the cache at which its weight changes."""
FORWARD_WEIGHTS = (0.030, 0.092, 0.124, 0.155, 0.188)
"""The cache's weight forward, below and from each of ``SIZES``. Fitted by EM for en-mini on the first 10,000 words of
documents (novels: 6,000) of each of the six kinds of dev texts; see results/documents.md."""
BACKWARD_WEIGHTS = (0.030, 0.084, 0.118, 0.152, 0.180)
"""The same backward."""


@dataclass(frozen=True)
class CacheSettings:
    """How a document's own words are expected again."""

    theta: float = 15.0
    """How much more a word of a similar position counts: 0 for all alike, at most 40."""
    size: int = 2000
    """The words that are remembered, boundaries included: the last ones in each direction."""

    def __post_init__(self) -> None:
        if not 0 <= self.theta <= MAX_THETA:
            raise ConfigError(f"theta is {self.theta!r}; expected a number from 0 to {MAX_THETA:g}.")
        check_at_least("size", self.size, 1)


def cache_settings(cache: bool | CacheSettings, documents: bool) -> CacheSettings | None:
    """Return the settings that an argument ``cache`` means; None for no cache.

    Raises:
        ConfigError: There are no documents.
    """
    if cache is False:
        return None
    if not documents:
        raise ConfigError("cache expects words of a document again: read documents (documents=True, --documents).")
    return CacheSettings() if cache is True else cache


class WordCache:
    """The last words of a document in the order in which one direction read them."""

    def __init__(self, settings: CacheSettings, weights: Sequence[float], dim: int) -> None:
        self.settings, self.weights = settings, np.array(weights)
        self.vectors, self.words = np.zeros((0, dim), np.float32), np.zeros(0, np.int64)

    def expect(self, hidden: Floats, words: Ids) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the probability of each word in the cache at its position, and the cache's weight there.

        Args:
            hidden: What predicts the next words, ``(positions, dim)``, in the order in which they are read.
            words: The numbers of these words, which are remembered.
        """
        norms = np.linalg.norm(hidden, axis=1, keepdims=True)
        vectors = hidden / np.maximum(norms, np.finfo(np.float32).tiny)
        probabilities, weights = np.zeros(len(words)), np.zeros(len(words))
        for first in range(0, len(words), ROWS_AT_ONCE):
            block = slice(first, first + ROWS_AT_ONCE)
            probabilities[block], weights[block] = self._expect_block(vectors[block], words[block])
        return probabilities, weights

    def _expect_block(self, vectors: Floats, words: Ids) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        n_before, size = len(self.words), self.settings.size
        self.vectors = np.concatenate([self.vectors, vectors])
        self.words = np.concatenate([self.words, words])
        entries = np.arange(len(self.words))
        positions = np.arange(n_before, len(self.words))[:, None]
        remembered = (entries < positions) & (entries >= positions - size)
        strengths = np.exp(self.settings.theta * (vectors @ self.vectors.T - 1)) * remembered
        total = strengths.sum(axis=1, dtype=np.float64)
        same = (strengths * (self.words == words[:, None])).sum(axis=1, dtype=np.float64)
        n_remembered = np.minimum(positions[:, 0], size)
        weights = self.weights[np.searchsorted(SIZES, n_remembered, side="right")]
        self.vectors, self.words = self.vectors[-size:], self.words[-size:]
        # The first word of a document has nothing before it.
        return same / np.where(total > 0, total, 1), np.where(n_remembered > 0, weights, 0)


class DocumentCache:
    """The caches of both directions of a document, which add what they expect to the surprisal of its sentences."""

    def __init__(
        self,
        settings: CacheSettings,
        read_backward: Sequence[bool],
        words_as_read: Callable[[Surprisal], list[str]],
        spell: Callable[[str], float],  # the nats of the letters of an unknown word
    ) -> None:
        self.settings, self.read_backward = settings, read_backward
        self.words_as_read, self.spell = words_as_read, spell
        self._caches: list[WordCache] = []
        self._unknown: dict[str, int] = {}

    def begin(self) -> None:
        """Forget all words: a document begins."""
        self._caches, self._unknown = [], {}

    def add_to(self, predictions: Predictions) -> Surprisal:
        """Return the surprisal of the next sentence with the cache, with ``spelling_nats``, and remember its words."""
        found, word_ids, hidden = predictions
        if not self._caches:
            dim = hidden[0].shape[1]
            self._caches = [
                WordCache(self.settings, BACKWARD_WEIGHTS if backward else FORWARD_WEIGHTS, dim)
                for backward in self.read_backward
            ]
        words, spelling = self._number_words(found, word_ids)
        expected = np.zeros(found.nats.shape)
        weights = np.zeros(found.nats.shape)
        for direction, backward in enumerate(self.read_backward):
            if backward:
                order = np.arange(len(words) - 2, -1, -1)
                rows = hidden[direction][::-1]
            else:
                order = np.arange(1, len(words))
                rows = hidden[direction]
            expected[direction, order], weights[direction, order] = self._caches[direction].expect(rows, words[order])
        # An unknown word that is in a cache is a word of its own, whose letters are part of its nats.
        is_expected = found.is_unknown & (expected > 0).any(axis=0)
        spelled = np.where(is_expected, spelling, 0.0)
        by_model = np.log1p(-weights) - found.nats - spelled
        # -infinity for what the cache does not have; NaN stays where a direction predicts nothing.
        with np.errstate(divide="ignore", invalid="ignore"):
            nats = -np.logaddexp(by_model, np.log(weights * expected))
        nats = nats.clip(min=0).astype(np.float32)  # rounding could give a certain word slightly less than 0
        return replace(found, nats=nats, spelling_nats=spelling - spelled)

    def _number_words(self, found: Surprisal, word_ids: Ids) -> tuple[Ids, NDArray[np.float64]]:
        """Return the number of each word, below 0 for unknown ones, and the nats of the letters of these."""
        numbers, spelling = word_ids.copy(), np.zeros(len(word_ids))
        if found.is_unknown.any():
            words = self.words_as_read(found)
            for position in found.is_unknown.nonzero()[0].tolist():
                word = words[position]
                numbers[position] = self._unknown.setdefault(word, -1 - len(self._unknown))
                spelling[position] = self.spell(word)
        return numbers, spelling


class DocumentStarts:
    """Documents that are read once, and which of the sentences that were read begin one."""

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
        """Say whether the next sentence begins a document, in the order in which they were read."""
        return self._begins.popleft()


def cached_surprisals(
    model: PretrainedBiLM | Computer,
    documents: Iterable[Iterable[Sequence[str]]],
    settings: CacheSettings,
    spell: Callable[[str], float],
    start: StartName | State = "warm",
    batch_tokens: int = BATCH_TOKENS,
) -> Iterator[Surprisal]:
    """Yield the surprisal of each sentence of documents, whose own words are expected again.

    An unknown word that is in the cache of a direction is a word of its own: its nats are those of the whole word, and
    its ``spelling_nats`` are 0. So the sum of both is minus the log probability of a word, with the cache or without.

    Args:
        model, start, batch_tokens: As in ``surprisals``.
        documents: The tokenized sentences of each document.
        settings: Those of the cache.
        spell: The nats of the letters of an unknown word, ``Spelling.nats``.
    """
    computer = computer_of(model)
    softmax_vocabulary(computer.model)
    starts = DocumentStarts(documents)
    words = DocumentCache(settings, computer.model.config.read_backward, partial(words_as_read, computer.model), spell)
    compute = partial(predict_rows, computer, TokenCache())
    read = read_texts(starts, compute, start_state(computer, start), batch_tokens, documents=True)
    return _add_cache(read, starts, words)


def _add_cache(read: Iterator[Predictions], starts: DocumentStarts, words: DocumentCache) -> Iterator[Surprisal]:
    for predictions in read:
        if starts.next_begins():
            words.begin()
        yield words.add_to(predictions)
