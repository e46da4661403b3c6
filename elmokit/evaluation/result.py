"""Results of evaluations: frozen dataclasses that can be shown as tables."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

Row = Mapping[str, Any]
"""A row of results: a text, count or number by column title; None or NaN for an empty cell."""


class Result(ABC):
    """The result of an evaluation. Subclasses are frozen dataclasses."""

    digits: ClassVar[int]
    """Decimal places of the numbers in the table."""
    measure: ClassVar[str]
    """The quantity in the table."""

    @abstractmethod
    def table_rows(self) -> list[Row]:
        """Return the rows of the table."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""

    def notes(self) -> list[str]:
        """Return sentences about the data."""
        return []

    def to_text(self, rows: Sequence[Row] | None = None) -> str:
        """Return the table (of ``rows``, if given) and the notes as readable text."""
        table = tabulate(self.table_rows() if rows is None else rows, self.digits)
        lines = [table.to_text()]
        notes = self.notes()
        if notes:
            lines += ["", *notes]
        return "\n".join(lines)


def number_or_none(number: float) -> float | None:
    """Replace NaN, which JSON does not have, with None."""
    return None if math.isnan(number) else number


def layer_title(name: str) -> str:
    """Name a row: ``layer 1`` for the number of a layer; other names are unchanged."""
    return f"layer {name}" if name.isdigit() else name


@dataclass(frozen=True)
class Table:
    """A table whose first columns hold text and whose other columns hold numbers, already formatted."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_text_columns: int = 1

    def to_text(self) -> str:
        """Return aligned columns: text to the left, numbers to the right."""
        lines = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(self._aligned(cells, widths) for cells in lines)

    def _aligned(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        """Return a line of the text."""
        padded = []
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            padded.append(cell.ljust(width) if column < self.n_text_columns else cell.rjust(width))
        return "  ".join(padded).rstrip()


def tabulate(rows: Sequence[Row], digits: int) -> Table:
    """Return a table of rows, with numbers rounded to ``digits`` decimal places."""
    head = list(dict.fromkeys(title for row in rows for title in row))
    lines = []
    for row in rows:
        lines.append([_format(row.get(title), digits) for title in head])
    return Table(head, lines, len(name_columns(rows)))


def name_columns(rows: Sequence[Row]) -> list[str]:
    """Return the titles of the leading text columns, which name the rows."""
    return list(itertools.takewhile(lambda title: isinstance(rows[0][title], str), rows[0]))


def _format(cell: Any, digits: int) -> str:
    if isinstance(cell, float):
        return "" if math.isnan(cell) else f"{cell:.{digits}f}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return "" if cell is None else str(cell)
