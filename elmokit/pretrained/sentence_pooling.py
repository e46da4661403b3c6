"""How token vectors become a sentence vector: settings, and linear maps that a model can store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from elmokit.config import check_choice, check_positive
from elmokit.engine.layer_selection import plain_layers
from elmokit.pretrained.pooling_names import WEIGHTINGS, Numbers, WeightingName

if TYPE_CHECKING:
    from elmokit.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class SentencePooling:
    """How token vectors become a sentence vector; see :class:`~elmokit.SentenceEmbedder`.

    Attributes:
        weighting: The weights of the tokens: "mean" for equal ones; "sif" for smooth inverse frequency, and 0 for
            tokens without a letter or digit.
        layers: The layers of the token vectors. Several layers are concatenated.
        smoothing: The parameter a of "sif". Results hardly differ between 1e-3 and 1e-4 (results/similarity.md).

    Raises:
        ConfigError: A value is invalid.
    """

    weighting: WeightingName = "sif"
    layers: Literal["all", "top", "average"] | int | tuple[int, ...] = 0
    smoothing: float = 3e-4

    def __post_init__(self) -> None:
        check_choice("weighting", self.weighting, WEIGHTINGS)
        if isinstance(self.layers, str):
            check_choice("layers", self.layers, ("all", "top", "average"))
        layers = plain_layers(self.layers)  # of a list, a range or an array
        object.__setattr__(self, "layers", tuple(layers) if isinstance(layers, list) else layers)
        check_positive("smoothing", self.smoothing)

    @property
    def is_context_free(self) -> bool:
        """Whether only layer 0 is used, in which a word has the same vector in all sentences."""
        return self.layers in (0, (0,))

    @property
    def needs_frequencies(self) -> bool:
        """Whether the weight of a word depends on its frequency."""
        return WEIGHTINGS[self.weighting] is not None

    def word_weight(self, probability: Numbers) -> Numbers:
        """Return the weight of one or many words from their probability in running text."""
        weight = WEIGHTINGS[self.weighting]
        if weight is None:
            raise ValueError(f"The weighting {self.weighting!r} does not depend on probabilities.")
        weights: Numbers = weight(probability, self.smoothing)
        return weights

    def dim(self, n_layers: int, layer_dim: int) -> int:
        """Return the size of a pooled vector for a model with ``n_layers`` layers of ``layer_dim`` dimensions."""
        if self.layers == "all":
            return n_layers * layer_dim
        return layer_dim * (len(self.layers) if isinstance(self.layers, tuple) else 1)


@dataclass(frozen=True, eq=False)  # as objects: arrays have no truth value
class SentenceMap:
    """A linear map of token vectors, applied before taking their weighted mean.

    The mapped vectors are scaled to length 1, so a token counts by its weight, not by the length of its vector, which
    differs between words.

    Attributes:
        pooling: The pooling that it was made for; it does not fit others.
        mean: ``(dim,)``; subtracted first.
        projection: ``(dim, n_components)``; multiplied after that.
    """

    pooling: SentencePooling
    mean: NDArray[np.float32]
    projection: NDArray[np.float32]

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Return its tensors by name."""
        return {"mean": self.mean, "projection": self.projection}

    def apply(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Map vectors ``(n, dim)`` to vectors ``(n, n_components)`` of length 1. Overflow gives NaN, no warning."""
        from elmokit.engine.state import unit_vectors  # imported here because opening a model does not need it

        with np.errstate(over="ignore", invalid="ignore"):
            return unit_vectors(np.asarray((vectors - self.mean) @ self.projection, np.float32))


@dataclass(frozen=True, eq=False)
class SentenceHead(SentenceMap):
    """A linear map of token vectors and a weight for each word, trained on pairs of sentences.

    If ``mean`` and ``projection`` have more rows than the pooling has dimensions, each token vector is followed by the
    token's row of the word table (:meth:`PretrainedBiLM.table_rows`).

    Attributes:
        word_weights: ``(n_words,)``; a factor for the pooling weight of each word in the model's vocabulary.
    """

    word_weights: NDArray[np.float32]

    def word_weight(self, word: str, vocabulary: Vocabulary | None) -> float:
        """Return the factor for a word's pooling weight."""
        number = -1 if vocabulary is None else head_word_id(word, vocabulary)
        return 1.0 if number < 0 else float(self.word_weights[number])

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        return super().tensors() | {"word_weights": self.word_weights}


def head_word_id(word: str, vocabulary: Vocabulary) -> int:
    """Return the id of the word whose weight in a :class:`SentenceHead` applies to a token; -1 if there is none."""
    # In lower case if that is a word, so the first word of a sentence is weighted like the others.
    return vocabulary.ids.get(word.lower(), vocabulary.ids.get(word, vocabulary.unknown_id))


@dataclass(frozen=True, eq=False)
class Whitening(SentenceMap):
    """A map that gives mean vectors of sentences mean 0, uncorrelated dimensions and variance 1 (Su et al. 2021).

    These means point in similar directions, because a few dimensions with a large mean or variance dominate. Whitening
    removes the mean and gives each direction the same weight, so cosines measure similarity better. It is fitted on
    sentence means and applied to each token; see :class:`SentenceMap`.
    """
