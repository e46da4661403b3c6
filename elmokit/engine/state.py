"""NumPy arrays of the network: their types, the LSTM state of a biLM, and unit vectors."""

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
"""A matrix as integers, and the scale of each row."""


class StoredArrays(Mapping[str, NDArray[np.float32]]):
    """Tensors that are read from a file whenever they are asked for.

    So who asks for one may write to it, unless it is read-only, and need not copy it.
    """

    @abstractmethod
    def integers(self, name: str) -> IntegerRows | None:
        """Return a tensor's integers and the scale of each row; None if it is stored otherwise."""


_Function = TypeVar("_Function", bound=Callable[..., Any])


def overflow_is_checked_later(function: _Function) -> _Function:
    """Let NumPy's formulas return infinity and NaN in silence, as the C functions do; the caller checks for them."""
    # A setting for each function, since one that is entered twice is not restored by NumPy 1.
    return np.errstate(over="ignore", invalid="ignore")(function)


class State(NamedTuple):
    """The LSTM state, which goes into a batch and comes back after it. Row r belongs to sentence r.

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
        """Return the state of a model that has not read anything yet."""
        shape = (config.n_directions, config.n_layers, n_rows)
        hidden = np.zeros((*shape, config.projection_dim), np.float32)
        cell = np.zeros((*shape, config.hidden_dim), np.float32)
        return cls(hidden, cell)

    def first_rows(self, n_rows: int) -> State:
        """Return the first ``n_rows`` rows; rows that do not exist are zero."""
        missing = [(0, 0), (0, 0), (0, max(0, n_rows - self.n_rows)), (0, 0)]
        return State(*(np.pad(part[:, :, :n_rows], missing) for part in self))

    def with_first_rows(self, rows: State) -> State:
        """Return this state with its first rows replaced; the result grows if ``rows`` has more."""
        return State(*(np.concatenate([new, old[:, :, rows.n_rows :]], 2) for new, old in zip(rows, self, strict=True)))

    def repeat_row(self, n_rows: int) -> State:
        """Repeat a state of one row for ``n_rows`` rows, without copying it."""
        return State(*(np.broadcast_to(part, (*part.shape[:2], n_rows, part.shape[3])) for part in self))

    def mean_row(self) -> State:
        """Return the mean over rows, a state of one row."""
        return State(*(part.mean(axis=2, keepdims=True, dtype=np.float32) for part in self))

    def with_direction(self, number: int, state: State) -> State:
        """Return this state with one direction of another state."""
        joined = State(self.hidden.copy(), self.cell.copy())
        joined.hidden[number], joined.cell[number] = state.hidden[number], state.cell[number]
        return joined


_Number = TypeVar("_Number", bound="np.floating[Any]")


def unit_vectors(vectors: NDArray[_Number]) -> NDArray[_Number]:
    """Scale vectors, the last axis, to length 1. Zero vectors stay zero."""
    # float32 has no room for the square of a number above 1e19.
    squares = np.einsum("...d,...d->...", vectors, vectors, dtype=np.float64)
    lengths = np.sqrt(squares)[..., None]
    lengths[lengths == 0] = 1
    unit: NDArray[_Number] = np.divide(vectors, lengths, out=np.empty_like(vectors), casting="same_kind")
    return unit
