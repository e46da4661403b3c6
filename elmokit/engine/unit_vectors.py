"""Vectors of length 1, for cosines: :func:`unit_vectors`."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

_Number = TypeVar("_Number", bound="np.floating[Any]")


def unit_vectors(vectors: NDArray[_Number]) -> NDArray[_Number]:
    """Scale vectors, the last axis, to length 1. Zero vectors stay zero."""
    # float32 has no room for the square of a number above 1e19.
    squares = np.einsum("...d,...d->...", vectors, vectors, dtype=np.float64)
    lengths = np.sqrt(squares)[..., None]
    lengths[lengths == 0] = 1
    unit: NDArray[_Number] = np.divide(vectors, lengths, out=np.empty_like(vectors), casting="same_kind")
    return unit
