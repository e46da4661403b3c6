"""Map the tensors of a file to ours: one row per tensor, with its layout conversion in both directions.

Each format is a list of ``TensorRow``, which both ``read_through`` and ``to_theirs`` (for writing) use, so names and
layouts are defined once.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.engine.architecture import FORGET_OFFSET, Shape
from elmokit.engine.state import Floats, IntegerRows, StoredArrays
from elmokit.errors import FormatError, TensorMismatchError

Array = NDArray[Any]
SHOWN = 5
"""Maximum number of tensors of each kind listed in an error."""


class TensorLayout(NamedTuple):
    """Conversion of a tensor between a file's layout and ours."""

    to_ours: Callable[[Array], Array]
    to_theirs: Callable[[Array], Array]
    their_shape: Callable[[Shape], Shape] | None = None
    """Maps our shape to the shape in the file. Needed if ``to_theirs`` copies, because it would allocate whatever a
    damaged configuration says."""

    def shape_in_file(self, shape: Shape) -> Shape:
        """Map our shape of a tensor to the shape in the file."""
        if self.their_shape is not None:
            return self.their_shape(shape)
        # An array of one number broadcast to the shape; its views take no memory.
        return self.to_theirs(np.broadcast_to(np.int8(0), shape)).shape


# A layout is a pair of functions instead of a permutation, because some formats also transpose, add or drop rows.
SAME = TensorLayout(lambda theirs: theirs, lambda ours: ours)


def same_shape(shape: Shape) -> Shape:
    """Return the shape unchanged, for layouts that only change the order or values of numbers."""
    return shape


def _swapped(array: Array) -> Array:
    """Swap the second and third gate block: i, f, g, o becomes i, g, f, o, and the other way round."""
    first, second, third, fourth = np.split(array, 4)
    return np.concatenate([first, third, second, fourth])


def _raised_forget(bias: Array, offset: float) -> Array:
    """Add an offset to the forget block of a bias with blocks i, g, f, o."""
    i, g, f, o = np.split(bias, 4)
    return np.concatenate([i, g, f + bias.dtype.type(offset), o])


GATES = TensorLayout(_swapped, _swapped, same_shape)
"""Gates in PyTorch's order i, f, g, o, as in AllenNLP and ELMoForManyLangs. Ours is TensorFlow's: i, g, f, o."""
# TensorFlow adds the 1 in every step, so published HDF5 files hold the bias without it; PyTorch modules store the sum.
GATE_BIAS = TensorLayout(
    lambda theirs: _raised_forget(_swapped(theirs), -FORGET_OFFSET),
    lambda ours: _swapped(_raised_forget(ours, FORGET_OFFSET)),
    same_shape,
)
"""A bias in that order, including the 1 that our network adds to the forget gate."""


class TensorRow(NamedTuple):
    """A tensor, with our name and the name in the file."""

    ours: str
    theirs: str
    layout: TensorLayout = SAME
    also: tuple[str, ...] = ()
    """Other names of the tensor in existing files. Read, but never written."""

    def name_in(self, names: Container[str]) -> str | None:
        """Return the name under which a file has the tensor, or None."""
        return next(filter(names.__contains__, (self.theirs, *self.also)), None)


def same_rows(names: Iterable[str], prefix: str = "") -> list[TensorRow]:
    """List the rows of a file with tensors under our names."""
    return [TensorRow(name, prefix + name) for name in names]


