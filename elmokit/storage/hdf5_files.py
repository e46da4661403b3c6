"""HDF5 files, with protection against full disks and against missing numbers, which HDF5 would read as zeros.

h5py is imported where a file is opened, because importing it takes 40 ms and few commands need it.
"""

from __future__ import annotations

import errno
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import FormatError, RaisedAgain, reading

if TYPE_CHECKING:
    import h5py

HDF5_SUFFIXES = (".hdf5", ".h5")

HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)
"""The exceptions that h5py raises for a damaged file, apart from MemoryError."""

SIGNATURE = b"\x89HDF\r\n\x1a\n"

HEADER_BYTES = 440
"""Approximate size of a dataset's header and its entry in the group."""
CANNOT_SAY = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
"""Errors of file systems that do not support allocation."""
MAX_OLD_NAME_BYTES = 1 << 24
"""Maximum total length of dataset names in the oldest file version, which every HDF5 reader knows. Larger files use
the version of HDF5 1.8 (2008)."""


def open_hdf5(path: str | Path) -> h5py.File:
    """Open a file for reading."""
    import h5py

    return h5py.File(path, "r")


def create_hdf5(path: Path, n_bytes: int, n_datasets: int, n_name_bytes: int = 0) -> h5py.File:
    """Create a file for datasets of ``n_bytes`` in total (0 if unknown), in the oldest suitable version of the format.

    Raises:
        OSError: They do not fit on the disk. This is checked first, because h5py crashes if HDF5 cannot close a file.
    """
    import h5py

    path.touch()
    if n_bytes:
        _allocate(path, n_bytes + n_name_bytes + HEADER_BYTES * n_datasets + 65536)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    # An old group stores its names in one block. If that exceeds the cache, HDF5 rewrites it for each dataset.
    oldest = h5py.h5f.LIBVER_EARLIEST if n_name_bytes <= MAX_OLD_NAME_BYTES else h5py.h5f.LIBVER_V18
    access.set_libver_bounds(oldest, h5py.h5f.LIBVER_LATEST)
    # Headers are grouped in blocks of this size, which would otherwise be scattered between the numbers.
    access.set_meta_block_size(max(2048, min(256 * n_datasets, 1 << 20)))
    # The header cache takes fourteen times its nominal size, which is 2 MB by default. It must hold the names.
    cache = access.get_mdc_config()
    n_cached = n_name_bytes * 3 // 2 + (1 << 18)
    if n_cached < cache.initial_size:
        cache.min_size = cache.initial_size = cache.max_size = n_cached
        access.set_mdc_config(cache)
    return h5py.File(h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, None, access))


def _allocate(path: Path, n_bytes: int) -> None:
    """Allocate space in the file system, if it supports that."""
    if not hasattr(os, "posix_fallocate"):
        return
    with path.open("wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, n_bytes)
        except OSError as error:
            if error.errno not in CANNOT_SAY:
                raise


class DroppedInterrupts:
    """Catches a Ctrl-C that arrives while h5py deletes an object, which Python would only report and drop.

    With many small datasets, this happens to one interruption in a hundred. Call :meth:`check` regularly in the
    ``with`` block.
    """

    def __init__(self) -> None:
        self._dropped: BaseException | None = None

    def __enter__(self) -> DroppedInterrupts:
        self._hook = sys.unraisablehook
        sys.unraisablehook = self._note
        return self

    def __exit__(self, *error: object) -> None:
        sys.unraisablehook = self._hook

    def check(self) -> None:
        """Raise the dropped interruption, if any."""
        if self._dropped is not None:
            raise self._dropped

    def _note(self, unraisable: Any) -> None:
        error = unraisable.exc_value
        if error is None or isinstance(error, Exception):
            self._hook(unraisable)
        else:  # KeyboardInterrupt, or another exception of a signal handler that ends the program
            self._dropped = error


def damage_as_format_error(path: str | Path) -> RaisedAgain:
    """Turn h5py's errors for a damaged file into a FormatError that names the file."""
    return reading(path, "HDF5 file", *HDF5_ERRORS)


def find_datasets(file: h5py.File) -> list[h5py.Dataset]:
    """Find the datasets of a file, including those in groups, but not symbolic or external links."""
    import h5py

    found: list[h5py.Dataset] = []

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            found.append(item)

    file.visititems(visit)
    return found


def check_dataset(dataset: h5py.Dataset, path: str | Path) -> None:
    """Reject a dataset unless all its numbers are stored in this file: HDF5 reads missing ones as zeros."""
    problem = ""
    if dataset.dtype.kind not in "fiu":
        problem = f"holds {dataset.dtype}, not numbers"
    elif dataset.is_virtual or dataset.external:
        problem = "refers to another file, which is not read"
    elif not _is_stored(dataset):
        n_stored = int(dataset.id.get_storage_size())
        problem = f"has the shape {dataset.shape}, but only part of its numbers ({n_stored:,} bytes) is stored"
    if problem:
        raise FormatError(f"{path}: dataset {str(dataset.name).lstrip('/')} {problem}.")


def _is_stored(dataset: h5py.Dataset) -> bool:
    """Check whether all numbers of a dataset are in the file."""
    if dataset.chunks is None:
        return bool(dataset.id.get_storage_size() >= dataset.nbytes)
    # Chunks may be compressed, so they are counted.
    n_chunks = 1
    for size, length in zip(dataset.shape, dataset.chunks, strict=True):
        n_chunks *= math.ceil(size / length)
    return bool(dataset.id.get_num_chunks() >= n_chunks)


def read_dataset(dataset: h5py.Dataset, path: str | Path) -> NDArray[np.float32]:
    """Read a dataset that :func:`check_dataset` accepts, or raise a FormatError."""
    check_dataset(dataset, path)
    with damage_as_format_error(path):
        return np.asarray(dataset, dtype=np.float32)
