"""HDF5 files written so that a full disk is an error and no crash."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import h5py

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _KeepsErrors(io.FileIO):
    """A file that keeps its first write error and takes later writes for done.

    An HDF5 file whose disk is full cannot be closed any more, and h5py then crashes the process. So HDF5
    never hears of the error; whoever writes asks ``check`` for it.
    """

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
def created_hdf5(path: Path) -> Iterator[tuple[h5py.File, Callable[[], None]]]:
    """A new HDF5 file, and a function that raises what has gone wrong with writing it; call it now and then.

    Raises:
        OSError: the file cannot be made or written, at the latest when the block ends.
    """
    with _KeepsErrors(path, "w+") as raw:
        with h5py.File(raw, "w") as file:
            yield file, raw.check
        raw.check()
