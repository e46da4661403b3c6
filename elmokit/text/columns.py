"""Read columns: tables with a header, and files with one token per line and its annotations.

The latter is the format of the CoNLL shared tasks and most tagged corpora: a blank line ends a sentence. The caller
interprets the columns.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elmokit.errors import ConfigError, TextError
from elmokit.storage.progress import count_of
from elmokit.storage.text_files import read_lines, unpacked_name
from elmokit.text.first_lines import look_ahead
from elmokit.text.tokenize import split_tokens

TABLE_SUFFIXES = (".tsv", ".csv")
DOCUMENT_START = "-DOCSTART-"  # the first column of a line that starts a document in CoNLL-2003


def find_column(path: str | Path, names: Sequence[str], wanted: str) -> int:
    """Return the index of a column by name; case is ignored unless a name matches exactly."""
    if wanted in names:
        return names.index(wanted)
    lower = [name.lower() for name in names]
    if wanted.lower() in lower:
        return lower.index(wanted.lower())
    raise ConfigError(f"{path} has no column {wanted!r}; its columns are {', '.join(names)}.")


@dataclass(frozen=True)
class InputTable:
    """A table with a header."""

    path: str
    columns: list[str]
    rows: list[tuple[int, list[str]]]
    """For each row, the number of its first line, from 1, and one cell per column. There is at least one row."""

    def column(self, name: str) -> int:
        """Return the index of a column, or raise a ConfigError that lists all columns."""
        return find_column(self.path, self.columns, name)


def is_table(path: str | Path) -> bool:
    """Check by name whether a file is a table."""
    return unpacked_name(path).endswith(TABLE_SUFFIXES)


def read_table(path: str | Path) -> InputTable:
    """Read a table (TSV or CSV) with a header. Blank rows are skipped.

    Cells are separated by tabs, commas or semicolons: the first of these that the header contains, or preferably commas
    in a file named ``.csv``. In a table with tabs, quotes that do not enclose whole cells are part of the text.

    Raises:
        TextError: The file cannot be read or has no rows, a row and the header differ in their number of cells, or two
            columns have the same name.
    """
    lines = [f"{line}\n" for line in read_lines(path)]  # a quoted cell may contain line ends
    head = "".join(lines[:1])
    separators = ",;\t" if unpacked_name(path).endswith(".csv") else "\t,;"
    delimiter = next(filter(head.__contains__, separators), separators[0])
    try:
        return _parse_table(path, lines, delimiter, csv.QUOTE_MINIMAL)
    except TextError:
        if delimiter != "\t":
            raise
        return _parse_table(path, lines, delimiter, csv.QUOTE_NONE)


def _parse_table(path: str | Path, lines: list[str], delimiter: str, quoting: Literal[0, 3]) -> InputTable:
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    rows: list[tuple[int, list[str]]] = []
    end = 0
    try:
        for cells in reader:
            if any(map(str.strip, cells)):
                rows.append((end + 1, cells))
            end = reader.line_num
    except csv.Error as error:
        raise TextError(f"{path}, line {reader.line_num}: {error}.") from None
    if len(rows) < 2:
        raise TextError(f"{path} has no rows; expected a header and at least one row.")
    (_, columns), *rows = rows
    for name in columns:
        if columns.count(name) > 1:
            raise TextError(f"{path} has two columns with the name {name!r}.")
    for number, cells in rows:
        if len(cells) != len(columns):
            raise TextError(f"{path}, line {number}: {count_of(len(cells), 'column')}, expected {len(columns)}.")
    return InputTable(str(path), columns, rows)


@dataclass(frozen=True)
class ColumnSentence:
    """The lines of one sentence, split into columns."""

    path: str
    first_line: int
    """Line number of the first token, from 1."""
    rows: list[list[str]]
    """The columns of each token; all rows have the same length."""

    def where(self, token: int = 0) -> str:
        """Return the file and line of a token, for error messages."""
        return f"{self.path}, line {self.first_line + token}"

    def check_width(self, least: int) -> int:
        """Return the number of columns, or raise a TextError if it is less than ``least``."""
        n_columns = len(self.rows[0])
        if n_columns < least:
            raise TextError(f"{self.where()}: {count_of(n_columns, 'column')}, expected at least {least}.")
        return n_columns


_NO_COMMENT = re.compile("(?!)")


def split_columns(line: str) -> list[str]:
    """Split a line at tabs if it has any, so tokens can contain spaces; otherwise at spaces."""
    return [column.strip(" ") for column in line.split("\t")] if "\t" in line else split_tokens(line)


def read_column_sentences(
    path: str | Path,
    lines: Iterable[tuple[int, str]],
    split: Callable[[str], list[str]] = split_columns,
    boundaries: tuple[str, ...] = (DOCUMENT_START,),
    comment: re.Pattern[str] = _NO_COMMENT,
    same_in_file: bool = True,
) -> Iterator[ColumnSentence]:
    """Group numbered lines of a file into sentences.

    Args:
        path: The file name for error messages.
        lines: Line numbers and lines, such as ``enumerate(read_lines(path), start=1)``.
        split: Splits a line into columns, none of which may be empty.
        boundaries: A line that starts with one of these ends a sentence, like a blank line, and is not a token.
        comment: Matches comments, which are skipped. They are only recognized before the first token of a sentence,
            because tokens can look like comments.
        same_in_file: Require the same number of columns in the whole file instead of within each sentence.
    """
    rows: list[list[str]] = []
    first_line, n_columns = 0, None
    added_line = (0, "")  # ends the last sentence
    for number, line in itertools.chain(_without_raw_text(path, lines, split), [added_line]):
        if not line.strip() or line.startswith(boundaries):
            if rows:
                yield ColumnSentence(str(path), first_line, rows)
            rows = []
            if not same_in_file:
                n_columns = None
            continue
        if not rows and comment.match(line):
            continue
        columns = split(line)
        if n_columns not in (None, len(columns)):
            raise TextError(f"{path}, line {number}: {count_of(len(columns), 'column')}, expected {n_columns}.")
        if not all(columns):
            raise TextError(f"{path}, line {number}: column {columns.index('') + 1} is empty.")
        if not rows:
            first_line = number
        n_columns = len(columns)
        rows.append(columns)


_SENTENCE_END = re.compile(r"[^\W\d_]{2,}[.!?][\"')\u2019\u201d]*")


def _without_raw_text(
    path: str | Path, lines: Iterable[tuple[int, str]], split: Callable[[str], list[str]]
) -> Iterator[tuple[int, str]]:
    """Yield the lines, or raise a TextError if most of the first ones end in a word with a mark, like raw text."""
    head, lines = look_ahead(lines)
    rows = [split(line) for _, line in head if line.strip()]
    last_words = [row[-1] for row in rows if len(row) > 2]
    ends = list(filter(_SENTENCE_END.fullmatch, last_words))
    if 2 * len(ends) > len(rows):
        raise TextError(
            f"{path} looks like raw text: {ends[0]!r} ends a line. Expected columns: one token per line, with its tags."
        )
    return lines
