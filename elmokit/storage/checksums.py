"""Checksums and digests of files, texts and plain values."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

_BLOCK = 1 << 20


def size_and_crc32(file: IO[bytes]) -> tuple[int, int]:
    """Read a file to its end, and return its size in bytes and checksum."""
    size = checksum = 0
    while block := file.read(_BLOCK):
        size += len(block)
        checksum = zlib.crc32(block, checksum)
    return size, checksum


def json_crc32(content: Mapping[str, Any]) -> int:
    """Return a checksum of plain values that does not depend on the order of keys."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def file_digest(path: Path) -> str:
    """Return a short digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def sentences_digest(sentences: Iterable[Iterable[str]]) -> str:
    """Return a short digest of tokenized sentences."""
    digest = hashlib.sha256()
    for sentence in sentences:
        digest.update("\0".join(sentence).encode("utf-8", errors="surrogatepass") + b"\n")
    return digest.hexdigest()[:16]


def text_digest(text: str) -> str:
    """Return a short digest of a text."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
