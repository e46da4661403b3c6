"""Convert tokens to rows of a model's word and character tables.

Most ELMo models read UTF-8 bytes, which need no list (see ``characters``). A model trained with a table of words or
Unicode characters has a lexicon with the meaning of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import FormatError
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE
from elmokit.text.marks import ExactReader, MarkReader, are_composed

MIN_CHARS = 3  # a sentence boundary is a begin mark, a special character and an end mark


@dataclass(frozen=True)
class Marks:
    """Entries with a special meaning."""

    # In both tables:
    unknown: str
    begin_sentence: str
    end_sentence: str
    # Only among the characters:
    begin_token: str
    end_token: str
    padding: str


@dataclass(frozen=True)
class Lexicon:
    """The entries of a model's word table, character table, or both. An entry's row is its index.

    Rows that no token can have are None. A character is a Unicode code point.
    """

    marks: Marks
    max_chars: int
    """Characters per token, including begin and end marks. Longer tokens are truncated before any lookup, also that of
    words."""
    words: tuple[str | None, ...] | None = None
    chars: tuple[str | None, ...] | None = None

    def __post_init__(self) -> None:
        if (self.words is None and self.chars is None) or self.max_chars < MIN_CHARS:
            raise FormatError(f"A lexicon needs words, characters or both, and at least {MIN_CHARS} max_chars.")
        marks = self.marks
        of_both = [marks.unknown, marks.begin_sentence, marks.end_sentence]
        if self.words is not None:
            _check_marks("words", self.words, of_both)
        if self.chars is not None:
            _check_marks("characters", self.chars, [*of_both, marks.begin_token, marks.end_token, marks.padding])

    def encode(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """Return the ids of tokens: their rows plus 1, so 0 can mean "no token here".

        The shape is ``(tokens, 1 + max_chars)``: a word id, then the characters between begin and end marks, padded. It
        is ``(tokens, 1)`` without a character table, and ``(tokens, max_chars)`` without a word table.
        """
        sentence_marks = {BEGIN_SENTENCE: self.marks.begin_sentence, END_SENTENCE: self.marks.end_sentence}
        entries = [sentence_marks.get(token, token[: self.max_chars - 2]) for token in tokens]
        columns: list[NDArray[np.int64]] = []
        if self.words is not None:
            rows = self._word_rows
            unknown = rows[self.marks.unknown]
            word_rows = [rows.get(entry, unknown) for entry in entries]
            columns.append(np.array(word_rows, dtype=np.int64).reshape(-1, 1))
        if self.chars is not None:
            columns.append(self._char_rows_of(entries))
        return np.concatenate(columns, axis=1) + 1

    @cached_property
    def read(self) -> MarkReader:
        """How a model with this lexicon reads a token."""
        return MarkReader(
            self._known,
            self._char_rows or set().union(*self._word_rows),
            composes=are_composed(self._word_rows),
            all_chars=self._char_rows or None,
            ranks=self._word_rows,
        )

    @cached_property
    def read_exactly(self) -> MarkReader:
        """How the model reads a token with ``exact_marks``."""
        return ExactReader(self._known)

    @cached_property
    def _known(self) -> frozenset[str]:
        """The words, and the marks that an ordinary token can be spelled like, except padding."""
        marks = self.marks
        words = {*self._word_rows, marks.unknown, marks.begin_sentence, marks.end_sentence}
        return frozenset(words - {marks.padding})

    def _char_rows_of(self, entries: list[str]) -> NDArray[np.int64]:
        rows, marks = self._char_rows, self.marks
        unknown, begin, end = rows[marks.unknown], rows[marks.begin_token], rows[marks.end_token]
        char_rows = np.full((len(entries), self.max_chars), rows[marks.padding], dtype=np.int64)
        for row, entry in zip(char_rows, entries, strict=True):
            if entry in (marks.begin_sentence, marks.end_sentence):
                # <S>, </S> and tokens spelled like their marks are one character.
                inner = [rows[entry]]
            else:
                inner = [rows.get(char, unknown) for char in entry]
            row[: len(inner) + 2] = [begin, *inner, end]
        return char_rows

    @cached_property
    def _word_rows(self) -> dict[str, int]:
        return _rows(self.words or ())

    @cached_property
    def _char_rows(self) -> dict[str, int]:
        return _rows(self.chars or ())


def _check_marks(what: str, entries: Sequence[str | None], needed: Sequence[str]) -> None:
    missing = [mark for mark in needed if mark not in entries]
    if missing:
        raise FormatError(f"The lexicon's {what} lack the marks {', '.join(missing)}.")


def _rows(entries: Sequence[str | None]) -> dict[str, int]:
    return {entry: row for row, entry in enumerate(entries) if entry is not None}
