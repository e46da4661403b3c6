"""Read and write safetensors files as NumPy arrays, optionally with weights as 8-bit integers.

The ``safetensors`` package cannot be used here: NumPy has no bfloat16, so its NumPy interface does not support it. The
format is the header's length in 8 bytes, the header (JSON with each tensor's dtype, shape and byte range), and the
numbers in little-endian order.

As integers, a matrix ``weight`` is stored as ``weight`` (int8) and ``weight.scale`` (bfloat16, one per row), which are
multiplied when loaded. One-dimensional tensors are stored in float32: they are small, and softmax biases represent
word frequencies.

Why bfloat16 for the scales? The product of a 7-bit integer and an 8-bit number has 15 bits, so a loaded weight is
exactly the sum of two bfloat16 numbers. The C function for the sum over the vocabulary also needs two such numbers for
weights stored in float16; arbitrary float32 numbers need three, and more time. Scales are rounded down, and the largest
weight of each row becomes 127. The kernels for ``precision="int8"`` divide each row by its largest weight, so they
recover the same integers.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from elmokit.errors import FormatError, TensorMismatchError, reading

Array = NDArray[Any]
Shape = tuple[int, ...]

# In the order in which tensors are written, as in the safetensors package: the widest numbers first, so all of them are
# aligned. In NumPy, a bfloat16 number is the upper half of a float32 number, as uint16.
DTYPES = {
    name: np.dtype(dtype)
    for name, dtype in (
        ("I64", "<i8"), ("F64", "<f8"), ("F32", "<f4"), ("I32", "<i4"), ("BF16", "<u2"), ("F16", "<f2"), ("I16", "<i2"),
        ("I8", "<i1"), ("U8", "<u1"), ("BOOL", "?"),
    )
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
SCALE = ".scale"
LARGEST = 127
_HALF_BITS = 16  # of a float32 number; bfloat16 keeps the upper half


class _Entry(msgspec.Struct):
    """A tensor's entry in the header."""

    dtype: Literal["I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL"]
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    data_offsets: tuple[int, int]


class TensorFile:
    """The tensors of a safetensors file, read on demand; ``dtypes`` has the names used by the format."""

    # The file stays open, so replacing it has no effect. It does not stay mapped into memory, where its pages would
    # count as memory of the process in addition to the packed weights.

    def __init__(self, path: Path) -> None:
        with reading(path, "safetensors file", RecursionError, msgspec.MsgspecError):
            self._file = path.open("rb")
            weakref.finalize(self, self._file.close)
            self._first, self._entries = _read_header(self._file)
        self.shapes = {name: entry.shape for name, entry in self._entries.items()}
        self.dtypes = {name: entry.dtype for name, entry in self._entries.items()}

    def read(self, name: str) -> Array:
        """Read a tensor as stored, but bfloat16 as float32."""
        entry = self._entries[name]
        try:
            array = np.array(self._octets(entry)).view(DTYPES[entry.dtype]).reshape(entry.shape)
        except (OSError, ValueError) as error:  # for example, truncated while it was open
            raise FormatError(f"{self._file.name}: {name} cannot be read ({error}).") from None
        if entry.dtype == "BF16":
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array

    def _octets(self, entry: _Entry) -> NDArray[np.uint8]:
        start, stop = entry.data_offsets
        if start == stop:
            return np.empty(0, np.uint8)  # an empty range cannot be mapped
        # Mapped instead of read at a file position, which threads and forked processes share.
        return np.memmap(self._file, np.uint8, "r", self._first + start, (stop - start,))


