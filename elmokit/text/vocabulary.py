"""Vocabularies: the words that a softmax predicts or a word-input model reads."""

from __future__ import annotations

import codecs
import gzip
import heapq
import re
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from elmokit.config import check_at_least
from elmokit.errors import FormatError, TensorMismatchError, TextError, reading
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE, UNKNOWN, encode_tokens
from elmokit.text.foreign import UNKNOWN_MARKS, warn_of_foreign
from elmokit.text.marks import FORM_CHARS, TYPOGRAPHIC, ExactReader, MarkReader, are_composed

SPECIALS = (BEGIN_SENTENCE, END_SENTENCE, UNKNOWN)
IGNORED_LINE = "!!!MAXTERMID"
"""The last line of some published files. Not a word, because bilm-tf skips it."""


class CountedWords(Protocol):
    """Word counts: a mapping, or an object for a corpus whose counts do not fit into one."""

    def items(self) -> Iterable[tuple[str, int]]:
        """Return each word once, with its count."""


class Vocabulary:
    """A list of words. The id of a word is its index in the list.

    Args:
        words: The words, with ``<S>``, ``</S>`` and ``<UNK>`` among them.
        strict: If False, accept word lists of published models unchanged: words can be repeated (the last one counts)
            or empty, and ``<UNK>`` can be missing.

    Raises:
        FormatError: A special word is missing, a word is repeated, or one is empty.

    Example:
        >>> vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "the"])
        >>> vocabulary.word_ids(["the", "zebra"])
        array([3, 2])
    """

    def __init__(self, words: Sequence[str], strict: bool = True) -> None:
        self.words = list(words)
        self.ids = dict(zip(self.words, range(len(self.words)), strict=True))
        required = SPECIALS if strict else (BEGIN_SENTENCE, END_SENTENCE)
        missing = [word for word in required if word not in self.ids]
        if missing:
            raise FormatError(f"A vocabulary needs the words {', '.join(required)}; missing: {', '.join(missing)}.")
        if strict and ("" in self.ids or len(self.ids) < len(self.words)):
            self._refuse_first_wrong()
        self.begin_id, self.end_id = self.ids[BEGIN_SENTENCE], self.ids[END_SENTENCE]
        self.unknown_id = self.ids.get(UNKNOWN, -1)
        """The id of ``<UNK>``; -1 if the list has none."""

    def _refuse_first_wrong(self) -> None:
        """Raise an error about the first empty or repeated word."""
        for number, word in enumerate(self.words):
            if not word or self.ids[word] != number:
                raise FormatError(f"Word {number + 1} of the vocabulary is empty or occurs more than once: {word!r}.")

    def __len__(self) -> int:
        return len(self.words)

    def word_ids(self, tokens: Iterable[str]) -> NDArray[np.int64]:
        """Return the ids of tokens, ``(tokens,)``. Tokens outside the vocabulary get the id of ``<UNK>``.

        Raises:
            TextError: A token is not in the vocabulary, and neither is ``<UNK>``.
        """
        tokens = list(tokens)
        ids = np.array([self.ids.get(token, self.unknown_id) for token in tokens], dtype=np.int64)
        if self.unknown_id < 0 and (ids < 0).any():
            token = tokens[int(np.argmin(ids))]
            raise TextError(f"The word {token!r} is not in the model's vocabulary, which has no {UNKNOWN}.")
        return ids

    def known_ids(self, tokens: Iterable[str]) -> NDArray[np.int64]:
        """Return the ids of tokens, ``(tokens,)``; -1 for ``<UNK>`` and tokens outside the vocabulary."""
        ids = np.array([self.ids.get(token, -1) for token in tokens], np.int64)
        ids[ids == self.unknown_id] = -1
        return ids

    def encode_with_chars(self, tokens: Sequence[str], max_chars: int) -> NDArray[np.int64]:
        """Return the input ids of a model with a word table, ``(tokens, 1 + chars)``: a word id, then character ids.

        Words outside the vocabulary get the word id 0, so only their spelling counts.
        """
        known = self.known_ids(tokens) + 1
        return np.concatenate([known[:, None], encode_tokens(tokens, max_chars)], axis=1)

    @cached_property
    def read(self) -> MarkReader:
        """How a model with this vocabulary reads a token."""
        chars: set[str] = set().union(*self.words)
        # A vocabulary only has the frequent words of a corpus. If any of them has typographic marks (or full-width
        # letters, or other forms of characters), the corpus also had rare words with them.
        for kind in (TYPOGRAPHIC, FORM_CHARS):
            if not chars.isdisjoint(kind):
                chars |= kind
        return MarkReader(self.ids, chars, composes=are_composed(self.words), ranks=self.ids)

    @cached_property
    def read_exactly(self) -> MarkReader:
        """How a model with this vocabulary and ``exact_marks`` reads a token."""
        return ExactReader(self.ids)

    @cached_property
    def zipf_probabilities(self) -> dict[str, float]:
        """The probability of each word except the special ones, estimated from its rank by Zipf's law."""
        words = [word for word in self.words if word not in SPECIALS]
        ranks = range(1, len(words) + 1)
        harmonic = sum(1 / rank for rank in ranks)
        return {word: 1 / (rank * harmonic) for rank, word in zip(ranks, words, strict=True)}

    @classmethod
    def from_counts(cls, counts: CountedWords, max_words: int | None = None, min_count: int = 1) -> Vocabulary:
        """Build a vocabulary from the special words and the most frequent others. Arguments as in ``rank_words``."""
        return cls([*SPECIALS, *(word for word, _ in rank_words(counts, max_words, min_count))])

    @classmethod
    def from_file(cls, path: str | Path) -> Vocabulary:
        """Read a vocabulary file.

        Raises:
            ModelNotFoundError, FormatError: As in ``read_words``, or the file is not a valid vocabulary.
        """
        return _vocabulary_of_file(path, read_words(path))

    def to_text(self) -> str:
        """Return the content of a vocabulary file: one word per line.

        Raises:
            TextError: A word would not be read back unchanged, such as one with a leading space.
        """
        text = "".join(f"{word}\n" for word in self.words)
        difference = first_difference(_parse_words(text.removeprefix("\ufeff")), self.words)
        if difference is not None:
            raise TextError(f"A vocabulary file cannot hold these words. Read back, {difference}.")
        return text


