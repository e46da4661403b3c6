"""Poolings of sentence vectors: one table for Python, the shell, the server and sentence-transformers.

The JavaScript package has the same weightings in ``packages/js/src/sentence_vectors.js``; a test compares them. This
module imports nothing else, so a command's help can quickly name the poolings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

Numbers = TypeVar("Numbers")
"""A number, an array or a tensor."""

WeightingName = Literal["mean", "sif"]
"""A weighting of the tokens in a sentence; see :data:`WEIGHTINGS`."""
PoolingName = Literal["auto", WeightingName, "whitened", "trained"]
"""A weighting, or a stored map of a model; see :meth:`~elmokit.SentenceEmbedder.by_name`."""
POOLING_NAMES: tuple[PoolingName, ...] = get_args(PoolingName)


def smooth_inverse_frequency(probability: Numbers, smoothing: float) -> Numbers:
    """Return the weight of words from their probabilities in running text (Arora et al. 2017): a / (a + p)."""
    weight: Any = smoothing / (smoothing + probability)  # type: ignore[operator]
    return weight  # type: ignore[no-any-return]


# All poolings are weighted means: a stored whitening or head maps each token vector before the mean and is fitted on
# means, so it works with all rows of this table. A maximum would not.
WEIGHTINGS: dict[WeightingName, Callable[[Any, float], Any] | None] = {
    "mean": None,
    "sif": smooth_inverse_frequency,
}
"""The weight of a token from its probability and the smoothing of a :class:`~elmokit.SentencePooling`; tokens without
a letter or digit have no weight. None: all tokens count equally, and no probabilities are needed."""
