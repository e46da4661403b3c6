"""Minimal pairs: does a model find the better of two sentences more probable, as BLiMP tests it?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmokit.bilm import BiLMState
from elmokit.errors import TextError
from elmokit.scoring.surprisal import BATCH_TOKENS, FixedStart, surprisals
from elmokit.weights.model import PretrainedBiLM


@dataclass(frozen=True)
class MinimalPairScores:
    """The surprisal of pairs of sentences."""

    nats: NDArray[np.float64]
    """``(pairs, 2, directions)``: surprisal of each whole sentence, minus its log probability."""

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
    start: FixedStart | BiLMState = "warm",
    batch_tokens: int = BATCH_TOKENS,
) -> MinimalPairScores:
    """Score pairs of sentences that differ in one point, the acceptable sentence first (Warstadt et al. 2020, BLiMP).

    Sentences are compared by their whole probability, which favors the shorter one: use pairs of equal length.

    Args:
        pairs: Tokenized sentences, two by two.
        start, batch_tokens: As in ``surprisals``.

    Raises:
        ModelNotFoundError: The model has no softmax or no vocabulary.
        TextError: There is no pair, or a sentence is not a list of tokens.
    """
    sentences = (sentence for good, bad in pairs for sentence in (good, bad))
    nats = [sentence.total_nats for sentence in surprisals(model, sentences, start, batch_tokens)]
    if not nats:
        raise TextError("No pair of sentences to score.")
    return MinimalPairScores(np.array(nats).reshape(-1, 2, len(nats[0])))
