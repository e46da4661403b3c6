"""Checksums of what was written to files, so that a later run notices what a disk or a copy has changed.

A file can be written out of order, and may be incomplete when the process dies. One checksum per file would have to be
computed from the start after each write, and one per fixed block would be wrong for a block that was later filled
further. So each *extent*, the bytes of a write or of several writes at the end of a file, has a checksum of its own.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

EXTENT = np.dtype([("file", "<u4"), ("start", "<i8"), ("stop", "<i8"), ("crc32", "<u4")])
"""An extent as it is stored. ``file`` is the position of the file's name in a list that the owner keeps."""

_TRUNCATED = -1
"""``stop`` of a mark that a file was cut to the size ``start``: earlier extents behind it do not count any more."""
_BLOCK = 1 << 20


CRC32 = "_crc32"
"""How the names of settings end that are the checksum of a text."""


def is_digest(value: object) -> bool:
    """Return whether a value looks like a hash in hexadecimal digits, which says nothing to people."""
    return isinstance(value, str) and len(value) >= 16 and not value.strip("0123456789abcdef")


def size_and_crc32(file: IO[bytes]) -> tuple[int, int]:
    """Read a file to its end, and return how many bytes it has and their checksum."""
    size = checksum = 0
    while block := file.read(_BLOCK):
        size += len(block)
        checksum = zlib.crc32(block, checksum)
    return size, checksum


def as_read_back(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values as a JSON file gives them back: with lists instead of tuples, for example."""
    content: dict[str, Any] = json.loads(json.dumps(dict(table)))
    return content


def json_crc32(content: Mapping[str, Any]) -> int:
    """Return the checksum of plain values, whatever the order of their keys."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


@dataclass
class WrittenExtents:
    """The extents that were written since the last call of :meth:`take`."""

    _extents: dict[str, list[list[int]]] = field(default_factory=dict)

    def add(self, name: str, start: int, data: bytes | memoryview, continues: bool = False) -> None:
        """Note that data was written to a file; ``continues`` joins it to the extent before, if adjacent."""
        # An extent that a truncation cuts in two does not count any more, so writes between which a file may be cut
        # stay apart.
        extents = self._extents.setdefault(name, [])
        if continues and extents and extents[-1][1] == start:
            # A checksum can be continued, so that a file that only grows has one extent per call of `take`.
            last = extents[-1]
            last[1], last[2] = start + len(data), zlib.crc32(data, last[2])
        else:
            extents.append([start, start + len(data), zlib.crc32(data)])

    def take(self, files: Sequence[str], truncated: Mapping[str, int]) -> bytes:
        """Return the extents as they are stored, with marks for truncated files (their new sizes), and forget them."""
        taken, self._extents = self._extents, {}
        rows = [(number, *extent) for number, name in enumerate(files) for extent in taken.get(name, ())]
        rows += [(files.index(name), size, _TRUNCATED, 0) for name, size in truncated.items()]
        return np.array(rows, EXTENT).tobytes()


def extents_of(content: bytes, file: int) -> NDArray[np.void]:
    """Return the extents of one file that count, from what :meth:`WrittenExtents.take` returned over time."""
    extents = np.frombuffer(content, EXTENT)
    own = extents[extents["file"] == file]
    counts = own["stop"] != _TRUNCATED
    for mark in np.flatnonzero(~counts):
        counts[:mark] &= own["stop"][:mark] <= own["start"][mark]
    counted: NDArray[np.void] = own[counts]
    return counted


def find_damage(path: Path, extents: NDArray[np.void]) -> str | None:
    """Name the first extent whose content has changed; None if there is none."""
    with path.open("rb") as file:
        for _, start, stop, expected in extents.tolist():
            file.seek(start)
            checksum, rest = 0, stop - start
            while rest > 0 and (block := file.read(min(_BLOCK, rest))):
                checksum, rest = zlib.crc32(block, checksum), rest - len(block)
            if rest or checksum != expected:
                return f"bytes {start:,} to {stop:,} are not those that were written"
    return None


def file_digest(path: Path) -> str:
    """Return a short text that is equal for equal files, and different for others."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
