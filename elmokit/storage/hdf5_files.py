"""HDF5 files: a full disk is an error rather than a crash, and numbers that are not in the file are no zeros.

h5py is imported where a file is opened: it takes 40 ms, and few commands open one.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import FormatError, reading

if TYPE_CHECKING:
    import h5py
    from _typeshed import ReadableBuffer

HDF5_SUFFIXES = (".hdf5", ".h5")

HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)
"""The exceptions that h5py raises for a damaged file, apart from MemoryError."""

SIGNATURE = b"\x89HDF\r\n\x1a\n"


def open_hdf5(path: str | Path) -> h5py.File:
    """Open a file to read."""
    import h5py

    return h5py.File(path, "r")


class _RememberErrors(io.FileIO):
    """A file that remembers its first write error instead of raising it."""

    # If the disk is full, HDF5 cannot close its file any more and h5py crashes the process. So HDF5 is told that every
    # write succeeded, and whoever writes calls `check` to learn the truth.

    error: OSError | None = None

    def write(self, data: ReadableBuffer) -> int:
        rest = memoryview(data).cast("B")
        n_bytes = len(rest)
        try:
            while self.error is None and len(rest):
                rest = rest[super().write(rest) or 0 :]
        except OSError as error:
            self.error = error
        return n_bytes

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0

    def check(self) -> None:
        if self.error is not None:
            raise self.error


@contextlib.contextmanager
def create_hdf5(path: Path) -> Iterator[tuple[h5py.File, Callable[[], None]]]:
    """Create an HDF5 file: yield it, and a function to call now and then that raises the first write error so far."""
    with _RememberErrors(path, "w+") as raw:
        import h5py

        with h5py.File(raw, "w") as file:
            yield file, raw.check
        raw.check()


def damage_as_format_error(path: str | Path) -> contextlib.AbstractContextManager[None]:
    """Turn whatever h5py raises for a damaged file into a FormatError that names the file."""
    return reading(path, "HDF5 file", *HDF5_ERRORS)


def find_datasets(file: h5py.File) -> list[h5py.Dataset]:
    """Find the datasets of a file, those in groups included. Links by name, also into other files, are left out."""
    import h5py

    found: list[h5py.Dataset] = []
    file.visititems(lambda _, item: found.append(item) if isinstance(item, h5py.Dataset) else None)
    return found


def check_dataset(dataset: h5py.Dataset, path: str | Path) -> None:
    """Reject a dataset unless its numbers are stored in this file: HDF5 reads what is missing as zeros."""
    name = str(dataset.name).lstrip("/")
    # Chunks may be compressed, so they are counted.
    is_whole, n_stored, problem = True, int(dataset.id.get_storage_size()), ""
    if dataset.dtype.kind not in "fiu":
        problem = f"holds {dataset.dtype}, not numbers"
    elif dataset.is_virtual or dataset.external:
        problem = "refers to another file, which is not read"
    elif dataset.chunks is None:
        is_whole = n_stored >= dataset.nbytes
    else:
        n_chunks = [-(-size // length) for size, length in zip(dataset.shape, dataset.chunks, strict=True)]
        is_whole = dataset.id.get_num_chunks() >= math.prod(n_chunks)
    if not is_whole:
        problem = f"has the shape {dataset.shape}, and only a part of its numbers ({n_stored:,} bytes) is stored"
    if problem:
        raise FormatError(f"{path}: dataset {name} {problem}.")


def read_dataset(dataset: h5py.Dataset, path: str | Path) -> NDArray[np.float32]:
    """Read the numbers of a dataset that :func:`check_dataset` accepts, or raise a FormatError."""
    check_dataset(dataset, path)
    with damage_as_format_error(path):
        return np.asarray(dataset, dtype=np.float32)
