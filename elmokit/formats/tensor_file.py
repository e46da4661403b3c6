"""Read and write safetensors files as NumPy arrays.

The ``safetensors`` package does not serve here: NumPy has no bfloat16, and so neither has its interface for NumPy. The
format is the length of the header in 8 bytes, the header (JSON: the dtype, the shape and the range of bytes of each
tensor), and the numbers, little-endian.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from contextlib import suppress
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.engine.config import Shape
from elmokit.errors import FormatError, ModelNotFoundError

Array = NDArray[Any]

# In the order in which tensors are written, as the safetensors package does: the widest numbers first, so that all of
# them are aligned. NumPy holds bfloat16 numbers as the upper halves of float32 numbers, in uint16.
DTYPES = {
    name: np.dtype(dtype)
    for name, dtype in (
        ("I64", "<i8"), ("F64", "<f8"), ("F32", "<f4"), ("I32", "<i4"), ("BF16", "<u2"), ("F16", "<f2"), ("I16", "<i2"),
        ("I8", "<i1"), ("U8", "<u1"), ("BOOL", "?"),
    )
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_MAX_HEADER = 100_000_000  # bytes; the limit of the safetensors package


class _Entry(NamedTuple):
    """What the header says about a tensor."""

    dtype: str
    shape: Shape
    start: int
    stop: int


class TensorFile:
    """The tensors of a safetensors file, each read when it is asked for.

    The file stays open: one that replaces it meanwhile is another file. It does not stay mapped into memory, where its
    pages would count as memory of the process besides the weights that are packed from them.

    Args:
        path: The file.

    Raises:
        ModelNotFoundError: It does not exist.
        FormatError: It is damaged or of another format.

    Attributes:
        shapes: The shape of each tensor by name.
        dtypes: The dtype of each tensor by name, as the format spells it.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("rb")
            weakref.finalize(self, self._file.close)
            self._first, self._entries = _read_header(self._file)
        except FileNotFoundError:
            raise ModelNotFoundError(f"{path} is missing.") from None
        except (OSError, ValueError, RecursionError) as error:
            raise FormatError(
                f"{path} is not a readable safetensors file ({error}). It may be truncated: copy it again."
            ) from None
        self.shapes = {name: entry.shape for name, entry in self._entries.items()}
        self.dtypes = {name: entry.dtype for name, entry in self._entries.items()}

    def read(self, name: str) -> Array:
        """Return a tensor as it is stored, bfloat16 as float32.

        Raises:
            FormatError: The file was cut short after it was opened.
        """
        entry = self._entries[name]
        array = np.array(self._octets(entry)).view(DTYPES[entry.dtype]).reshape(entry.shape)
        if entry.dtype == "BF16":
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array

    def _octets(self, entry: _Entry) -> NDArray[np.uint8]:
        n_bytes = entry.stop - entry.start
        if not n_bytes:
            return np.empty(0, np.uint8)  # an empty range cannot be mapped
        try:
            # Not read from a position in the file: threads share it, and so do the processes of a fork.
            return np.memmap(self._file, np.uint8, "r", self._first + entry.start, (n_bytes,))
        except (OSError, ValueError):
            raise FormatError(f"{self._file.name} was cut short while it was open. Copy it again.") from None


def _read_header(file: BufferedReader) -> tuple[int, dict[str, _Entry]]:
    """Return where the numbers of a file begin, and what its header says about them."""
    n_header = int.from_bytes(file.read(8), "little")
    if n_header > _MAX_HEADER:
        raise ValueError(f"a header of {n_header:,} bytes")
    header = file.read(n_header)
    n_bytes = file.seek(0, 2) - 8 - n_header
    if n_bytes < 0:
        raise ValueError("it ends within its header")
    table = json.loads(header.decode("utf-8"))
    if not isinstance(table, dict):
        raise ValueError("its header is not a table")
    table.pop("__metadata__", None)
    entries = {name: _entry(name, values) for name, values in table.items()}
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1][2:]):
        if entry.start != end:
            raise ValueError(f"{name} does not begin where the tensor before it ends")
        end = entry.stop
    if end != n_bytes:
        raise ValueError(f"its tensors have {end:,} bytes, and the file has {n_bytes:,}")
    return 8 + n_header, entries


def _entry(name: str, values: Any) -> _Entry:
    with suppress(TypeError, KeyError, AttributeError):
        dtype, shape, (start, stop) = values["dtype"], tuple(values["shape"]), values["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, start, stop)):
            raise ValueError(f"{name} has the shape {shape} at {start}")
        if dtype not in DTYPES:
            raise ValueError(f"{name} holds numbers of the type {dtype}, which elmokit does not read")
        if stop - start != prod(shape) * DTYPES[dtype].itemsize:
            raise ValueError(f"{name} has {stop - start:,} bytes, which do not fit the shape {shape}")
        return _Entry(dtype, shape, start, stop)
    raise ValueError(f"its header does not describe {name}")


def write_tensor_file(arrays: Mapping[str, Array], path: Path) -> None:
    """Write a file with the same bytes as the safetensors package.

    Args:
        arrays: By name. An array of uint16 holds bfloat16 numbers, as their bits.

    Raises:
        OSError: The file cannot be written.
    """
    ranks = {dtype: rank for rank, dtype in enumerate(_NAMES)}
    ordered = sorted(arrays.items(), key=lambda item: (ranks[item[1].dtype], item[0]))
    table: dict[str, Any] = {}
    end = 0
    for name, array in ordered:
        start, end = end, end + array.nbytes
        table[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    header = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _, array in ordered:
            file.write(np.ascontiguousarray(array).data)
