"""Substitutes: the words that a language model expects at a position, without seeing the word there."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from elmokit.config import check_at_least, check_choice
from elmokit.embedding.computer import Computer, computer_of
from elmokit.embedding.documents import read_on, read_texts
from elmokit.embedding.start_state import StartName, start_state
from elmokit.engine.softmax import ROWS_AT_ONCE
from elmokit.engine.state import Floats, Ids, State
from elmokit.errors import ConfigError
from elmokit.lm.surprisal import BATCH_TOKENS, softmax_and_vocabulary, softmax_vocabulary
from elmokit.lm.word_cache import CachedWords, DocumentCache, DocumentStarts
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.batching import check_sentences
from elmokit.text.vocabulary import SPECIALS, Vocabulary

Direction = Literal["forward", "backward", "both"]
UNIGRAM_POWER = 0.75
"""Each direction favors frequent words. Their product counts frequency twice, so it is divided by this power of the
frequency: 0.75 was the best of 0.5, 0.75 and 1 (contributing/tried.md)."""
Query = tuple[Sequence[str], Sequence[int]]
"""A sentence, and the indices of its tokens."""
Expected = dict[Direction, list["Substitute"]]
"""The words that each direction expects at a position."""


class Substitute(NamedTuple):
    """A possible word at a position."""

    word: str
    probability: float
    """Normalized over the requested words: the vocabulary with or without its special words."""
    score: float
    """The score before the softmax, whose probabilities are ``probability``."""
    word_id: int
    """Its number in the vocabulary; that of ``<UNK>`` for an unknown word of the document, from a cache."""


@dataclass(frozen=True)
class Wanted:
    """Which words to return at each position."""

    directions: Sequence[Direction]
    n: int = 10
    """Number of words per direction."""
    special_words: bool = False
    """Whether to include ``<S>``, ``</S>`` and ``<UNK>``. Otherwise, probabilities are normalized over the other words,
    because ``<UNK>`` has the probability of all rare words together and would often come first."""

    def sides(self, direction: Direction, n_sides: int) -> list[int]:
        """Return the sides that a direction uses: forward is the first side, backward the last."""
        return {"forward": [0], "backward": [n_sides - 1], "both": [0, 1]}[direction]

    def check(self, model: PretrainedBiLM) -> None:
        """Check that a model can find them."""
        softmax_vocabulary(model)
        for direction in self.directions:
            check_choice("direction", direction, get_args(Direction))
            if direction != "forward" and not model.config.bidirectional:
                raise ConfigError(
                    f"direction is {direction!r}, but {model.source} only reads forward: choose 'forward'."
                )
        check_at_least("n", self.n, 1)


def all_substitutes(
    model: PretrainedBiLM | Computer,
    sentences: Iterable[Sequence[str]],
    direction: Direction = "both",
    n: int = 10,
    start: StartName | State = "warm",
    batch_tokens: int = BATCH_TOKENS,
    special_words: bool = False,
) -> Iterator[list[list[Substitute]]]:
    """Yield the substitutes for each token of each sentence, in order."""
    queries = ((sentence, range(len(sentence))) for sentence in check_sentences(sentences))
    wanted = Wanted([direction], n, special_words)
    for positions in expected_words(model, queries, wanted, start, batch_tokens):
        yield [words[direction] for words in positions]


def expected_words(
    model: PretrainedBiLM | Computer,
    texts: Iterable[Any],
    wanted: Wanted,
    start: StartName | State = "warm",
    batch_tokens: int = BATCH_TOKENS,
    *,
    documents: bool = False,
    cache: DocumentCache | None = None,
) -> Iterator[list[Expected]]:
    """Yield the words that each direction expects at each position of each query, in order.

    ``texts`` are queries or, with ``documents``, documents of queries. Each sentence is read only once for all
    positions and directions. With ``cache``, words from earlier in the document are more probable, including unknown
    ones.
    """
    computer = computer_of(model)
    wanted.check(computer.model)
    asked: deque[Sequence[int]] = deque()  # the positions of the sentences that were read

    def sentences_of(queries: Iterable[Query]) -> Iterator[Sequence[str]]:
        for sentence, positions in queries:
            asked.append(positions)
            yield sentence

    starts = DocumentStarts(map(sentences_of, texts)) if documents else None
    read = sentences_of(texts) if starts is None else starts
    first = start_state(computer, start)
    for sentence in read_texts(read, partial(_read, computer), first, batch_tokens, documents=documents):
        positions = list(asked.popleft())
        if starts is not None and starts.next_begins() and cache is not None:
            cache.begin()
        cached = None
        if cache is not None:
            n_sides = len(sentence.hidden)
            needed = {number for direction in wanted.directions for number in wanted.sides(direction, n_sides)}
            cached = cache.expected_words(sentence.tokens, sentence.hidden, positions, needed)
        yield _best(computer, sentence.predicting(computer.model, positions), wanted, cached, cache)


class _ReadSentence(NamedTuple):
    """A model's results for a sentence."""

    tokens: Sequence[str]
    """Without boundaries, ``(n,)``."""
    hidden: list[Floats]
    """For each direction ``(n + 1, projection_dim)``: the top layer, by position in the text."""

    def predicting(self, model: PretrainedBiLM, positions: Sequence[int]) -> list[Floats]:
        """Return each direction's vectors that predict the tokens at positions, ``(positions, projection_dim)``."""
        # The forward LSTM predicts a token from the previous position, the backward LSTM from the next one.
        sides = zip(self.hidden, model.config.read_backward, strict=True)
        return [(top[1:] if backward else top[:-1])[positions] for top, backward in sides]


