"""Tables of results, as aligned text for a terminal and as Markdown for a page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
"""A row of results: by the head of the column a text, a count or a number; None or NaN for an empty cell."""


@dataclass(frozen=True)
class Table:
    """A table whose first columns hold text and whose other columns hold numbers, already formatted."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_text_columns: int = 1

    def to_text(self) -> str:
        """Return aligned columns: text to the left, numbers to the right."""
        cells = [self.head, *self.rows]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.head))]
        lines = (
            "  ".join(
                cell.ljust(width) if column < self.n_text_columns else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in cells
        )
        return "\n".join(line.rstrip() for line in lines)

    def to_markdown(self) -> str:
        """Return a Markdown table."""
        separator = ["---"] * self.n_text_columns + ["---:"] * (len(self.head) - self.n_text_columns)
        rows = [self.head, separator, *self.rows]
        cells = ([escape_markdown(cell).replace("|", "\\|") for cell in row] for row in rows)
        return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def tabulate(rows: Sequence[Row], digits: int) -> Table:
    """Return the table of some rows, its numbers with so many decimal places."""
    head = list(dict.fromkeys(title for row in rows for title in row))
    cells = [[_format(row.get(title), digits) for title in head] for row in rows]
    return Table(head, cells, len(name_columns(rows)))


def name_columns(rows: Sequence[Row]) -> list[str]:
    """Return the heads of the first columns, which hold text and so name the rows."""
    return list(itertools.takewhile(lambda title: isinstance(rows[0][title], str), rows[0]))


def _format(cell: Any, digits: int) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:.{digits}f}" if isinstance(cell, float) else str(cell)


def escape_markdown(text: str) -> str:
    """Escape what Markdown would take for HTML or emphasis, such as ``<UNK>`` and the stars of file names."""
    return text.replace("<", "&lt;").replace("*", "\\*")
