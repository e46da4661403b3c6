"""Write tables: tab-separated values, or CSV."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from elmokit.errors import OutputError
from elmokit.storage.atomic import atomic_write

_SPREADSHEETS = (".xlsx", ".xls", ".ods")


class TextOutput(Protocol):
    """A destination for a table."""

    def write(self, text: str, /) -> object:
        """Write a text."""


class TableWriter:
    """Writes the rows of a table; the first one sets the columns.

    Args:
        file: The destination.
        delimiter: The separator between cells.
        is_quoted: Quote cells with special characters; otherwise, all are written unchanged.
    """

    def __init__(self, file: TextOutput, delimiter: str = "\t", is_quoted: bool = False) -> None:
        quotes: dict[str, Any] = {} if is_quoted else {"quoting": csv.QUOTE_NONE, "quotechar": None}
        self._writer = csv.writer(file, delimiter=delimiter, lineterminator="\n", **quotes)
        self._has_header = False

    def write(self, row: Mapping[str, Any]) -> None:
        """Write a row, which maps column names to cells."""
        if not self._has_header:  # only once there is a row
            self._writer.writerow(row)
            self._has_header = True
        self._writer.writerow(map(_cell, row.values()))


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):  # in many programs, a carriage return inside a token would end the row
        return value.replace("\r", "\\r")
    if isinstance(value, float):
        return f"{value:.6f}"
    return value


@contextlib.contextmanager
def open_table(path: str | Path, overwrite: bool = False, is_quoted: bool = False) -> Iterator[TableWriter]:
    """Open a table for writing; the file appears when the block ends without an exception.

    Args:
        path: The file. Cells are separated by commas if ``is_quoted`` and the name ends in ``.csv``, else by tabs.
        overwrite: Replace an existing file.
        is_quoted: As in :class:`TableWriter`.

    Raises:
        OutputError: The file exists, cannot be written, or has the name of a spreadsheet.
    """
    path = Path(path)
    if path.suffix.lower() in _SPREADSHEETS:
        raise OutputError(f"{path} has the name of a spreadsheet, but tables are text: use .tsv or .csv.")
    delimiter = "\t"
    if is_quoted and path.suffix.lower() == ".csv":
        delimiter = ","
    with atomic_write(path, overwrite) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        yield TableWriter(file, delimiter, is_quoted)


def write_table(
    rows: Iterable[Mapping[str, Any]], path: str | Path, *, overwrite: bool = False, is_quoted: bool = True
) -> None:
    """Write a table in the format of the commands.

    Args:
        rows: The cells of each row by column name.
        path, overwrite, is_quoted: As in :func:`open_table`.

    Raises:
        OutputError: As in :func:`open_table`.

    Example:
        >>> rows = lm.word_surprisal(["The horse raced past the barn fell."])
        >>> write_table([row._asdict() for row in rows], "words.csv")
    """
    with open_table(path, overwrite, is_quoted) as table:
        for row in rows:
            table.write(row)
