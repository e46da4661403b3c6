"""The words and characters of a run, and the initial values of its word tables: files of pretrained vectors.

These are GloVe text, or word2vec text and binary files; compressed ones too.
"""

from __future__ import annotations

import codecs
import itertools
import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmokit.config import whole_number
from elmokit.errors import ConfigError, TextError
from elmokit.storage.text_files import bounded_lines, open_binary
from elmokit.tasks.inputs import BYTES, N_SPECIAL, Vocabularies, WordTable
from elmokit.tasks.task import AnyTask
from elmokit.tasks.task_config import CharsConfig, WordsConfig, expand_paths

MAX_DIM = 100_000
MAX_WORD_BYTES = 10_000
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Coverage:
    """How many of the training words have a pretrained vector."""

    n_words: int
    unknown_types: float
    """Fraction of the distinct words without a pretrained vector."""
    unknown_tokens: float
    """Fraction of all tokens without one."""


@dataclass(frozen=True)
class InitialTable:
    """A word table before training."""

    table: WordTable
    vectors: Tensor | None  # (rows, dim); None where all vectors are learned from scratch
    coverage: Coverage | None


@dataclass(frozen=True)
class TaskVocabulary:
    """The words and characters of a run."""

    vocabularies: Vocabularies
    initial_vectors: dict[str, Tensor]
    """For the tables with pretrained vectors."""
    coverage: dict[str, Coverage]
    """For the same tables."""


def make_vocabulary(task: AnyTask, config: Any, train: Sequence[Any], others: Sequence[Any]) -> TaskVocabulary:
    """Collect the words and characters of a run.

    Args:
        task: The task.
        config: Its config.
        train: The training examples.
        others: Examples whose words are only taken if they have a pretrained vector: dev and test.
    """
    training, other = _count_words(task, train), _count_words(task, others)
    tables: dict[str, WordTable] = {}
    vectors: dict[str, Tensor] = {}
    coverage: dict[str, Coverage] = {}
    for name, words in task.word_configs(config).items():
        made = make_table(name, words, training, other)
        tables[name] = made.table
        if made.vectors is not None:
            vectors[name] = made.vectors
        if made.coverage is not None:
            coverage[name] = made.coverage
    if config.chars is None:
        return TaskVocabulary(Vocabularies(tables), vectors, coverage)
    chars = make_chars(config.chars, training)
    known = Vocabularies(tables, chars, config.chars.max_chars, config.chars.spelling)
    return TaskVocabulary(known, vectors, coverage)


def _count_words(task: AnyTask, examples: Sequence[Any]) -> Counter[str]:
    """Count the words that a model reads."""
    counts: Counter[str] = Counter()
    for example in examples:
        for sentence in task.sentences(example):
            counts.update(sentence)
    return counts


def make_table(name: str, config: WordsConfig, training: Counter[str], others: Counter[str]) -> InitialTable:
    """Make a word table of the words of the training text, and of those other words that have a pretrained vector."""
    if config.lowercase:
        training, others = _lowercased(training), _lowercased(others)
    seen = [word for word, count in training.most_common() if count >= config.min_count]
    files = expand_paths(config.vectors)
    if not files:
        if config.dim is None:
            raise ConfigError(f"{name} has neither vectors nor dim; it must have one of them.")
        return InitialTable(WordTable(seen, config.dim, config.lowercase), None, None)
    wanted = training.keys() | others.keys()
    read = [read_word_vectors(path, wanted) for path in files]
    dim = sum(vectors.dim for vectors in read)
    if config.dim not in (None, dim):
        raise ConfigError(f"{name}.dim is {config.dim}, but the vectors in {', '.join(files)} have {dim} numbers.")
    known = set[str]().union(*(vectors.vectors for vectors in read))
    if not known:
        raise ConfigError(f"None of the training words is in {', '.join(files)}.")
    words = seen + sorted(known - set(seen))
    initial = torch.cat([_initial_vectors(vectors, words, config) for vectors in read], dim=1)
    return InitialTable(WordTable(words, dim, config.lowercase), initial, _coverage(training, known, len(words)))


def _coverage(training: Counter[str], known: Collection[str], n_words: int) -> Coverage:
    """Return how many of the training words have no vector."""
    missing = [word for word in training if word not in known]
    n_missing = sum(training[word] for word in missing)
    return Coverage(n_words, len(missing) / len(training), n_missing / training.total())


def make_chars(config: CharsConfig, training: Counter[str]) -> list[str]:
    """List the characters of the training text, the most frequent first; or all bytes."""
    if config.spelling != "characters":
        return BYTES
    counts: Counter[str] = Counter()
    for word, count in training.items():
        for char in word:
            counts[char] += count
    frequent = [char for char, count in counts.items() if count >= config.min_count]
    return sorted(frequent, key=lambda char: (-counts[char], char))


