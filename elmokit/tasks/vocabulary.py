"""The words and characters of a run, and the initial values of its word tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from elmokit.errors import ConfigError
from elmokit.tasks.config import CharsConfig, WordsConfig, expand_paths
from elmokit.tasks.inputs import BYTES, N_SPECIAL, Inputs, Spelling, WordTable
from elmokit.tasks.task import AnyTask
from elmokit.tasks.word_vectors import WordVectors, read_word_vectors


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

    inputs: Inputs
    """Without a biLM."""
    initial_vectors: dict[str, Tensor]
    """For the tables with pretrained vectors."""
    coverage: dict[str, Coverage]
    """For the same tables."""

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``vocabulary.json``, which :func:`inputs_from` reads; the labels are added to it."""
        return vocabulary_content(self.inputs)


def vocabulary_content(inputs: Inputs) -> dict[str, Any]:
    """Return the words and characters of a run as plain values."""
    return {
        "tables": {name: asdict(table) for name, table in inputs.tables.items()},
        "chars": inputs.chars,
        "max_chars": inputs.max_chars,
        "spelling": inputs.spelling,
    }


@dataclass(frozen=True)
class _Content:
    tables: dict[str, WordTable]
    chars: list[str] | None
    max_chars: int | None
    spelling: Spelling
    labels: dict[str, Any] = field(default_factory=dict)


def inputs_from(content: Mapping[str, Any]) -> tuple[Inputs, dict[str, Any]]:
    """Build a run's inputs, without a biLM, and its labels from the content of its ``vocabulary.json``."""
    read = msgspec.convert(content, _Content)
    return Inputs(read.tables, read.chars, read.max_chars, spelling=read.spelling), read.labels


def make_vocabulary(task: AnyTask, config: Any, train: Sequence[Any], others: Sequence[Any]) -> TaskVocabulary:
    """Collect the words and characters of a run.

    Args:
        task: The task.
        config: Its config.
        train: The training examples.
        others: Examples whose words are only taken if they have a pretrained vector: dev and test.
    """
    training = Counter(word for example in train for sentence in task.sentences(example) for word in sentence)
    other = Counter(word for example in others for sentence in task.sentences(example) for word in sentence)
    made = {name: make_table(name, words, training, other) for name, words in task.word_configs(config).items()}
    tables = {name: initial.table for name, initial in made.items()}
    inputs = Inputs(tables, None, None)
    if config.chars is not None:
        chars = make_chars(config.chars, training)
        inputs = Inputs(tables, chars, config.chars.max_chars, spelling=config.chars.spelling)
    return TaskVocabulary(
        inputs,
        {name: initial.vectors for name, initial in made.items() if initial.vectors is not None},
        {name: initial.coverage for name, initial in made.items() if initial.coverage is not None},
    )


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
    known = {word for vectors in read for word in vectors.vectors}
    more = sorted(known - set(seen))
    words = seen + more
    if not known:
        raise ConfigError(f"None of the training words is in {', '.join(files)}.")
    initial = torch.cat([_initial_vectors(vectors, words, config) for vectors in read], dim=1)
    missing = [word for word in training if word not in known]
    coverage = Coverage(
        len(words), len(missing) / len(training), sum(training[word] for word in missing) / training.total()
    )
    return InitialTable(WordTable(words, dim, config.lowercase), initial, coverage)


def make_chars(config: CharsConfig, training: Counter[str]) -> list[str]:
    """List the characters of the training text, the most frequent first; or all bytes."""
    if config.spelling != "characters":
        return BYTES
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


def _initial_vectors(read: WordVectors, words: Sequence[str], config: WordsConfig) -> Tensor:
    """Return one file's columns of the table's initial values, ``(rows, dim)``."""
    vectors = read.vectors
    if config.unit_length:
        vectors = {word: vector / max(float(np.linalg.norm(vector)), 1e-12) for word, vector in vectors.items()}
    initial = np.zeros((len(words) + N_SPECIAL, read.dim), dtype=np.float32)
    if config.unknown == "random" and vectors:  # AllenNLP draws the vectors of unknown words in the same way
        known = np.stack([vectors[word] for word in sorted(vectors)])
        initial[1:] = np.random.default_rng(0).normal(known.mean(), known.std(), initial[1:].shape)
    for row, word in enumerate(words, start=N_SPECIAL):
        if word in vectors:
            initial[row] = vectors[word]
    return torch.from_numpy(initial)
