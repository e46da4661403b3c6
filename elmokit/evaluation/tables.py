"""Tables of results, as aligned text for a terminal and as Markdown for a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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


def escape_markdown(text: str) -> str:
    """Escape what Markdown would take for HTML or emphasis, such as ``<UNK>`` and the stars of file names."""
    return text.replace("<", "&lt;").replace("*", "\\*")