def _lowercased(counts: Counter[str]) -> Counter[str]:
    lowered: Counter[str] = Counter()
    for word, count in counts.items():
        lowered[word.lower()] += count
    return lowered


def _initial_vectors(read: WordVectors, words: Sequence[str], config: WordsConfig) -> Tensor:
    """Return one file's columns of the table's initial values, ``(rows, dim)``."""
    vectors = read.vectors
    if config.unit_length:
        vectors = {word: _unit(vector) for word, vector in vectors.items()}
    initial = np.zeros((len(words) + N_SPECIAL, read.dim), dtype=np.float32)
    if config.unknown == "random" and vectors:  # AllenNLP draws the vectors of unknown words in the same way
        known = np.stack([vectors[word] for word in sorted(vectors)])
        draw = np.random.default_rng(0)
        initial[1:] = draw.normal(known.mean(), known.std(), initial[1:].shape)
    for row, word in enumerate(words, start=N_SPECIAL):
        if word in vectors:
            initial[row] = vectors[word]
    return torch.from_numpy(initial)


def _unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a vector of length 1; one of zeros unchanged."""
    length = max(float(np.linalg.norm(vector)), 1e-12)
    return vector / length


@dataclass(frozen=True)
class WordVectors:
    """The vectors that a file has for the wanted words."""

    vectors: dict[str, NDArray[np.float32]]  # (dim,) each
    dim: int


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
            n_numbers = max(len(first.split()) - 1, 0)
            return _read_text(path, file, first, 1, n_numbers, wanted)
        n_words, dim = header
        second = file.readline(MAX_DIM * 32)
        if _is_text(second, dim):
            return _read_text(path, file, second, 2, dim, wanted)
        file.seek(-len(second), os.SEEK_CUR)
        return _read_binary(path, file, n_words, dim, wanted)


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
            f"{path}, line {number}: expected a word and its numbers, as in GloVe files, or word2vec's header; "
            f"found {first[:60]!r}."
        )
    vectors: dict[str, NDArray[np.float32]] = {}
    wanted_bytes = {word.encode("utf-8", "ignore") for word in wanted}
    separator = _separator(first, dim)
    lines = itertools.chain([first], bounded_lines(file, path, number + 1))
    for line_number, line in enumerate(lines, start=number):
        if (line.split(separator, 1) or [b""])[0] not in wanted_bytes:
            continue
        word, *numbers = (line if separator else line.strip()).rstrip().rsplit(separator, dim)
        name = word.decode("utf-8", "replace")
        if name in wanted and name not in vectors:
            vectors[name] = _checked(_to_vector(numbers), dim, f"{path}, line {line_number}", name)
    return WordVectors(vectors, dim)


def _separator(line: bytes, dim: int) -> bytes | None:
    """Return what divides the first line: single spaces, or None for any white space, such as tabs."""
    parts = line.rstrip().rsplit(b" ", dim)
    are_single = len(parts) == dim + 1 and all(parts) and parts[0] == parts[0].strip()
    return b" " if are_single and b"\t" not in line else None


def _to_vector(numbers: Sequence[bytes]) -> NDArray[np.float32]:
    """Return the numbers of a line; an empty array if one of them is none."""
    try:
        with np.errstate(over="ignore"):
            return np.array([float(part) for part in numbers], dtype=np.float32)
    except ValueError:
        return np.empty(0, dtype=np.float32)


def _checked(vector: NDArray[np.float32], dim: int, where: str, word: str) -> NDArray[np.float32]:
    """Return a vector, or refuse one that would make the mean of all vectors infinite or NaN."""
    if len(vector) != dim or not np.isfinite(vector).all():
        raise TextError(f"{where}: expected {dim} finite numbers of float32 after {word!r}.")
    return vector


def _read_binary(path: str, file: IO[bytes], n_words: int, dim: int, wanted: set[str]) -> WordVectors:
    vectors: dict[str, NDArray[np.float32]] = {}
    for number in range(1, n_words + 1):
        word = _read_word(file)
        data = file.read(FLOAT_BYTES * dim)
        is_whole = len(word) > 0 and len(data) == FLOAT_BYTES * dim
        if not is_whole:
            data = b""  # refused below
        name = word.decode("utf-8", "replace")
        if not is_whole or (name in wanted and name not in vectors):
            vector = np.frombuffer(data, dtype="<f4").astype(np.float32)
            vectors[name] = _checked(vector, dim, f"{path}, word {number:,} of {n_words:,}", name)
    return WordVectors(vectors, dim)


def _read_word(file: IO[bytes]) -> bytes:
    """Read a word and the space after it."""
    # Byte by byte, and not without end if the file is something else.
    word = bytearray()
    for _ in range(MAX_WORD_BYTES):
        byte = file.read(1)
        if byte in (b" ", b""):
            break
        word += byte
    return bytes(word).lstrip(b"\n")
