"""Substitutes: the words that a language model expects at a position, without seeing the word there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from elmokit.config import check_at_least, check_choice
from elmokit.embedding.computer import Computer, computer_of
from elmokit.embedding.documents import read_on, read_texts
from elmokit.embedding.start_state import StartName, start_state
from elmokit.engine.softmax import ROWS_AT_ONCE
from elmokit.engine.state import Floats, Ids, State
from elmokit.errors import ConfigError
from elmokit.formats.model import PretrainedBiLM
from elmokit.lm.surprisal import BATCH_TOKENS, softmax_and_vocabulary, softmax_vocabulary
from elmokit.text.batching import check_sentences
from elmokit.text.vocabulary import SPECIALS, Vocabulary

Direction = Literal["forward", "backward", "both"]
UNIGRAM_POWER = 0.75
"""Each direction expects frequent words by itself. So the product of both counts their frequency twice, and is divided
by this power of it: 0.75 was best of 0.5, 0.75 and 1 (results/tried.md)."""
Query = tuple[Sequence[str], Sequence[int]]
"""A sentence, and the indices of its tokens."""


class Substitute(NamedTuple):
    """A word that could be at a position."""

    word: str
    probability: float
    """Over the words that were asked for: the vocabulary with or without its special words."""
    score: float
    """The score before the softmax, whose probabilities are ``probability``."""
    word_id: int


def all_substitutes(
    model: PretrainedBiLM | Computer,
    sentences: Iterable[Sequence[str]],
    direction: Direction = "both",
    n: int = 10,
    start: StartName | State = "warm",
    batch_tokens: int = BATCH_TOKENS,
    special_words: bool = False,
) -> Iterator[list[list[Substitute]]]:
    """Yield for each sentence, in order, the substitutes of each of its tokens."""
    queries = ((sentence, range(len(sentence))) for sentence in check_sentences(sentences))
    for positions in expected_words(model, queries, [direction], n, start, batch_tokens, special_words):
        yield [words[direction] for words in positions]


def expected_words(
    model: PretrainedBiLM | Computer,
    texts: Iterable[Any],
    directions: Sequence[Direction],
    n: int = 10,
    start: StartName | State = "warm",
    batch_tokens: int = BATCH_TOKENS,
    special_words: bool = False,
    *,
    documents: bool = False,
) -> Iterator[list[dict[Direction, list[Substitute]]]]:
    """Yield for each query, in order, the words that each direction expects at each of its positions.

    ``texts`` are queries; or, with ``documents``, those of the sentences of each document. Every sentence is read once,
    however many positions and directions there are. With ``special_words``, ``<S>``, ``</S>`` and ``<UNK>`` can be
    among the words. Otherwise the probabilities are normalized over the other words: ``<UNK>`` has the probability of
    all rare words together, so it would often come first.
    """
    computer = computer_of(model)
    for direction in directions:
        _check(computer.model, direction, n)
    asked: deque[Sequence[int]] = deque()  # the positions of the sentences that were read

    def sentences_of(queries: Iterable[Query]) -> Iterator[Sequence[str]]:
        for sentence, positions in queries:
            asked.append(positions)
            yield sentence

    read = map(sentences_of, texts) if documents else sentences_of(texts)
    first = start_state(computer, start)
    hidden = read_texts(read, partial(_hidden, computer), first, batch_tokens, documents=documents)
    for sides in hidden:
        positions = list(asked.popleft())
        yield _best(computer, [side[positions] for side in sides], directions, n, special_words)


def _check(model: PretrainedBiLM, direction: str, n: int) -> None:
    softmax_vocabulary(model)
    check_choice("direction", direction, get_args(Direction))
    if direction != "forward" and not model.config.bidirectional:
        raise ConfigError(f"direction is {direction!r}, and {model.source} reads forward only: ask for 'forward'.")
    check_at_least("n", n, 1)


def _hidden(
    computer: Computer, rows: Sequence[Sequence[Sequence[str]]], state: State
) -> tuple[list[list[Floats]], State]:
    """Compute what predicts each token, per sentence and direction ``(tokens, projection_dim)``; see ``read_on``."""
    config = computer.model.config
    _, layers, after = read_on(computer, rows, state, [config.n_layers])
    for tops in layers:
        for top in tops:
            computer.check_finite(top)
    # The forward LSTM predicts a token from the position before it, the backward LSTM from the one after it.
    predicting = [
        [top[1:] if backward else top[:-1] for (top,) in tops]
        for tops, backward in zip(layers, config.read_backward, strict=True)
    ]
    return list(map(list, zip(*predicting, strict=True))), after


def _best(
    computer: Computer, sides: Sequence[Floats], directions: Sequence[Direction], n: int, special_words: bool
) -> list[dict[Direction, list[Substitute]]]:
    """Find the best words of each row of ``sides``: ``(rows, projection_dim)`` for each direction of the model."""
    softmax, vocabulary = softmax_and_vocabulary(computer)
    omitted = [] if special_words else [i for word in SPECIALS if (i := vocabulary.ids.get(word)) is not None]
    # Only the sides that a direction needs: forward is the first, backward the last.
    needed: dict[Direction, list[int]] = {"forward": [0], "backward": [len(sides) - 1], "both": [0, 1]}
    positions: list[dict[Direction, list[Substitute]]] = []
    for first in range(0, len(sides[0]), ROWS_AT_ONCE):  # the scores of all words take much memory
        numbers = {number for direction in directions for number in needed[direction]}
        scores = {number: softmax.scores(sides[number][first : first + ROWS_AT_ONCE]) for number in numbers}
        for of_direction in scores.values():
            computer.check_finite(of_direction)
        rows: list[dict[Direction, list[Substitute]]] = [{} for _ in sides[0][first : first + ROWS_AT_ONCE]]
        for direction in directions:
            own = [scores[number] for number in needed[direction]]
            total = own[0].copy()
            if len(own) == 2:
                with np.errstate(over="ignore"):  # scores near the bound of float32 become -infinity: probability 0
                    total = sum(score - _log_sum_exp(score) for score in own) - UNIGRAM_POWER * log_unigram(vocabulary)
            total[:, omitted] = -np.inf
            ids = _largest(total, min(n, len(vocabulary) - len(omitted)))
            best = np.take_along_axis(total, ids, axis=1)
            with np.errstate(invalid="ignore"):
                probabilities = np.exp(best - _log_sum_exp(total))
            computer.check_finite(probabilities)
            columns = zip(rows, ids.tolist(), probabilities.tolist(), best.tolist(), strict=True)
            for row, *cells in columns:
                row[direction] = [Substitute(vocabulary.words[i], p, q, i) for i, p, q in zip(*cells, strict=True)]
        positions += rows
    return positions


def log_unigram(vocabulary: Vocabulary) -> Floats:
    """Return the logarithm of how probable each word is by itself, ``(words,)``."""
    probabilities = vocabulary.zipf_probabilities
    most = max(probabilities.values(), default=1.0)  # special words are as frequent as the most frequent word
    return np.log([probabilities.get(word, most) for word in vocabulary.words]).astype(np.float32)


def _log_sum_exp(scores: Floats) -> Floats:
    """Compute the logarithm of the sum of the exponentials of each row, ``(rows, 1)``."""
    top = scores.max(axis=1, keepdims=True)  # subtracted, so that exp does not overflow
    return np.asarray(top + np.log(np.exp(scores - top).sum(axis=1, keepdims=True)), np.float32)


def _largest(scores: Floats, n: int) -> Ids:
    """Find the positions of the ``n`` largest scores of each row, the largest first; of equal ones the earlier."""
    # Sorting whole rows would take far longer than their products with the weights.
    bounds = np.partition(scores, -n, axis=1)[:, -n]
    candidates = [np.flatnonzero(row >= bound) for row, bound in zip(scores, bounds, strict=True)]
    return np.array(
        [numbers[np.argsort(-row[numbers], kind="stable")[:n]] for row, numbers in zip(scores, candidates, strict=True)]
    )
