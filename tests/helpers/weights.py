"""Compare the weights of models."""

from __future__ import annotations

import numpy as np

from elmokit.formats.model import PretrainedBiLM


def same_weights(first: PretrainedBiLM, second: PretrainedBiLM) -> bool:
    """Check for the same architecture, and the same weights bit for bit."""
    ours, theirs = first.arrays, second.arrays
    return (
        first.config == second.config
        and set(ours) == set(theirs)
        and all(np.array_equal(ours[name], theirs[name]) for name in ours)
    )
