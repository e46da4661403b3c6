"""HDF5 datasets read with care: nothing is allocated that the file does not hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from elmokit.errors import FormatError

DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError)
"""What h5py raises of a file that is damaged, besides running out of memory."""

MAX_RATIO = 200  # of declared to stored bytes where a dataset is compressed; weights hardly shrink


@contextlib.contextmanager
def damage_told(path: str | Path) -> Iterator[None]:
    """What h5py raises of a damaged file becomes a line that says so.

    Raises:
        FormatError: the file is damaged.
    """
    try:
        yield
    except DAMAGE as error:
        raise FormatError(
            f"{path} is a damaged HDF5 file ({error}). It may be cut short: download or copy it again."
        ) from None


def check_dataset(dataset: h5py.Dataset, path: str | Path) -> None:
    """Refuse a dataset whose numbers are not all in this file.

    Raises:
        FormatError: it declares more than is stored, keeps its numbers in another file, or holds no numbers.
    """
    name = str(dataset.name).lstrip("/")
    if dataset.dtype.kind not in "fiu":
        raise FormatError(f"{path}: dataset {name} holds {dataset.dtype}, not numbers; it is no tensor of a model.")
    if dataset.is_virtual or dataset.external:
        raise FormatError(f"{path}: dataset {name} points to another file; it is not read.")
    declared, stored = int(dataset.nbytes), int(dataset.id.get_storage_size())
    if declared > stored * (MAX_RATIO if dataset.id.get_create_plist().get_nfilters() else 1):
        raise FormatError(
            f"{path}: dataset {name} declares the shape {dataset.shape}, {declared:,} bytes, of which {stored:,} are "
            "stored. The file is cut short or damaged: download or copy it again."
        )


def read_dataset(dataset: h5py.Dataset, path: str | Path) -> NDArray[np.float32]:
    """The numbers of a dataset.

    Raises:
        FormatError: it is damaged, or as in ``check_dataset``.
    """
    check_dataset(dataset, path)
    try:
        return np.asarray(dataset, dtype=np.float32)
    except DAMAGE as error:
        name = str(dataset.name).lstrip("/")
        raise FormatError(f"{path}: dataset {name} cannot be read ({error}). Download or copy it again.") from None
