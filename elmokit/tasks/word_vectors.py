"""Read pretrained word vectors: GloVe text, word2vec text and binary files; compressed ones too."""

from __future__ import annotations

import codecs
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from typing import IO

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import TextError
from elmokit.storage.bounded import whole_number
from elmokit.storage.text_files import bounded_lines, open_binary

MAX_DIM = 100_000
MAX_WORD_BYTES = 10_000
FLOAT_BYTES = 4


@dataclass(frozen=True)
class WordVectors:
    """The vectors that a file has for the wanted words."""

    vectors: dict[str, NDArray[np.float32]]  # (dim,) each
    dim: int
    n_read: int
    """The number of words in the file, wanted or not."""


def read_word_vectors(path: str, wanted: Collection[str]) -> WordVectors:
    """Read the vectors of the wanted words. A word that occurs twice keeps its first vector.

    The format is detected: a first line of two numbers is the header of word2vec (number of words, size), and the line
    after it shows whether the file is text or binary; without a header the file is GloVe text. A word of a GloVe file
    can contain spaces, so the numbers are counted from the right.
    """
    wanted = set(wanted)
    with open_binary(path) as file:
        first = file.readline(MAX_DIM * 32).removeprefix(codecs.BOM_UTF8)
        header = _header(first)
        if header is None:
            return _read_text(path, file, first, 1, max(len(first.split()) - 1, 0), wanted)
        n_words, dim = header
        second = file.readline(MAX_DIM * 32)
        if _is_text(second, dim):
            return _read_text(path, file, second, 2, dim, wanted)
        return _read_binary(path, _Buffered(second, file), n_words, dim, wanted)


def _header(line: bytes) -> tuple[int, int] | None:
    numbers = [whole_number(part.decode("latin-1")) for part in line.split()]
    n_words, dim = numbers if len(numbers) == 2 else (None, None)
    return None if n_words is None or dim is None or not 0 < dim <= MAX_DIM else (n_words, dim)


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
            f"{path}, line {number}: expected a word and its numbers, as in GloVe's files, or word2vec's header; "
            f"found {first[:60]!r}."
        )
    vectors: dict[str, NDArray[np.float32]] = {}
    n_read = 0
    wanted_bytes = {word.encode("utf-8", "ignore") for word in wanted}
    # Any white space, such as tabs, if single spaces do not divide the first line into a word and its numbers.
    by_spaces = first.rstrip().rsplit(b" ", dim)
    are_single = len(by_spaces) == dim + 1 and all(by_spaces) and by_spaces[0] == by_spaces[0].strip()
    separator = b" " if are_single and b"\t" not in first else None
    for line in chain([first], bounded_lines(file, path, number + 1)):
        n_read += 1
        if (line.split(separator, 1) or [b""])[0] not in wanted_bytes:
            continue
        word, *numbers = (line if separator else line.strip()).rstrip().rsplit(separator, dim)
        name = word.decode("utf-8", "replace")
        if name not in wanted or name in vectors:
            continue
        try:
            with np.errstate(over="ignore"):
                vector = np.array([float(part) for part in numbers], dtype=np.float32)
        except ValueError:
            vector = np.empty(0, dtype=np.float32)
        vectors[name] = _checked(vector, dim, f"{path}, line {number + n_read - 1}", name)
    return WordVectors(vectors, dim, n_read)


def _checked(vector: NDArray[np.float32], dim: int, where: str, word: str) -> NDArray[np.float32]:
    """Return a vector, or refuse one that would make the mean of all vectors infinite or NaN."""
    if len(vector) != dim or not np.isfinite(vector).all():
        raise TextError(f"{where}: expected {dim} finite numbers of float32 after {word!r}.")
    return vector


class _Buffered:
    """A binary file with a buffer, which starts with bytes that were read already."""

    def __init__(self, buffer: bytes, file: IO[bytes]) -> None:
        self.buffer, self.offset, self.file = buffer, 0, file

    def read(self, size: int) -> bytes:
        while len(self.buffer) - self.offset < size and self._read_more(size):
            pass
        return self._take_until(min(self.offset + size, len(self.buffer)))

    def read_until_space(self) -> bytes:
        """Return the bytes before the next space, and skip the space; empty if no word is that long."""
        while (end := self.buffer.find(b" ", self.offset, self.offset + MAX_WORD_BYTES)) < 0:
            if len(self.buffer) - self.offset >= MAX_WORD_BYTES or not self._read_more():
                return b""
        data = self._take_until(end)
        self.offset += 1
        return data

    def _take_until(self, end: int) -> bytes:
        data, self.offset = self.buffer[self.offset : end], end
        return data

    def _read_more(self, size: int = 0) -> bool:
        more = self.file.read(max(size, 1 << 20))
        self.buffer, self.offset = self.buffer[self.offset :] + more, 0
        return bool(more)


def _read_binary(path: str, file: _Buffered, n_words: int, dim: int, wanted: set[str]) -> WordVectors:
    vectors: dict[str, NDArray[np.float32]] = {}
    for number in range(1, n_words + 1):
        word = file.read_until_space().lstrip(b"\n")
        data = file.read(FLOAT_BYTES * dim)
        name = word.decode("utf-8", "replace")
        is_whole = len(word) > 0 and len(data) == FLOAT_BYTES * dim
        if not is_whole or (name in wanted and name not in vectors):
            vector = np.frombuffer(data if is_whole else b"", dtype="<f4").astype(np.float32)
            vectors[name] = _checked(vector, dim, f"{path}, word {number:,} of {n_words:,}", name)
    return WordVectors(vectors, dim, n_words)
