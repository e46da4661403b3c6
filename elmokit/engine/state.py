"""Types of the network's NumPy arrays, the LSTM state of a biLM, and unit vectors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from elmokit.engine.architecture import BiLMConfig

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
IntegerRows = tuple[NDArray[np.int8], Floats]
"""A matrix of integers, and the scale of each row."""


class StoredArrays(Mapping[str, NDArray[np.float32]]):
    """Tensors that are read from a file on every access.

    The caller may therefore modify a tensor without copying it, unless it is read-only.
    """

    @abstractmethod
    def integers(self, name: str) -> IntegerRows | None:
        """Return a tensor's integers and the scale of each row; None if it is not stored as integers."""


_Function = TypeVar("_Function", bound=Callable[..., Any])


def overflow_is_checked_later(function: _Function) -> _Function:
    """Let NumPy return infinity and NaN without a warning, as the C functions do. The caller checks for them."""
    # A new context for each function: NumPy 1 does not restore one that is entered twice.
    return np.errstate(over="ignore", invalid="ignore")(function)


class State(NamedTuple):
    """The LSTM state, passed to a batch and returned after it. Row r belongs to sentence r.

    Attributes:
        hidden: Each layer's last output, ``(directions, layers, rows, projection_dim)``.
        cell: Each layer's cells, ``(directions, layers, rows, hidden_dim)``.
    """

    hidden: Floats
    cell: Floats

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.hidden.shape[2])

    @classmethod
    def zero(cls, config: BiLMConfig, n_rows: int) -> State:
        """Return a state of zeros, for a model that has not read anything yet."""
        shape = (config.n_directions, config.n_layers, n_rows)
        hidden = np.zeros((*shape, config.projection_dim), np.float32)
        cell = np.zeros((*shape, config.hidden_dim), np.float32)
        return cls(hidden, cell)

    def first_rows(self, n_rows: int) -> State:
        """Return the first ``n_rows`` rows; missing rows are zero."""
        missing = [(0, 0), (0, 0), (0, max(0, n_rows - self.n_rows)), (0, 0)]
        return State(*(np.pad(part[:, :, :n_rows], missing) for part in self))

    def with_first_rows(self, rows: State) -> State:
        """Return this state with its first rows replaced; the result grows if ``rows`` has more."""
        return State(*(np.concatenate([new, old[:, :, rows.n_rows :]], 2) for new, old in zip(rows, self, strict=True)))

    def repeat_row(self, n_rows: int) -> State:
        """Expand a state with one row to ``n_rows`` rows, without copying."""
        return State(*(np.broadcast_to(part, (*part.shape[:2], n_rows, part.shape[3])) for part in self))

    def mean_row(self) -> State:
        """Return the mean over rows, as a state with one row."""
        return State(*(part.mean(axis=2, keepdims=True, dtype=np.float32) for part in self))

    def with_direction(self, number: int, state: State) -> State:
        """Return this state with one direction replaced."""
        joined = State(self.hidden.copy(), self.cell.copy())
        joined.hidden[number], joined.cell[number] = state.hidden[number], state.cell[number]
        return joined


_Number = TypeVar("_Number", bound="np.floating[Any]")


def unit_vectors(vectors: NDArray[_Number]) -> NDArray[_Number]:
    """Scale vectors (the last axis) to length 1. Zero vectors stay zero."""
    # In float32, the square of a number above 1e19 overflows.
    squares = np.einsum("...d,...d->...", vectors, vectors, dtype=np.float64)
    lengths = np.sqrt(squares)[..., None]
    lengths[lengths == 0] = 1
    unit: NDArray[_Number] = np.divide(vectors, lengths, out=np.empty_like(vectors), casting="same_kind")
    return unit
