"""Checksums of files and of plain values."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

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


def file_digest(path: Path) -> str:
    """Return a short text that is equal for equal files, and different for others."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
