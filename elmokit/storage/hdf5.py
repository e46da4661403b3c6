"""HDF5 files: a full disk is an error rather than a crash, and what a file declares is checked before it is read.

h5py is imported where a file is opened: it takes 40 ms, and few commands open one.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import FormatError

if TYPE_CHECKING:
    import h5py
    from _typeshed import ReadableBuffer, WriteableBuffer

HDF5_SUFFIXES = (".hdf5", ".h5")

HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)
"""The exceptions that h5py raises for a damaged file, apart from MemoryError."""

MAX_COMPRESSION = 200  # ratio of declared to stored bytes of a compressed dataset; weights hardly compress at all

MAX_DEPTH = 32
"""The limit on groups inside of each other; bilm-tf's are five levels deep."""

# A heap holds the names in a group. Its header: these bytes; the size of the names; where the first free block is among
# them; where they are in the file. A free block begins with where the next one is, or NO_BLOCK.
# Source: HDF5 File Format Specification 3.0, III.D.
_HEAP, _HEAP_NUMBERS, _NO_BLOCK = b"HEAP\0\0\0\0", struct.Struct("<QQQ"), 1
SIGNATURE = b"\x89HDF\r\n\x1a\n"
_HEADER_BYTES = len(_HEAP) + _HEAP_NUMBERS.size
_MAX_HEADERS = 1 << 16  # HDF5 reads headers in smaller pieces, and numbers mostly in larger ones
_PIECE = 1 << 17  # fits in the cache of a core, so the copy to where HDF5 wants it costs little


def open_hdf5(path: str | Path) -> h5py.File:
    """Open a file to read. One that makes the HDF5 library use all memory raises an OSError, as other damage does."""
    import h5py

    return h5py.File(_WithoutRings(path), "r")


class _WithoutRings(io.RawIOBase):
    """A file that HDF5 reads from. A heap whose free blocks are a ring is refused.

    The library (2.0 and before) follows the ring and allocates memory for each block, until none is left.
    """

    _descriptor: int | None = None
    _start: int | None = None
    """Where HDF5 begins in the file: its positions are counted from there."""
    _at = 0

    def __init__(self, path: str | Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))

    def readinto(self, buffer: WriteableBuffer) -> int:
        view, first = memoryview(buffer).cast("B"), self._at
        if len(view) <= _MAX_HEADERS:
            n_before = min(first, _HEADER_BYTES)
            around = self._read(first - n_before, n_before + len(view) + _HEADER_BYTES)
            self._check(around, first - n_before)  # more than is read, since a header may be read in parts
            _fill(view, around[n_before : n_before + len(view)])
        else:
            for start in range(0, len(view), _PIECE):  # no second copy of a large tensor
                piece = view[start : start + _PIECE]
                _fill(piece, self._read(first + start, len(piece)))
        self._at = first + len(view)
        return len(view)

    def _check(self, content: bytes, first: int) -> None:
        at = -1
        if self._start is None and (start := content.find(SIGNATURE)) >= 0:  # later ones are numbers by chance
            self._start = first + start
        while (at := content.find(_HEAP, at + 1)) >= 0 and at + _HEADER_BYTES <= len(content):
            size, block, names = _HEAP_NUMBERS.unpack_from(content, at + len(_HEAP))
            met: set[int] = set()
            while block != _NO_BLOCK and block + 16 <= size:
                if block in met:
                    raise OSError(f"the free blocks of the heap at byte {first + at:,} are a ring")
                met.add(block)
                block = int.from_bytes(self._read((self._start or 0) + names + block, 8), "little")

    def _read(self, first: int, n_bytes: int) -> bytes:
        """Read from a position; fewer bytes only at the end of the file."""
        # The system may return fewer: before a bad block of a disk, for example, whose error the next call raises.
        content = b""
        while len(content) < n_bytes and (more := self._read_some(first + len(content), n_bytes - len(content))):
            content += more
        return content

    def _read_some(self, first: int, n_bytes: int) -> bytes:
        assert self._descriptor is not None
        if first + n_bytes >= 1 << 63:
            return b""
        if hasattr(os, "pread"):  # processes that fork share a position in the file
            return os.pread(self._descriptor, n_bytes, first)
        os.lseek(self._descriptor, first, os.SEEK_SET)
        return os.read(self._descriptor, n_bytes)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        assert self._descriptor is not None
        self._at = offset + (os.fstat(self._descriptor).st_size if whence == os.SEEK_END else 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        if self._descriptor is not None and not self.closed:
            os.close(self._descriptor)
        super().close()


def _fill(view: memoryview, content: bytes) -> None:
    """Copy bytes, and zeros beyond the end of the file, as HDF5 itself reads."""
    view[:] = content.ljust(len(view), b"\0")


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


@contextlib.contextmanager
def damage_as_format_error(path: str | Path) -> Iterator[None]:
    """Turn whatever h5py raises for a damaged file into a FormatError that names the file."""
    try:
        yield
    except HDF5_ERRORS as error:
        raise FormatError(
            f"{path} is not a readable HDF5 file ({error}). It may be truncated: download or copy it again."
        ) from None


def find_datasets(file: h5py.File, path: str | Path) -> Iterator[h5py.Dataset]:
    """Yield the datasets of a file, those in groups included. Links by name, also into other files, are left out."""
    # `visititems` takes minutes for some thousands of groups inside of each other, which are a file of 1 MB.
    import h5py

    names = [("/", 0)]  # of groups, which were found in others; they are opened one at a time
    seen: set[int] = set()  # a group may be in several others, and even in itself
    for group_name, depth in names:
        group = file[group_name]
        if (address := h5py.h5o.get_info(group.id).addr) in seen:
            continue
        if depth > MAX_DEPTH:
            raise FormatError(f"{path} has groups more than {MAX_DEPTH} levels deep, so it is not a model's file.")
        seen.add(address)
        for name in group:
            if isinstance(group.get(name, getlink=True), h5py.HardLink):
                item = group[name]
                if isinstance(item, h5py.Dataset):
                    yield item
                elif isinstance(item, h5py.Group):
                    names.append((str(item.name), depth + 1))


def check_dataset(dataset: h5py.Dataset, path: str | Path) -> None:
    """Reject a dataset unless its numbers are stored in this file, before any memory is allocated for them."""
    name = str(dataset.name).lstrip("/")
    if dataset.dtype.kind not in "fiu":
        raise FormatError(f"{path}: dataset {name} holds {dataset.dtype}, not numbers, so it is not a model's tensor.")
    if dataset.is_virtual or dataset.external:
        raise FormatError(f"{path}: dataset {name} refers to another file, which elmokit does not read.")
    declared, n_stored = int(dataset.nbytes), int(dataset.id.get_storage_size())
    if declared > n_stored * (MAX_COMPRESSION if dataset.id.get_create_plist().get_nfilters() else 1):
        raise FormatError(
            f"{path}: dataset {name} declares the shape {dataset.shape}, {declared:,} bytes, of which {n_stored:,} are "
            "stored. The file is truncated or damaged: download or copy it again."
        )


def read_dataset(dataset: h5py.Dataset, path: str | Path) -> NDArray[np.float32]:
    """Read the numbers of a dataset that :func:`check_dataset` accepts, or raise a FormatError."""
    check_dataset(dataset, path)
    try:
        return np.asarray(dataset, dtype=np.float32)
    except HDF5_ERRORS as error:
        name = str(dataset.name).lstrip("/")
        raise FormatError(f"{path}: dataset {name} cannot be read ({error}). Download or copy it again.") from None