def warn_of_counted(vocabulary: Vocabulary) -> None:
    """Warn about marks of other programs in the text that a vocabulary was built from."""
    for key in sorted(vocabulary.read.foreign):
        warn_of_foreign(key, "are counted as words")


N_NAMED = 10
"""Number of unknown words to name."""


class UnknownWords:
    """Counts the words of a text that are missing from a vocabulary, and keeps the first ones.

    The count alone does not show whether it is a rare name or the critical word of an experiment.
    """

    def __init__(self) -> None:
        self.n_words = self.n_unknown = 0
        self.first: list[str] = []
        """The first ten unknown words, each once."""

    def add(self, words: Sequence[str], is_unknown: Sequence[bool] | NDArray[np.bool_]) -> None:
        """Add words, with a flag for each unknown one."""
        self.n_words += len(words)
        for position in np.flatnonzero(is_unknown).tolist():
            word = words[position]
            self.n_unknown += 1
            if len(self.first) < N_NAMED and word not in self.first:
                self.first.append(word)

    @property
    def ratio(self) -> float:
        """The fraction of the words that are unknown."""
        return self.n_unknown / max(1, self.n_words)


def name_words(words: Sequence[str]) -> str:
    """List the first unknown words, such as "'scalpel', 'Zoë'"; with ten, there may be more."""
    listed = ", ".join(map(repr, words[:N_NAMED]))
    return f"such as {listed}" if len(words) >= N_NAMED else listed