def _read_header(file: BufferedReader) -> tuple[int, dict[str, _Entry]]:
    """Read a file's header; return the position of the first number, and an entry per tensor."""
    n_header = int.from_bytes(file.read(8), "little")
    n_bytes = file.seek(0, 2) - 8 - n_header
    file.seek(8)
    header = file.read(n_header) if n_bytes >= 0 else b""  # causes an error, like an empty header
    table = msgspec.json.decode(header, type=dict[str, Any])
    table.pop("__metadata__", None)
    entries = msgspec.convert(table, dict[str, _Entry])
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        start, stop = entry.data_offsets
        if start != end or stop - start != prod(entry.shape) * DTYPES[entry.dtype].itemsize:
            raise ValueError(f"{name} of shape {entry.shape} does not match its byte range, {start:,} to {stop:,}")
        end = stop
    if end != n_bytes:
        raise ValueError(f"its tensors have {end:,} bytes, but the file has {n_bytes:,}")
    return 8 + n_header, entries


def write_tensor_file(arrays: Mapping[str, Array], path: Path) -> None:
    """Write the same bytes as the safetensors package; uint16 arrays hold the bits of bfloat16 numbers."""
    order = list(DTYPES.values())
    names = sorted(arrays, key=lambda name: (order.index(arrays[name].dtype), name))
    table: dict[str, Any] = {}
    start = 0
    for name in names:
        array = arrays[name]
        end = start + array.nbytes
        table[name] = {"dtype": _NAMES[array.dtype], "shape": array.shape, "data_offsets": [start, end]}
        start = end
    header = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name in names:
            file.write(np.ascontiguousarray(arrays[name]).data)


def to_int8(arrays: Mapping[str, NDArray[np.float32]], unchanged: str) -> dict[str, Array]:
    """Convert tensors to integers with scales, except vectors and tensors whose name starts with ``unchanged``."""
    tensors: dict[str, Array] = {}
    for name, array in arrays.items():
        if array.ndim < 2 or name.startswith(unchanged):
            tensors[name] = array
            continue
        rows = array.reshape(len(array), -1)
        largest = np.abs(rows).max(axis=1)
        bits = (largest / np.float32(LARGEST)).view(np.uint32) >> _HALF_BITS
        scales = (bits << _HALF_BITS).view(np.float32)
        # The bound avoids 0/0 for rows of zeros, whose scale is 0.
        scales = np.maximum(scales, np.finfo(np.float32).tiny)
        integers = np.rint(rows / scales[:, None]).clip(-LARGEST, LARGEST)
        with np.errstate(invalid="ignore"):  # NaN, which is kept in the scale
            tensors[name] = integers.astype(np.int8).reshape(array.shape)
        tensors[name + SCALE] = bits.astype(np.uint16)
    return tensors


class StoredTensors:
    """The tensors of a file, stored as floating-point numbers or integers; ``shapes`` excludes scales."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = TensorFile(path)
        self.shapes = dict(self._file.shapes)
        self._integers = {name for name, dtype in self._file.dtypes.items() if dtype == "I8"}
        for name in self._integers:
            expected = self.shapes[name][:1]
            shape = self.shapes.pop(name + SCALE, None)
            if shape != expected or not expected:
                raise TensorMismatchError(
                    f"{path} holds {name} as integers of shape {self.shapes[name]}, and its scales, "
                    f"{name + SCALE}, have shape {shape}; expected one scale per row."
                )

    def read(self, name: str) -> Array:
        """Read a tensor; integers are multiplied by their scales."""
        stored = self.integers(name)
        if stored is None:
            return self._file.read(name)
        integers, scales = stored
        of_rows = scales.reshape(-1, *[1] * (integers.ndim - 1))
        with np.errstate(over="ignore"):  # too large for float32: infinity, which readers of weights refuse
            return np.multiply(integers, of_rows, dtype=np.float32)

    def integers(self, name: str) -> tuple[NDArray[np.int8], NDArray[np.float32]] | None:
        """Read a tensor's integers and the scale of each row; None if it is stored as floating-point numbers."""
        if name not in self._integers:
            return None
        scales = self._file.read(name + SCALE).astype(np.float32)
        # A negative or NaN scale would change a whole row, although each integer looks valid.
        if not bool((np.isfinite(scales) & (scales >= 0)).all()):
            raise FormatError(f"{self.path} has negative, NaN or infinite scales in {name + SCALE}.")
        return self._file.read(name), scales
