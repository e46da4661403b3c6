"""Tokens to the rows of a model's own word and character tables.

Most ELMos read UTF-8 bytes, which need no list (``characters``). A model that learned a table of words, or
of Unicode characters, comes with a lexicon that says which row is which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import FormatError, TextError
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE

MIN_CHARS = 3  # a boundary's row: a begin mark, the boundary's own character, an end mark


@dataclass(frozen=True)
class Marks:
    """The entries that stand for something other than themselves.

    ``unknown`` and the two sentence marks are entries of both tables; the others are characters.
    """

    unknown: str
    begin_sentence: str
    end_sentence: str
    begin_token: str
    end_token: str
    padding: str


@dataclass(frozen=True)
class Lexicon:
    """The entries of a word table, a character table or both; an entry's row is its place, counted from 0.

    None stands at a row that no token reaches. A character is one Unicode code point.

    Args:
        max_chars: characters in a token's row, its begin and end marks included. A longer token is cut, and
            its cut form is also what is looked up among the words.

    Raises:
        FormatError: an entry stands twice, a mark is missing, or there is neither table.
    """

    marks: Marks
    max_chars: int
    words: tuple[str | None, ...] | None = None
    chars: tuple[str | None, ...] | None = None

    def __post_init__(self) -> None:
        if self.words is None and self.chars is None:
            raise FormatError("A lexicon needs words, characters or both; given neither.")
        if self.max_chars < MIN_CHARS:
            raise FormatError(f"max_chars is {self.max_chars}; a sentence boundary alone needs {MIN_CHARS}.")
        marks = self.marks
        of_both = (marks.unknown, marks.begin_sentence, marks.end_sentence)
        for kind, entries, needed in (
            ("words", self.words, of_both),
            ("characters", self.chars, (*of_both, marks.begin_token, marks.end_token, marks.padding)),
        ):
            if entries is None:
                continue
            rows = _rows(entries)
            if len(rows) < sum(entry is not None for entry in entries):
                raise FormatError(f"A lexicon holds each entry once; among its {kind} one stands twice.")
            if missing := [mark for mark in needed if mark not in rows]:
                raise FormatError(f"The lexicon's {kind} lack the marks {', '.join(missing)}.")

    def encode(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """The ids of tokens, one up from their rows, so that 0 is free for "no token here".

        ``<S>`` and ``</S>`` get the sentence marks, and so do tokens that look like those marks.

        Returns:
            ``(tokens, 1 + max_chars)``: a word id, then the characters between their marks, padded;
            ``(tokens, 1)`` without characters, ``(tokens, max_chars)`` without words.

        Raises:
            TextError: a token is not a string.
        """
        sentence_marks = {BEGIN_SENTENCE: self.marks.begin_sentence, END_SENTENCE: self.marks.end_sentence}
        entries: list[str] = []
        for token in tokens:
            if not isinstance(token, str):
                raise TextError(f"A token is a string; given {token!r} of type {type(token).__name__}.")
            entries.append(sentence_marks.get(token) or token[: self.max_chars - 2])
        columns: list[NDArray[np.int64]] = []
        if self.words is not None:
            rows = self._word_rows
            unknown = rows[self.marks.unknown]
            columns.append(np.array([rows.get(entry, unknown) for entry in entries], dtype=np.int64).reshape(-1, 1))
        if self.chars is not None:
            columns.append(self._char_rows_of(entries))
        return np.concatenate(columns, axis=1) + 1

    def _char_rows_of(self, entries: list[str]) -> NDArray[np.int64]:
        """``(entries, max_chars)`` rows of the character table."""
        rows, marks = self._char_rows, self.marks
        unknown, begin, end = (rows[mark] for mark in (marks.unknown, marks.begin_token, marks.end_token))
        found = np.full((len(entries), self.max_chars), rows[marks.padding], dtype=np.int64)
        for row, entry in zip(found, entries, strict=True):
            whole = entry in (marks.begin_sentence, marks.end_sentence)
            inner = [rows[entry]] if whole else [rows.get(char, unknown) for char in entry]
            row[: len(inner) + 2] = [begin, *inner, end]
        return found

    @cached_property
    def _word_rows(self) -> dict[str, int]:
        return _rows(self.words or ())

    @cached_property
    def _char_rows(self) -> dict[str, int]:
        return _rows(self.chars or ())


def _rows(entries: Sequence[str | None]) -> dict[str, int]:
    return {entry: row for row, entry in enumerate(entries) if entry is not None}