class FileArrays(StoredArrays):
    """The tensors of a file under our names, each read and checked on demand."""

    # So a model that is only described is not read, and a packed one is never in memory twice. Copies and pickles hold
    # the numbers themselves.

    def __init__(
        self,
        names: Mapping[str, tuple[str, TensorLayout]],
        shapes: Mapping[str, Shape],
        read: Callable[[str], Array],
        what: str,
        integers: Callable[[str], IntegerRows | None],
    ) -> None:
        self._names, self._shapes, self._read, self._what = names, shapes, read, what
        self._integers = integers

    def __getitem__(self, name: str) -> Floats:
        """Read a tensor; check its shape, and that it has no NaN or infinity."""
        theirs, layout = self._names[name]
        in_file = self._read(theirs)
        if in_file.dtype.kind != "f":
            in_file = in_file.astype(np.float32)
        with np.errstate(over="ignore"):  # numbers too large for float32 become infinity, which is refused below
            array = np.asarray(layout.to_ours(in_file), np.float32, order="C")
        # Rows can depend on a vocabulary from another file.
        if array.shape != self._shapes[name]:
            raise TensorMismatchError(
                f"{self._what}: {theirs} (elmokit: {name}) becomes {array.shape}; expected {self._shapes[name]}: the "
                "vocabulary does not belong to the tensors."
            )
        if not is_finite(array):
            raise FormatError(f"{self._what} holds NaN or infinity in {theirs} (elmokit: {name}).")
        return array

    def integers(self, name: str) -> IntegerRows | None:
        """Read a tensor as integers and row scales, if it is stored that way and all numbers are finite."""
        theirs, _ = self._names[name]
        found = self._integers(theirs)
        if found is None:
            return None
        with np.errstate(over="ignore"):
            is_right = is_finite(found[1] * np.float32(-128))
        return found if is_right else None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)

    def __deepcopy__(self, memo: Any) -> dict[str, Floats]:
        return {name: array.copy() for name, array in self.items()}


def read_through(
    rows: Iterable[TensorRow],
    wanted: Mapping[str, Shape],
    shapes: Mapping[str, Shape],
    read: Callable[[str], Array],
    what: str,
    integers: Callable[[str], IntegerRows | None] = lambda name: None,
) -> FileArrays:
    """Return the tensors of a file, which are read on demand. All names and shapes are checked immediately.

    Args:
        rows: The rows of the format.
        wanted: The shape of each tensor, by our name.
        shapes: The shape of each tensor in the file, by its name there.
        read: Reads a tensor by its name in the file, as an array of floating-point numbers.
        what: The file, for error messages.
        integers: Reads a tensor stored as integers with scales, in our layout; returns None for others.

    Raises:
        TensorMismatchError: Tensors are missing, unexpected or have the wrong shape. The message lists them all, by
            both names.
    """
    missing: list[str] = []
    wrong_shape: list[str] = []
    names: dict[str, tuple[str, TensorLayout]] = {}
    for row in rows:
        shape = row.layout.shape_in_file(wanted[row.ours])
        name = row.name_in(shapes)
        if name is None:
            missing.append(f"{row.theirs} {shape} (elmokit: {row.ours})")
            continue
        names[row.ours] = name, row.layout
        if shapes[name] != shape:
            wrong_shape.append(f"{name} (elmokit: {row.ours}) is {shapes[name]}, expected {shape}")
    # All kinds of problems in one message: with wrong options, nearly all tensors differ, and the pattern shows which
    # option is wrong.
    unexpected = sorted(set(shapes) - {name for name, _ in names.values()})
    problems = [
        f"{kind}: {_first(listed)}"
        for kind, listed in (("missing", missing), ("unexpected", unexpected), ("wrong shape", wrong_shape))
        if listed
    ]
    if problems:
        raise TensorMismatchError(
            f"{what} does not hold the tensors that its configuration describes. {'. '.join(problems)}. "
            "Check that the configuration belongs to these weights."
        )
    return FileArrays(names, wanted, read, what, integers)


def _first(names: list[str]) -> str:
    """List the first names and the number of others."""
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return "; ".join(names[:SHOWN]) + more


def is_finite(array: Array) -> bool:
    """Check that an array has no NaN or infinity."""
    # Minimum and maximum need no temporary array, and are NaN if any number is NaN.
    return array.size == 0 or bool(np.isfinite([array.min(), array.max()]).all())


def to_theirs(arrays: Mapping[str, Floats], rows: Iterable[TensorRow]) -> Iterator[tuple[str, Array]]:
    """Convert our tensors to a file's names and layout, one at a time."""
    for row in rows:
        yield row.theirs, np.asarray(row.layout.to_theirs(arrays[row.ours]), order="C")
