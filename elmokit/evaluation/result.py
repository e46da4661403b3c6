"""Results: what an evaluation measured, a frozen dataclass that also has the rows of a table.

From the rows come the text and the figure. A result says what its JSON is, because programs read that.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from elmokit.evaluation.figures import draw_rows
from elmokit.evaluation.tables import Row, tabulate


class Result(ABC):
    """What an evaluation returns. Subclasses are frozen dataclasses."""

    digits: ClassVar[int]
    """Decimal places of the numbers in the table."""
    measure: ClassVar[str]
    """What the numbers of the table are: the label of the figure's axis."""

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
        """Return the table, or that of other rows, and the notes for people."""
        notes = self.notes()
        table = tabulate(self.table_rows() if rows is None else rows, self.digits)
        return "\n".join([table.to_text(), *([""] if notes else []), *notes])

    def draw(self, path: str | Path, overwrite: bool = False) -> tuple[Path, Path]:
        """Draw the rows as PNG and SVG. Errors as in ``save_figure``."""
        return draw_rows(self.table_rows(), self.measure, path, overwrite)


def number_or_none(number: float) -> float | None:
    """Replace NaN, which JSON does not have, by None."""
    return None if math.isnan(number) else number


def layer_title(name: str) -> str:
    """Name a row: ``layer 1`` for the number of a layer; other names are unchanged."""
    return f"layer {name}" if name.isdigit() else name
