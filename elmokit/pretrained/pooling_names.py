"""The poolings of sentence vectors: one table for Python, the shell, the server and sentence-transformers.

The JavaScript package has the same weightings in ``packages/js/src/sentence_vectors.js``; a test compares them. This
module loads nothing else, so that a command's help can name the poolings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

Numbers = TypeVar("Numbers")
"""A number, an array or a tensor."""

WeightingName = Literal["mean", "sif"]
"""How the tokens of a sentence are weighted; see :data:`WEIGHTINGS`."""
PoolingName = Literal["auto", WeightingName, "whitened", "trained"]
"""A weighting, or what a model stores for sentences; see :meth:`~elmokit.SentenceEmbedder.by_name`."""
POOLING_NAMES: tuple[PoolingName, ...] = get_args(PoolingName)


def smooth_inverse_frequency(probability: Numbers, smoothing: float) -> Numbers:
    """Return the weight of a word, or of many, by its probability in running text (Arora et al. 2017): a / (a + p)."""
    weight: Any = smoothing / (smoothing + probability)  # type: ignore[operator]
    return weight  # type: ignore[no-any-return]


# Every pooling is a weighted mean: a stored whitening or head maps each token's vector before the mean is taken, and is
# fitted on means, so that it fits every row of this table. A maximum would not be a row.
WEIGHTINGS: dict[WeightingName, Callable[[Any, float], Any] | None] = {
    "mean": None,
    "sif": smooth_inverse_frequency,
}
"""The weight of a token by its probability and the smoothing of a :class:`~elmokit.SentencePooling`; tokens without a
letter or digit have no weight. None: all tokens count equally, and no probabilities are needed."""
