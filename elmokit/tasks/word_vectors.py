"""Pretrained word vectors: GloVe's text, word2vec's text and binary files; ``.gz``, ``.xz`` and ``.zst`` too."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import TextError
from elmokit.io.text_files import open_binary

MOST_DIMS = 100_000
MOST_WORD_BYTES = 10_000
FLOAT_BYTES = 4


@dataclass(frozen=True)
class WordVectors:
    """Vectors of the wanted words that a file has."""

    vectors: dict[str, NDArray[np.float32]]  # (dim,) each
    dim: int
    n_read: int
    """Words in the file, wanted or not."""


def read_word_vectors(path: str, wanted: Collection[str]) -> WordVectors:
    """The vectors of the wanted words; all others are passed over. A word that stands twice keeps its first vector.

    A first line of two numbers is word2vec's header (number of words, size); without one the file is GloVe's text. The
    line after the header tells text from binary. A GloVe word may contain blanks; numbers are counted from the right.

    Raises:
        TextError: the file cannot be read, is cut short, or a wanted word's line holds something else than its numbers.
    """
    wanted = set(wanted)
    with open_binary(path) as file:
        first = file.readline(MOST_DIMS * 32)
        header = _header(first)
        if header is None:
            return _read_text(path, file, first, 1, max(len(first.split()) - 1, 0), wanted)
        n_words, dim = header
        second = file.readline(MOST_DIMS * 32)
        if _is_text(second, dim):
            return _read_text(path, file, second, 2, dim, wanted)
        return _read_binary(path, _Ahead(second, file), n_words, dim, wanted)


def _header(line: bytes) -> tuple[int, int] | None:
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        return None
    n_words, dim = map(int, parts)
    return (n_words, dim) if 0 < dim <= MOST_DIMS else None


def _is_text(line: bytes, dim: int) -> bool:
    numbers = line.split()[-dim:]
    if len(line.split()) < dim + 1:
        return False
    try:
        [float(number) for number in numbers]
    except ValueError:
        return False
    return True


def _read_text(path: str, file: IO[bytes], first: bytes, number: int, dim: int, wanted: set[str]) -> WordVectors:
    if not dim or not _is_text(first, dim):
        raise TextError(
            f"{path}, line {number}: expected a word and its numbers with blanks between, as in GloVe's files, or "
            f"word2vec's header (number of words, size); found {first[:60]!r}."
        )
    found: dict[str, NDArray[np.float32]] = {}
    n_read = 0
    wanted_bytes = {word.encode("utf-8", "ignore") for word in wanted}
    for line in _with_first(first, file):
        n_read += 1
        if line.split(b" ", 1)[0] not in wanted_bytes:
            continue
        word, *numbers = line.rstrip().rsplit(b" ", dim)
        name = word.decode("utf-8", "replace")
        if name not in wanted or name in found:
            continue
        try:
            vector = np.array([float(part) for part in numbers], dtype=np.float32)
        except ValueError:
            vector = np.empty(0, dtype=np.float32)
        if len(vector) != dim:
            raise TextError(
                f"{path}, line {number + n_read - 1}: expected {dim} numbers after {name!r}, as on the lines before. "
                "Mend the line, or copy the file again."
            )
        found[name] = vector
    return WordVectors(found, dim, n_read)


def _with_first(first: bytes, file: IO[bytes]) -> Iterator[bytes]:
    yield first
    yield from file


class _Ahead:
    """A file of which some bytes have been read already; they are read again."""

    def __init__(self, ahead: bytes, file: IO[bytes]) -> None:
        self.ahead, self.place, self.file = ahead, 0, file  # before the place all is done with

    def read(self, size: int) -> bytes:
        while len(self.ahead) - self.place < size and self._more(size):
            pass
        return self._taken(min(self.place + size, len(self.ahead)))

    def until_blank(self) -> bytes:
        """The bytes before the next blank, which is taken too; at most so many as a word can have."""
        while (end := self.ahead.find(b" ", self.place, self.place + MOST_WORD_BYTES)) < 0:
            if len(self.ahead) - self.place >= MOST_WORD_BYTES or not self._more():
                return b""
        data = self._taken(end)
        self.place += 1
        return data

    def _taken(self, end: int) -> bytes:
        data, self.place = self.ahead[self.place : end], end
        return data

    def _more(self, size: int = 0) -> bool:
        more = self.file.read(max(size, 1 << 20))
        self.ahead, self.place = self.ahead[self.place :] + more, 0
        return bool(more)


def _read_binary(path: str, file: _Ahead, n_words: int, dim: int, wanted: set[str]) -> WordVectors:
    found: dict[str, NDArray[np.float32]] = {}
    for number in range(1, n_words + 1):
        word = file.until_blank().lstrip(b"\n")
        data = file.read(FLOAT_BYTES * dim)
        if not word or len(data) < FLOAT_BYTES * dim:
            raise TextError(
                f"{path}: word {number:,} of {n_words:,} is cut short. It is no word2vec file of {dim} dimensions, or "
                "not all of one: copy it again."
            )
        name = word.decode("utf-8", "replace")
        if name in wanted and name not in found:
            found[name] = np.frombuffer(data, dtype="<f4").astype(np.float32)
    return WordVectors(found, dim, n_words)
