"""Which of two sentences a model finds more probable: what minimal pairs are judged by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.start_state import StartName
from elmokit.engine.state import State
from elmokit.errors import TextError
from elmokit.formats.model import PretrainedBiLM
from elmokit.lm.surprisal import BATCH_TOKENS, Surprisal, softmax_and_vocabulary, surprisals


@dataclass(frozen=True)
class MinimalPairScores:
    """The surprisal of pairs of sentences."""

    nats: NDArray[np.float64]
    """``(pairs, 2, directions)``: surprisal of each whole sentence, minus its log probability."""
    unknown_nats: NDArray[np.float64]
    """``(pairs, 2, directions)``: the part of it that is for unknown words."""
    unknown: NDArray[np.int64]
    """``(pairs, 2)``: unknown words, which are not in the vocabulary and count as ``<UNK>``."""
    unknown_price: float
    """What an unknown word would cost as the rarest word of the vocabulary, in nats: its frequency by Zipf's law."""
    n_tokens: int
    """Tokens of all sentences, without boundaries."""

    @property
    def n_unknown(self) -> int:
        """The unknown words of all sentences."""
        return int(self.unknown.sum())

    @property
    def paid_nats(self) -> NDArray[np.float64]:
        """``(pairs, 2, directions)``: surprisal in which each unknown word has the ``unknown_price``.

        ``<UNK>`` stands for many words, so it is more probable than any word that it stands for, and a sentence with
        more unknown words than its partner would win by that.
        """
        return self.nats - self.unknown_nats + self.unknown_price * self.unknown[:, :, None]

    @property
    def prefers_first(self) -> NDArray[np.bool_]:
        """``(pairs,)``: True if the first sentence is more probable, by the sum over both directions."""
        total = self.nats.sum(axis=2)
        preferred: NDArray[np.bool_] = total[:, 0] < total[:, 1]
        return preferred

    @property
    def accuracy(self) -> float:
        """Fraction of pairs whose first sentence is more probable, by the sum over both directions."""
        return float(self.prefers_first.mean())

    @property
    def accuracy_per_direction(self) -> tuple[float, ...]:
        """The same for each direction alone: forward, then backward."""
        return tuple((self.nats[:, 0] < self.nats[:, 1]).mean(axis=0).tolist())


def score_minimal_pairs(
    model: PretrainedBiLM,
    pairs: Iterable[tuple[Sequence[str], Sequence[str]]],
    start: StartName | State = "warm",
    batch_tokens: int = BATCH_TOKENS,
    on_sentence: Callable[[Surprisal], object] | None = None,
) -> MinimalPairScores:
    """Score pairs of sentences that differ in one point, the acceptable sentence first (Warstadt et al. 2020, BLiMP).

    Sentences are compared by their whole probability, which favors the shorter one: use pairs of equal length.
    """
    _, vocabulary = softmax_and_vocabulary(model)
    sentences = (sentence for acceptable, other in pairs for sentence in (acceptable, other))
    nats, unknown_nats, unknown, n_tokens = [], [], [], 0
    for sentence in surprisals(model, sentences, start, batch_tokens):
        nats.append(sentence.total_nats)
        unknown_nats.append(np.nansum(sentence.nats[:, sentence.is_unknown], axis=1, dtype=np.float64))
        unknown.append(int(sentence.is_unknown.sum()))
        n_tokens += len(sentence.tokens) - 2
        if on_sentence is not None:
            on_sentence(sentence)
    if not nats:
        raise TextError("No pair of sentences to score.")
    by_pair = (-1, 2, len(nats[0]))
    return MinimalPairScores(
        np.array(nats).reshape(by_pair),
        np.array(unknown_nats).reshape(by_pair),
        np.array(unknown).reshape(-1, 2),
        -math.log(min(vocabulary.zipf_probabilities.values(), default=1.0)),
        n_tokens,
    )
