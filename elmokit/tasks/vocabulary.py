"""The words and characters of a run, and the first values of its word tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from elmokit.errors import ConfigError
from elmokit.tasks.config import CharsConfig, WordsConfig, expand
from elmokit.tasks.inputs import N_SPECIAL, WordTable
from elmokit.tasks.word_vectors import WordVectors, read_word_vectors


@dataclass(frozen=True)
class Coverage:
    """How many of the training words a table's files know."""

    n_words: int
    unknown_types: float
    """Share of the distinct words without a pretrained vector; of all tokens in ``unknown_tokens``."""
    unknown_tokens: float


@dataclass(frozen=True)
class FreshTable:
    """A table before training."""

    table: WordTable
    start: Tensor | None  # (rows, dim); None where everything is learned from scratch
    coverage: Coverage | None


def count_words(sentences: Iterable[Sequence[str]]) -> Counter[str]:
    """How often each word stands there."""
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(sentence)
    return counts


def make_table(name: str, config: WordsConfig, training: Counter[str], others: Counter[str]) -> FreshTable:
    """The words of a table: those of the training text, and of the other texts those that a file has a vector for.

    Args:
        name: the config's name of the table, for errors.
        others: the words of dev and test.

    Raises:
        ConfigError: neither files nor a size are given, or the size is not that of the files.
        TextError: a file cannot be read.
    """
    if config.lowercase:
        training, others = _lowercased(training), _lowercased(others)
    seen = [word for word, count in training.most_common() if count >= config.min_count]
    files = expand(config.vectors)
    if not files:
        if config.dim is None:
            raise ConfigError(f"{name} has neither a file of vectors nor a dim. Give one of them, or {name} = false.")
        return FreshTable(WordTable(seen, config.dim, config.lowercase), None, None)
    wanted = training.keys() | others.keys()
    read = [read_word_vectors(path, wanted) for path in files]
    dim = sum(vectors.dim for vectors in read)
    if config.dim not in (None, dim):
        raise ConfigError(
            f"{name}.dim is {config.dim}, and the vectors in {', '.join(files)} have {dim} numbers. Leave {name}.dim "
            "out, or set it to false: it follows from the files."
        )
    known = {word for vectors in read for word in vectors.vectors}
    more = sorted(known - set(seen))
    words = seen + more
    if not known:
        raise ConfigError(f"None of the training words stands in {', '.join(files)}. Are they of this language?")
    start = torch.cat([_start(vectors, words, config) for vectors in read], dim=1)
    missing = [word for word in training if word not in known]
    coverage = Coverage(
        len(words), len(missing) / len(training), sum(training[word] for word in missing) / training.total()
    )
    return FreshTable(WordTable(words, dim, config.lowercase), start, coverage)


def make_chars(config: CharsConfig, training: Counter[str]) -> list[str]:
    """The characters of the training text, the most frequent first."""
    counts: Counter[str] = Counter()
    for word, count in training.items():
        for char in word:
            counts[char] += count
    return [
        char
        for char, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        if count >= config.min_count
    ]


def _lowercased(counts: Counter[str]) -> Counter[str]:
    lowered: Counter[str] = Counter()
    for word, count in counts.items():
        lowered[word.lower()] += count
    return lowered


def _start(read: WordVectors, words: Sequence[str], config: WordsConfig) -> Tensor:
    """One file's part of the table's first values, ``(rows, dim)``; AllenNLP draws unknown words in the same manner."""
    vectors = read.vectors
    if config.unit_length:
        vectors = {word: vector / max(float(np.linalg.norm(vector)), 1e-12) for word, vector in vectors.items()}
    start = np.zeros((len(words) + N_SPECIAL, read.dim), dtype=np.float32)
    if config.unknown == "random" and vectors:
        found = np.stack([vectors[word] for word in sorted(vectors)])
        start[1:] = np.random.default_rng(0).normal(found.mean(), found.std(), start[1:].shape)
    for row, word in enumerate(words, start=N_SPECIAL):
        if word in vectors:
            start[row] = vectors[word]
    return torch.from_numpy(start)
