"""The words and characters of a run, and the initial values of its word tables from files of pretrained vectors.

Supported files are GloVe text, word2vec text and word2vec binary files, which may be compressed.
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
    """How many training words have a pretrained vector."""

    n_words: int
    """Number of words in the table."""
    unknown_types: float
    """Fraction of distinct training words without a pretrained vector."""
    unknown_tokens: float
    """Fraction of training tokens without one."""


@dataclass(frozen=True)
class InitialTable:
    """A word table before training."""

    table: WordTable
    vectors: Tensor | None  # (rows, dim); None if all vectors are learned from scratch
    coverage: Coverage | None


@dataclass(frozen=True)
class TaskVocabulary:
    """The words and characters of a run."""

    vocabularies: Vocabularies
    initial_vectors: dict[str, Tensor]
    """The initial values of tables with pretrained vectors, ``(rows, dim)``, by table."""
    coverage: dict[str, Coverage]
    """The coverage of the same tables."""


def make_vocabulary(task: AnyTask, config: Any, train: Sequence[Any], others: Sequence[Any]) -> TaskVocabulary:
    """Collect the words and characters of a run.

    Args:
        task: The task.
        config: Its config.
        train: The training examples.
        others: The dev and test examples. Their words are included if they have a pretrained vector.
    """
    training = _count_words(task, train)
    other = _count_words(task, others)
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
    """Make a word table of the training words, and of other words that have a pretrained vector."""
    if config.lowercase:
        training, others = _lowercased(training), _lowercased(others)
    seen = [word for word, count in training.most_common() if count >= config.min_count]
    files = expand_paths(config.vectors)
    if not files:
        if config.dim is None:
            raise ConfigError(f"{name} has neither vectors nor dim; it must have one of them.")
        return InitialTable(WordTable(seen, config.dim, config.lowercase), None, None)
    read = [read_word_vectors(path, training.keys() | others.keys()) for path in files]
    dim = sum(of_file.dim for of_file in read)
    if config.dim not in (None, dim):
        raise ConfigError(f"{name}.dim is {config.dim}, but the vectors in {', '.join(files)} have {dim} numbers.")
    known = set(itertools.chain.from_iterable(of_file.vectors for of_file in read))
    if not known:
        raise ConfigError(f"None of the training words is in {', '.join(files)}.")
    words = seen + sorted(known - set(seen))
    initial = torch.cat([_initial_vectors(of_file, words, config) for of_file in read], dim=1)
    coverage = _coverage(training, known, len(words))
    return InitialTable(WordTable(words, dim, config.lowercase), initial, coverage)


def _coverage(training: Counter[str], known: Collection[str], n_words: int) -> Coverage:
    """Measure how many training words have no vector."""
    missing = [word for word in training if word not in known]
    n_missing = sum(training[word] for word in missing)
    return Coverage(n_words, len(missing) / len(training), n_missing / training.total())


def make_chars(config: CharsConfig, training: Counter[str]) -> list[str]:
    """List the characters of the training text, most frequent first, or all bytes."""
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
    """Return the columns of a table's initial values that come from one file, ``(rows, dim)``."""
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
    """Scale a vector to length 1. A zero vector stays zero."""
    length = max(float(np.linalg.norm(vector)), 1e-12)
    return vector / length


@dataclass(frozen=True)
class WordVectors:
    """A file's vectors of the wanted words."""

    vectors: dict[str, NDArray[np.float32]]  # (dim,) each
    dim: int


def read_word_vectors(path: str, wanted: Collection[str]) -> WordVectors:
    """Read the vectors of the wanted words. If a word occurs twice, its first vector counts.

    The format is detected. A first line of two numbers is word2vec's header (number of words, size), and the next line
    shows whether the file is text or binary. A file without a header is GloVe text. Words in a GloVe file can contain
    spaces, so numbers are counted from the right.
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
    """Return word2vec's number of words and size, or None if a line is not its header."""
    numbers = [whole_number(part.decode("latin-1")) for part in line.split()]
    if len(numbers) != 2:
        return None
    n_words, dim = numbers
    if n_words is None or dim is None:
        return None
    if not 0 < dim <= MAX_DIM:
        return None
    return n_words, dim


def _is_text(line: bytes, dim: int) -> bool:
    """Check whether a line is a word and its numbers as text."""
    parts = line.split()
    if len(parts) < dim + 1:
        return False
    return len(_to_vector(parts[-dim:])) == dim


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
        parts = line.split(separator, 1)
        if not parts or parts[0] not in wanted_bytes:
            continue  # as most lines
        name, numbers = _word_and_numbers(line, separator, dim)
        if name in wanted and name not in vectors:
            vectors[name] = _checked(_to_vector(numbers), dim, f"{path}, line {line_number}", name)
    return WordVectors(vectors, dim)


def _word_and_numbers(line: bytes, separator: bytes | None, dim: int) -> tuple[str, list[bytes]]:
    if separator is None:
        line = line.strip()
    word, *numbers = line.rstrip().rsplit(separator, dim)
    return word.decode("utf-8", "replace"), numbers


def _separator(line: bytes, dim: int) -> bytes | None:
    """Return the separator of the first line: a single space, or None for any white space, such as tabs."""
    if b"\t" in line:
        return None
    word, *numbers = line.rstrip().rsplit(b" ", dim)
    if len(numbers) == dim and all(numbers) and word and word == word.strip():
        return b" "
    return None


def _to_vector(numbers: Sequence[bytes]) -> NDArray[np.float32]:
    """Convert the numbers of a line. The result is empty if one of them is not a number."""
    try:
        with np.errstate(over="ignore"):
            return np.array([float(part) for part in numbers], dtype=np.float32)
    except ValueError:
        return np.empty(0, dtype=np.float32)


def _checked(vector: NDArray[np.float32], dim: int, where: str, word: str) -> NDArray[np.float32]:
    """Return a vector if it has the right size and is finite: others would make the mean of all vectors NaN."""
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
    # The number of bytes is bounded because the file may be something else.
    word = bytearray()
    for _ in range(MAX_WORD_BYTES):
        byte = file.read(1)
        if byte in (b" ", b""):
            break
        word += byte
    return bytes(word).lstrip(b"\n")
