"""Whole files and numbers: read up to a limit, and their checksums."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

MIB = 1 << 20
MAX_RECORD_BYTES = 1 << 28
"""The limit on a file that elmokit writes itself and that grows with a run, such as a journal."""
LARGEST_LINE_LIMIT = 1 << 40
"""The largest limit on the length of a line that can be chosen."""
_MAX_DIGITS = 18  # such numbers fit into 64 bits


def is_file(path: Path) -> bool:
    """Whether there is a file; none for what cannot be a name, such as one of 5,000 letters from a strange config."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_bounded(path: str | Path, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """Read a whole file; one that is larger than ``max_bytes`` is a ValueError."""
    if Path(path).stat().st_size > max_bytes:
        raise ValueError(f"it is larger than {max_bytes:,} bytes")
    return Path(path).read_bytes()


def whole_number(text: str) -> int | None:
    """Return the number that a text of decimal digits is; None for any other text, or more than 18 digits."""
    # Python refuses to read or print numbers of more than 4,300 digits. ``isdigit`` accepts "²", which is no number.
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else None


def size_and_crc32(file: IO[bytes]) -> tuple[int, int]:
    """Read a file to its end, and return how many bytes it has and their checksum."""
    size = checksum = 0
    while block := file.read(MIB):
        size += len(block)
        checksum = zlib.crc32(block, checksum)
    return size, checksum


def json_crc32(content: Mapping[str, Any]) -> int:
    """Return the checksum of plain values, whatever the order of their keys."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def file_digest(path: Path) -> str:
    """Return a short text that is equal for equal files, and different for others."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def sentences_digest(sentences: Iterable[Iterable[str]]) -> str:
    """Return a short text that is equal for equal sentences, and different for others."""
    digest = hashlib.sha256()
    for sentence in sentences:
        digest.update("\0".join(sentence).encode("utf-8", errors="surrogatepass") + b"\n")
    return digest.hexdigest()[:16]


def text_digest(text: str) -> str:
    """Return a short text that is equal for equal texts, and different for others."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
