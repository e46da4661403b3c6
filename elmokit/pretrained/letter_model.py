"""A letter model for unknown words, trained on the unknown words in a model's training text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from elmokit.engine.architecture import Shape
from elmokit.engine.state import Floats

N_SYMBOLS = 257
EDGE = 256
"""The symbol for both edges of a word; the others are UTF-8 bytes."""


@dataclass(frozen=True, eq=False)
class LetterModel:
    """A network that predicts the next byte of a word, or its end, from the preceding bytes (Bengio et al. 2003).

    context = the concatenated embeddings of the last symbols, oldest first, with edges before the word.
    scores = embedding (output_weight relu(hidden_weight context + hidden_bias)) + bias. Their softmax gives the
    probability of each symbol, so the probabilities of all byte strings sum to one.
    """

    embedding: Floats
    """``(257, dim)``"""
    hidden_weight: Floats
    """``(units, symbols of a context * dim)``"""
    hidden_bias: Floats
    output_weight: Floats
    """``(dim, units)``"""
    bias: Floats
    """``(257,)``"""

    @property
    def n_context(self) -> int:
        """Number of symbols that the network reads."""
        return int(self.hidden_weight.shape[1] // self.embedding.shape[1])

    def log_probabilities(self, contexts: NDArray[np.integer]) -> Floats:
        """Return the log probability of each symbol after the contexts, ``(contexts, n_context)``."""
        inputs = self.embedding[contexts].reshape(len(contexts), -1)
        with np.errstate(over="ignore", invalid="ignore"):  # if the weights are too large, which is detected later
            hidden = np.maximum(inputs @ self.hidden_weight.T + self.hidden_bias, 0)
            scores = hidden @ self.output_weight.T @ self.embedding.T + self.bias
            top = scores.max(axis=1, keepdims=True)
            total = np.exp(scores - top).sum(axis=1, keepdims=True)
            logarithms: Floats = scores - (top + np.log(total))
        return logarithms

    def nats(self, symbols: Sequence[int]) -> float:
        """Return minus the log probability of a word: its bytes and the final edge."""
        padded = np.array([EDGE] * self.n_context + list(symbols))
        contexts = np.lib.stride_tricks.sliding_window_view(padded[:-1], self.n_context)
        logarithms = self.log_probabilities(contexts)[np.arange(len(symbols)), list(symbols)]
        return -float(logarithms.sum(dtype=np.float64))

    def tensors(self) -> dict[str, Floats]:
        """Return the tensors by name, for storing them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def letter_shapes(found: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return the expected tensor shapes of a letter model with the sizes of the tensors found."""
    dim = (0, *found.get("embedding", ()))[-1]
    n_units = (0, *found.get("hidden_bias", ()))[-1]
    n_inputs = (0, *found.get("hidden_weight", ()))[-1]
    n_context = max(1, n_inputs // max(1, dim))
    return {
        "embedding": (N_SYMBOLS, dim),
        "hidden_weight": (n_units, n_context * dim),
        "hidden_bias": (n_units,),
        "output_weight": (dim, n_units),
        "bias": (N_SYMBOLS,),
    }