def _read(
    computer: Computer, rows: Sequence[Sequence[Sequence[str]]], state: State
) -> tuple[list[_ReadSentence], State]:
    """Compute the vectors that predict each token of the next sentences in some documents; see ``read_on``."""
    model = computer.model
    _, layers, after = read_on(computer, rows, state, [model.config.n_layers])
    for tops in layers:
        for top in tops:
            computer.check_finite(top)
    found = []
    for number, sentence in enumerate(chain.from_iterable(rows)):
        found.append(_ReadSentence(sentence, [tops[number][0] for tops in layers]))
    return found, after


def _best(
    computer: Computer,
    sides: Sequence[Floats],
    wanted: Wanted,
    cached: Mapping[int, Sequence[CachedWords]] | None,
    cache: DocumentCache | None,
) -> list[Expected]:
    """Find the best words of each row of ``sides``: ``(rows, projection_dim)`` for each direction of the model."""
    vocabulary = softmax_vocabulary(computer.model)
    sides_of = {direction: wanted.sides(direction, len(sides)) for direction in wanted.directions}
    omitted = []
    if not wanted.special_words:
        omitted = [vocabulary.ids[word] for word in SPECIALS if word in vocabulary.ids]
    words = _Words(vocabulary, {} if cache is None else cache.unknown)
    positions: list[Expected] = []
    for first in range(0, len(sides[0]), ROWS_AT_ONCE):  # the scores of all words need much memory
        block = slice(first, first + ROWS_AT_ONCE)
        scores: dict[int, Floats] = {}
        for number in set(chain.from_iterable(sides_of.values())):
            scores[number] = _side_scores(computer, sides[number][block])
            if cached is not None:
                scores[number] = words.add_cache(scores[number], cached[number][block])
        rows: list[Expected] = [{} for _ in sides[0][block]]
        for direction in wanted.directions:
            total = words.combine([scores[number] for number in sides_of[direction]])
            total[:, omitted] = -np.inf
            n = min(wanted.n, total.shape[1] - len(omitted))
            for row, best in zip(rows, _best_of(computer, words, total, n, omitted), strict=True):
                row[direction] = best
        positions += rows
    return positions


def _side_scores(computer: Computer, side: Floats) -> Floats:
    """Compute the scores of all words of the vocabulary, ``(rows, vocabulary)``."""
    softmax, _ = softmax_and_vocabulary(computer)
    scores = softmax.scores(side)
    computer.check_finite(scores)
    return scores


