"""Tagged sentences in columns, as CoNLL-2003 has them.

One token a line, columns with tabs or blanks between, a blank line after each sentence. A line whose first column is
``-DOCSTART-`` ends a sentence too, and is no token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from elmokit.errors import TextError
from elmokit.io.text_files import read_lines, split_tokens

DOCUMENT_START = "-DOCSTART-"


@dataclass(frozen=True)
class ColumnSentence:
    """A sentence's columns."""

    path: str
    first_line: int
    rows: list[list[str]]


def read_columns(path: str, n_least: int = 2) -> Iterator[ColumnSentence]:
    """The sentences of a file (``.gz``, ``.xz`` too).

    Raises:
        TextError: the file cannot be read, a line has too few columns or another number than the lines before.
    """
    rows: list[list[str]] = []
    first_line, n_columns = 1, 0
    for number, line in enumerate(read_lines(path), start=1):
        columns = [part.strip(" ") for part in line.split("\t")] if "\t" in line else split_tokens(line)
        is_break = not line.strip() or columns[0] == DOCUMENT_START
        if is_break:
            if rows:
                yield ColumnSentence(path, first_line, rows)
            rows = []
            continue
        if len(columns) < n_least or (n_columns and len(columns) != n_columns) or not all(columns):
            expected = f"{n_columns}, as on the lines before" if n_columns else f"at least {n_least}"
            filled = sum(map(bool, columns))
            raise TextError(
                f"{path}, line {number}: {filled} columns, expected {expected}. One token a line, its columns with "
                "tabs or blanks between, a blank line after each sentence."
            )
        if not rows:
            first_line = number
        n_columns = len(columns)
        rows.append(columns)
    if rows:
        yield ColumnSentence(path, first_line, rows)
