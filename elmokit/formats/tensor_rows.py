"""Map the tensors of a file to ours: one row per tensor, with the conversion of its layout in both directions.

Each format is a list of ``TensorRow``. ``read_through`` reads a model through it and ``to_theirs`` writes one, so names
and layouts are written down once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.engine.architecture import FORGET_OFFSET, Shape
from elmokit.engine.state import Floats, IntegerRows, StoredArrays
from elmokit.errors import FormatError, TensorMismatchError

Array = NDArray[Any]
SHOWN = 5
"""How many tensors an error lists of each kind."""


class TensorLayout(NamedTuple):
    """How to convert a tensor between the layout of a file and ours."""

    to_ours: Callable[[Array], Array]
    to_theirs: Callable[[Array], Array]
    their_shape: Callable[[Shape], Shape] | None = None
    """Returns the shape in the file of a tensor with our shape. Needed where ``to_theirs`` copies: it would allocate
    whatever a damaged configuration says."""

    def shape_in_file(self, shape: Shape) -> Shape:
        """Return the shape in the file of a tensor with our shape."""
        if self.their_shape is not None:
            return self.their_shape(shape)
        # An array of one number that claims the shape; its views take no memory.
        return self.to_theirs(np.broadcast_to(np.int8(0), shape)).shape


# A layout is a pair of functions and not a permutation, because some formats also transpose, add or drop rows.
SAME = TensorLayout(lambda theirs: theirs, lambda ours: ours)


def same_shape(shape: Shape) -> Shape:
    """Return the shape itself, for layouts that only change the order or the values of the numbers."""
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
# TensorFlow adds the 1 in every step, so the published HDF5 files hold the bias without it; modules that were written
# in PyTorch store the sum.
GATE_BIAS = TensorLayout(
    lambda theirs: _raised_forget(_swapped(theirs), -FORGET_OFFSET),
    lambda ours: _swapped(_raised_forget(ours, FORGET_OFFSET)),
    same_shape,
)
"""A bias in that order, which includes the 1 that our network adds to the forget gate itself."""


class TensorRow(NamedTuple):
    """One tensor, by our name and by the name in the file."""

    ours: str
    theirs: str
    layout: TensorLayout = SAME
    also: tuple[str, ...] = ()
    """Other names that the tensor has in existing files. Read, but never written."""


def same_rows(names: Iterable[str], prefix: str = "") -> list[TensorRow]:
    """List the rows of a file that holds tensors under our names."""
    return [TensorRow(name, prefix + name) for name in names]


class FileArrays(StoredArrays):
    """The tensors of a file, by our names, each read and checked when it is asked for."""

    # So a model that is only described is not read, and one that is packed never is in memory twice. Copies and pickles
    # hold the numbers themselves.

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
        """Read a tensor, and check its shape and that it has no NaN and no infinity."""
        theirs, layout = self._names[name]
        in_file = self._read(theirs)
        if in_file.dtype.kind != "f":
            in_file = in_file.astype(np.float32)
        with np.errstate(over="ignore"):  # a number that float32 cannot hold becomes infinity, which is refused below
            array = np.asarray(layout.to_ours(in_file), np.float32, order="C")
        # Rows can depend on a vocabulary, which another file holds.
        if array.shape != self._shapes[name]:
            raise TensorMismatchError(
                f"{self._what}: {theirs} (elmokit: {name}) becomes {array.shape}, expected {self._shapes[name]}: the "
                "vocabulary does not belong to the tensors."
            )
        if not is_finite(array):
            raise FormatError(f"{self._what} holds NaN or infinity in {theirs} (elmokit: {name}).")
        return array

    def integers(self, name: str) -> IntegerRows | None:
        """Read a tensor as integers and the scale of each row, if it is stored so and all of its numbers are finite."""
        theirs, _ = self._names[name]
        found = self._integers(theirs)
        with np.errstate(over="ignore"):
            return found if found is not None and is_finite(found[1] * np.float32(-128)) else None

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
    """Return the tensors of a file, which are read when they are asked for. All names and shapes are checked at once.

    Args:
        rows: The rows of the format.
        wanted: The shape of every tensor, by our name.
        shapes: The shape of every tensor in the file, by its name there.
        read: Reads a tensor by its name in the file, an array of floating-point numbers.
        what: The file, for error messages.
        integers: Reads a tensor that is stored as integers with scales, in our layout; None for another one.

    Raises:
        TensorMismatchError: Tensors are missing, unexpected or have the wrong shape. The message lists them all, by
            both names.
    """
    missing: list[str] = []
    wrong_shape: list[str] = []
    names: dict[str, tuple[str, TensorLayout]] = {}
    for row in rows:
        shape = row.layout.shape_in_file(wanted[row.ours])
        name = next((name for name in (row.theirs, *row.also) if name in shapes), None)
        if name is None:
            missing.append(f"{row.theirs} {shape} (elmokit: {row.ours})")
            continue
        names[row.ours] = name, row.layout
        if shapes[name] != shape:
            wrong_shape.append(f"{name} (elmokit: {row.ours}) is {shapes[name]}, expected {shape}")
    # All kinds of problems in one message: with wrong options nearly every tensor differs, and the pattern shows which
    # option it is.
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
    """List the first names, and say how many more there are."""
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return "; ".join(names[:SHOWN]) + more


def is_finite(array: Array) -> bool:
    """Check that an array has no NaN and no infinity."""
    # Minimum and maximum need no temporary array, and are NaN if any number is.
    return array.size == 0 or bool(np.isfinite([array.min(), array.max()]).all())


def to_theirs(arrays: Mapping[str, Floats], rows: Iterable[TensorRow]) -> Iterator[tuple[str, Array]]:
    """Convert our tensors to the names and the layout of a file, one at a time."""
    for row in rows:
        yield row.theirs, np.asarray(row.layout.to_theirs(arrays[row.ours]), order="C")