class _Words:
    """The possible words: a vocabulary, followed by the unknown words of a document."""

    def __init__(self, vocabulary: Vocabulary, unknown: Mapping[str, float]) -> None:
        self.vocabulary, self.strings = vocabulary, list(unknown)
        self.spelling = np.array(list(unknown.values()))

    def substitute(self, number: int, probability: float, score: float) -> Substitute:
        """Return a word by its number."""
        n_known = len(self.vocabulary)
        if number < n_known:
            return Substitute(self.vocabulary.words[number], probability, score, number)
        return Substitute(self.strings[number - n_known], probability, score, self.vocabulary.unknown_id)

    def add_cache(self, scores: Floats, cached: Sequence[CachedWords]) -> Floats:
        """Mix the words expected by a cache into the scores of the vocabulary.

        Args:
            scores: ``(rows, vocabulary)``.
            cached: The words that the cache expects, for each row.

        Returns:
            Log probabilities, ``(rows, words)``: -infinity for an unknown word that the cache does not have.
        """
        n_known, unknown_id, spelling = len(self.vocabulary), self.vocabulary.unknown_id, self.spelling
        mixed = np.full((len(scores), n_known + len(spelling)), -np.inf, np.float32)
        of_model = np.log1p([[-one.weight] for one in cached], dtype=np.float32)
        np.add(scores, of_model - _log_sum_exp(scores), out=mixed[:, :n_known])
        for row, (numbers, probabilities, weight) in enumerate(cached):
            strings = -1 - numbers[numbers < 0]
            unknown = mixed[row, unknown_id]
            mixed[row, n_known + strings] = unknown - spelling[strings]
            named = min(1.0, float(np.exp(-spelling[strings]).sum()))  # rounded, it can be above 1
            with np.errstate(divide="ignore"):
                mixed[row, unknown_id] = unknown + np.log1p(-named)  # all other strings
            if weight > 0:
                columns = np.where(numbers < 0, n_known - 1 - numbers, numbers)
                by_cache = np.log(weight * probabilities)
                mixed[row, columns] = np.logaddexp(mixed[row, columns], by_cache)
        return mixed

    def combine(self, sides: Sequence[Floats]) -> Floats:
        """Return a copy of the scores of one direction, or the scores of the product of two."""
        if len(sides) == 1:
            return sides[0].copy()
        forward, backward = sides
        unigram = log_unigram(self.vocabulary)
        if self.strings:  # each counts as the rarest word
            unigram = np.append(unigram, np.full(len(self.strings), unigram.min(), np.float32))
        with np.errstate(over="ignore"):  # scores near the bound of float32 become -infinity: probability 0
            total: Floats = forward - _log_sum_exp(forward) + (backward - _log_sum_exp(backward))
            return total - np.float32(UNIGRAM_POWER) * unigram


def _best_of(
    computer: Computer, words: _Words, scores: Floats, n: int, omitted: Collection[int]
) -> list[list[Substitute]]:
    """Return the best words in each row of scores, ``(rows, words)``, except those with the ids ``omitted``."""
    ids = _largest(scores, n)
    best = np.take_along_axis(scores, ids, axis=1)
    with np.errstate(invalid="ignore"):
        probabilities = np.exp(best - _log_sum_exp(scores))
    computer.check_finite(probabilities)
    n_known = len(words.vocabulary)
    found = []
    for row in zip(ids.tolist(), probabilities.tolist(), best.tolist(), strict=True):
        substitutes = []
        for number, probability, score in zip(*row, strict=True):
            # Unknown words that are not in the cache here are excluded.
            is_absent = number >= n_known and score == -np.inf
            if not is_absent and number not in omitted:
                substitutes.append(words.substitute(number, probability, score))
        found.append(substitutes)
    return found


def log_unigram(vocabulary: Vocabulary) -> Floats:
    """Return the log unigram probability of each word, ``(words,)``."""
    probabilities = vocabulary.zipf_probabilities
    most = max(probabilities.values(), default=1.0)  # special words count as the most frequent word
    return np.log([probabilities.get(word, most) for word in vocabulary.words]).astype(np.float32)


def _log_sum_exp(scores: Floats) -> Floats:
    """Compute the logarithm of the sum of the exponentials of each row, ``(rows, 1)``."""
    top = scores.max(axis=1, keepdims=True)  # subtracted, so that exp does not overflow
    return np.asarray(top + np.log(np.exp(scores - top).sum(axis=1, keepdims=True)), np.float32)


def _largest(scores: Floats, n: int) -> Ids:
    """Find the positions of the ``n`` largest scores in each row, largest first; the earlier of equal ones."""
    # Sorting whole rows would take far longer than their products with the weights.
    bounds = np.partition(scores, -n, axis=1)[:, -n]
    candidates = [np.flatnonzero(row >= bound) for row, bound in zip(scores, bounds, strict=True)]
    return np.array(
        [numbers[np.argsort(-row[numbers], kind="stable")[:n]] for row, numbers in zip(scores, candidates, strict=True)]
    )
