"""Held-out perplexity: full softmax, every token counted once, each direction apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from elmokit.bilm import BiLMState
from elmokit.errors import TextError
from elmokit.scoring.spelling import Spelling
from elmokit.scoring.surprisal import BATCH_TOKENS, Surprisal, predicting, score, surprisals
from elmokit.text.characters import UNKNOWN
from elmokit.weights.model import PretrainedBiLM


@dataclass(frozen=True)
class Perplexity:
    """Surprisal of a text, each direction apart.

    A sentence of n tokens holds n + 1 predictions a direction: the forward LSTM predicts its tokens and
    ``</S>``, the backward LSTM its tokens and ``<S>``.
    """

    mean_nats: tuple[float, ...]
    """Per predicted token: forward, then backward where there is one."""
    n_predictions: int
    """Per direction."""
    unknown_share: float
    """Share of tokens (boundaries apart) that are not in the vocabulary and count as ``<UNK>``."""
    n_sentences: int
    n_characters: int
    """Unicode code points of the text, a blank or a line end after each token counted."""
    spelling_bits: float | None = None
    """What the letters of the unknown words cost, by ``Spelling``; None where that was not asked for."""

    @property
    def n_tokens(self) -> int:
        """Boundaries not counted."""
        return self.n_predictions - self.n_sentences

    @property
    def per_direction(self) -> tuple[float, ...]:
        """exp of the mean nats: forward, then backward."""
        return tuple(exp_of(nats) for nats in self.mean_nats)

    @property
    def mean(self) -> float:
        """The geometric mean over directions, as bilm-tf reports."""
        return exp_of(sum(self.mean_nats) / len(self.mean_nats))

    @property
    def arithmetic_mean(self) -> float:
        """The arithmetic mean over directions, as papers and forums quote."""
        return sum(self.per_direction) / len(self.mean_nats)

    @property
    def bits_per_character_unspelled(self) -> tuple[float, ...]:
        """Bits per character of each direction with the letters of unknown words for nothing: a lower bound."""
        return tuple(nats * self.n_predictions / math.log(2) / self.n_characters for nats in self.mean_nats)

    @property
    def bits_per_character(self) -> tuple[float, ...]:
        """Bits per character of each direction, unknown words spelled out: compares over vocabularies.

        The whole text could be coded in so many bits: the words by the model, each unknown one as ``<UNK>`` and then
        letter by letter by ``Spelling``; the line ends by ``</S>`` (``<S>``).
        """
        if self.spelling_bits is None:
            raise ValueError("Give perplexity() the spelling of the model's vocabulary.")
        spelled = self.spelling_bits / self.n_characters
        return tuple(bits + spelled for bits in self.bits_per_character_unspelled)


def perplexity(
    model: PretrainedBiLM,
    sentences: Iterable[Sequence[str]],
    start: BiLMState | None = None,
    n_carried_rows: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    spelling: Spelling | None = None,
    each: Callable[[Surprisal], object] | None = None,
) -> Perplexity:
    """Score a text with a model, dropout off.

    Args:
        start: the state of one row that every sentence starts from; None for zero.
        n_carried_rows: instead, cut the text into so many rows and carry each row's state from sentence to
            sentence, as in training; the sentences are then held in memory.
        batch_tokens: as in ``surprisals``; the result does not depend on it.
        spelling: that of the model's vocabulary, for bits per character.
        each: called with each sentence's surprisal, in their order unless there are several carried rows.

    Raises:
        ModelNotFoundError: the model came without its softmax or vocabulary.
        TextError: there is no sentence.
    """
    predicting(model)
    start = model.bilm.zero_state(1) if start is None else start
    if n_carried_rows is None:
        scored = surprisals(model, sentences, start, batch_tokens)
    else:
        scored = _carried(model, sentences, start.repeat_row(n_carried_rows))
    total = np.zeros(model.bilm.config.n_directions)
    n_sentences = n_tokens = n_unknown = n_characters = 0
    spelling_bits = 0.0
    for sentence in scored:
        total += np.nansum(sentence.nats, axis=1, dtype=np.float64)
        words = sentence.tokens[1:-1]
        n_sentences += 1
        n_tokens += len(words)
        n_characters += sum(map(len, words)) + max(1, len(words))
        unknown = sentence.is_unknown[1:-1]
        n_unknown += int(unknown.sum())
        if spelling is not None:
            spelling_bits += sum(spelling.bits(words[place]) for place in unknown.nonzero()[0])
        if each is not None:
            each(sentence)
    if not n_sentences:
        raise TextError("No sentence to score. Give a text of one tokenised sentence per line.")
    n_predictions = n_tokens + n_sentences
    return Perplexity(
        mean_nats=tuple((total / n_predictions).tolist()),
        n_predictions=n_predictions,
        unknown_share=n_unknown / max(1, n_tokens),
        n_sentences=n_sentences,
        n_characters=n_characters,
        spelling_bits=None if spelling is None else spelling_bits,
    )


def spelling_of(model: PretrainedBiLM) -> Spelling:
    """What the letters of a word cost that the model does not know.

    Raises:
        ModelNotFoundError: the model came without its softmax or vocabulary.
    """
    _, vocabulary = predicting(model)
    specials = {vocabulary.begin_id, vocabulary.end_id, vocabulary.ids.get(UNKNOWN)}
    return Spelling(word for word_id, word in enumerate(vocabulary.words) if word_id not in specials)


def exp_of(nats: float) -> float:
    """exp, infinite where a float ends."""
    return math.exp(nats) if nats < 709 else math.inf


def _carried(model: PretrainedBiLM, sentences: Iterable[Sequence[str]], state: BiLMState) -> Iterator[Surprisal]:
    for batch in _in_rows(sentences, state.n_rows):
        scored, after = score(model, batch, state.first_rows(len(batch)))
        state = state.with_first_rows(after)
        yield from scored


def _in_rows(sentences: Iterable[Sequence[str]], n_rows: int) -> Iterator[Sequence[Sequence[str]]]:
    """Row r reads the r-th part of the text; longer parts first, so that rows end from the last one on."""
    if n_rows == 1:
        yield from ([sentence] for sentence in sentences)  # in order, so nothing need be held
        return
    text = list(sentences)
    size, n_longer = divmod(len(text), n_rows)
    starts = [row * size + min(row, n_longer) for row in range(n_rows + 1)]
    for place in range(size + bool(n_longer)):
        yield [text[start + place] for start, stop in pairwise(starts) if start + place < stop]
