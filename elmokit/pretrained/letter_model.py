"""A model of the letters of unknown words, trained on the unknown words of the text that a model was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from elmokit.engine.architecture import Shape
from elmokit.engine.state import Floats

N_SYMBOLS = 257
EDGE = 256
"""The symbol of both edges of a word; the others are bytes of UTF-8."""


@dataclass(frozen=True, eq=False)
class LetterModel:
    """A network that predicts the next byte of a word, or its end, from the bytes before (Bengio et al. 2003).

    context = the embeddings of the last symbols side by side, the oldest first; before the word there are edges.
    scores = embedding (output_weight relu(hidden_weight context + hidden_bias)) + bias. Their softmax is the
    probability of each symbol, so those of all strings of bytes sum to one.
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
        """How many symbols the network reads."""
        return int(self.hidden_weight.shape[1] // self.embedding.shape[1])

    def log_probabilities(self, contexts: NDArray[np.integer]) -> Floats:
        """Return the log probability of each symbol after the last symbols, ``(contexts, n_context)``."""
        inputs = self.embedding[contexts].reshape(len(contexts), -1)
        with np.errstate(over="ignore", invalid="ignore"):  # of weights that are too large, which is noticed
            hidden = np.maximum(inputs @ self.hidden_weight.T + self.hidden_bias, 0)
            scores = hidden @ self.output_weight.T @ self.embedding.T + self.bias
            top = scores.max(axis=1, keepdims=True)
            logarithms: Floats = scores - (top + np.log(np.exp(scores - top).sum(axis=1, keepdims=True)))
        return logarithms

    def nats(self, symbols: Sequence[int]) -> float:
        """Return minus the log probability of a word: its bytes, and the edge at its end."""
        padded = np.array([EDGE] * self.n_context + list(symbols))
        contexts = np.lib.stride_tricks.sliding_window_view(padded[:-1], self.n_context)
        return -float(self.log_probabilities(contexts)[np.arange(len(symbols)), list(symbols)].sum(dtype=np.float64))

    def tensors(self) -> dict[str, Floats]:
        """Return the numbers by name, to store them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def letter_shapes(found: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return the shapes that the tensors of a letter model must have, whose sizes are those of the tensors found."""
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