def most_frequent(counts: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Return the most frequent of the given words, at most ten."""
    most = heapq.nsmallest(N_NAMED, counts, key=lambda counted: (-counted[1], counted[0]))
    return tuple(word for word, _ in most)


def rank_words(counts: CountedWords, max_words: int | None = None, min_count: int = 1) -> list[tuple[str, int]]:
    """Return a vocabulary's words, except the special ones (which ``max_words`` includes), with their counts.

    Words are sorted by descending frequency, then alphabetically: the sampled softmax and bilm-tf rely on that order.
    """
    check_limits(max_words, min_count)
    listed = _negative_counts(counts, min_count)
    ranked = sorted(listed) if max_words is None else heapq.nsmallest(max_words - len(SPECIALS), listed)
    return [(word, -count) for count, word in ranked]


def _negative_counts(counts: CountedWords, min_count: int) -> Iterator[tuple[int, str]]:
    """Yield the words that a vocabulary can hold, after their negative counts, which sort frequent words first."""
    left_out = {*SPECIALS, IGNORED_LINE, *UNKNOWN_MARKS, ""}
    for word, count in counts.items():
        # A vocabulary file cannot represent words such as a single ideographic space.
        is_writable = word == word.strip()
        if count >= min_count and is_writable and word not in left_out:
            yield -count, word


def check_limits(max_words: int | None, min_count: int) -> None:
    """Check the limits of ``rank_words`` before counting."""
    check_at_least("max_words", max_words, len(SPECIALS) + 1, optional=True)
    check_at_least("min_count", min_count, 1)


def read_words(path: str | Path) -> list[str]:
    """Read a model's word list, one word per line, like bilm-tf: UTF-8, plain or ``.gz``.

    Warns if the file has several columns, because no token would equal such a line.
    """
    words = read_rows(path)
    columns = find_columns(words)
    if columns is not None:
        # The same location for all readers, so a file that is read twice is reported once.
        warnings.warn(
            f"{path}: {columns.problem} Keep only the column of words; otherwise, all words are unknown.", stacklevel=1
        )
    return words


def read_new_vocabulary(path: str | Path) -> Vocabulary:
    """Read the vocabulary for a new model.

    Raises:
        ModelNotFoundError, FormatError: As in ``Vocabulary.from_file``; or a line has white space inside, such as in a
            file with counts in a second column.
    """
    words = read_rows(path)
    columns = find_columns(words)
    if columns is not None:
        raise FormatError(f"{path}: {columns.problem} {_repair_advice(path)}")
    for number, word in enumerate(words, start=1):
        if has_space(word):
            raise FormatError(
                f"{path}, line {number}: {word!r} has a space, so no token equals it. {_repair_advice(path)}"
            )
    return _vocabulary_of_file(path, words)


def read_rows(path: str | Path) -> list[str]:
    """Read the lines of a word list without surrounding white space, and without checking them."""
    path = Path(path)
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    with reading(path, "word list", EOFError, zlib.error), opener(path, "rb") as file:
        text = file.read().removeprefix(codecs.BOM_UTF8).decode("utf-8")
    if "\0" in text:
        from elmokit.storage.text_files import check_no_nul  # imported here because it is rarely needed

        check_no_nul(text, path)
    return _parse_words(text)


_NUMBER = re.compile(r"[-+]?[\d.,]+(?:[eE][-+]?\d+)?")


def has_space(word: str) -> bool:
    """Check whether a word has a space or tab inside, unlike any token."""
    return " " in word or "\t" in word


@dataclass(frozen=True)
class WordColumns:
    """The columns of a file with words and counts, scores or vectors."""

    rows: list[list[str]]
    """The cells of each line."""
    word_column: int
    """The column of words: the first one without numbers."""
    problem: str
    """A sentence about the columns."""

    def word(self, row: list[str]) -> str:
        """Return the word of a line. If the line has only one cell, that is the word."""
        return row[self.word_column] if len(row) > max(1, self.word_column) else " ".join(row)


def find_columns(words: Sequence[str]) -> WordColumns | None:
    """Split a word list into columns if most of its lines have several; None if it has one column.

    White space in a few words does not make columns. Special words often have no count.
    """
    n_special = len(set(SPECIALS).intersection(words))
    for separator in "\t ":
        several = [word for word in words if separator in word]
        if 2 * len(several) > len(words) - n_special:
            rows = [list(filter(None, map(str.strip, word.split(separator)))) for word in words]
            first = words.index(several[0])
            problem = f"the lines have several columns: line {first + 1} is {several[0][:40]!r}."
            return WordColumns(rows, _word_column(rows), problem)
    return None


def _word_column(rows: Sequence[Sequence[str]]) -> int:
    """Return the first column without numbers: counts can come before the words, too."""
    several = [row for row in rows if len(row) > 1]
    for number, cells in enumerate(zip(*several, strict=False)):  # lines can have more columns than others
        numbers = list(filter(_NUMBER.fullmatch, cells))
        if 2 * len(numbers) <= len(several):
            return number
    return 0


def first_difference(words: Sequence[str], stored: Sequence[str]) -> str | None:
    """Describe the first difference from the right word list, such as the one stored with a model, or return None."""
    for number, (word, own) in enumerate(zip_longest(words, stored), start=1):
        if word != own:
            return f"line {number} is {_word_or_missing(word)} but should be {_word_or_missing(own)}"
    return None


def _word_or_missing(word: str | None) -> str:
    return "missing" if word is None else repr(word)


def _parse_words(text: str) -> list[str]:
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [word for word in map(str.strip, lines) if word != IGNORED_LINE]


def row_words(path: Path, n_rows: int, rows_of: str) -> list[str]:
    """Read the words of a table, one per row; ``rows_of`` names the table in the error message."""
    words = read_words(path)
    if len(words) != n_rows:
        raise TensorMismatchError(
            f"{path} lists {len(words):,} words, but {rows_of} has {n_rows:,} rows; expected one row per word."
        )
    return words


def row_vocabulary(path: Path, n_rows: int, rows_of: str, strict: bool = False) -> Vocabulary:
    """Read the words of a table as a vocabulary."""
    return _vocabulary_of_file(path, row_words(path, n_rows, rows_of), strict)


def _vocabulary_of_file(path: str | Path, words: list[str], strict: bool = True) -> Vocabulary:
    try:
        return Vocabulary(words, strict)
    except FormatError as error:
        raise FormatError(f"{path}: {error} {_repair_advice(path)}") from None


def _repair_advice(path: str | Path) -> str:
    return f"To repair it for a new model: elmokit vocab --repair {path} OUT"
