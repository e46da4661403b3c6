"""Results: what an evaluation measured, a frozen dataclass that also has the rows of a table.

From the rows come the text and the figure, PNG and SVG in one style. A result says what its JSON is, because programs
read that.

For a figure of your own, draw on the one that :func:`styled_figure` yields, and save it with :func:`save_figure`::

    with styled_figure() as figure:
        axes = figure.subplots()
        axes.plot(steps, losses, **LINES[0])
        save_figure(figure, "loss")

This does not use ``pyplot``, so that no window opens and no global setting changes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from elmokit.errors import MissingExtraError
from elmokit.storage.atomic import atomic_write, check_extension, check_has_name, check_output_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
"""A row of results: by the head of the column a text, a count or a number; None or NaN for an empty cell."""
COLUMN, PAGE = 3.3, 6.9
"""Width in inches of one column and of the page, in a two-column paper."""
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The palette of Okabe and Ito, which color-blind readers can distinguish."""
LINES: tuple[dict[str, Any], ...] = tuple(
    {"color": color, "marker": marker, "linestyle": dashes, "markerfacecolor": face}
    for face in ("auto", "none")
    for color, marker, dashes in zip(COLORS, "os^DvPX", ("-", "--", "-", "--", "-", "--", "-"), strict=True)
)
"""Styles of the first, second, ... line of a plot, then again. Color, marker and dashes all differ, so that gray prints
work. The second seven lines have hollow markers."""
INK = "#262626"
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # included in matplotlib, so figures are the same on every machine
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.visible": False,
    "legend.frameon": False,
    "hatch.linewidth": 0.4,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 300,
    "svg.hashsalt": "elmokit",  # the same figure gives the same bytes
    "svg.fonttype": "path",
}


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


def can_draw() -> bool:
    """Check whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def check_can_draw() -> None:
    """Raise ``MissingExtraError`` if matplotlib is not installed."""
    if not can_draw():
        raise MissingExtraError("Drawing a figure", "plot")


@contextlib.contextmanager
def styled_figure(width: float = COLUMN, height: float = 2.4) -> Iterator[Figure]:
    """Yield an empty figure in our style, of a size in inches. Draw and save it inside the ``with`` block."""
    check_can_draw()
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # ignore the user's matplotlibrc
        settings: Any = matplotlib.rcParams
        settings.update(STYLE)
        yield Figure(figsize=(width, height))


def figure_paths(path: str | Path) -> tuple[Path, Path]:
    """Derive the PNG and the SVG path of a figure from either, or from the path without a suffix."""
    path = Path(path)
    stem = path.with_name(path.stem) if path.suffix.lower() in (".png", ".svg") else path
    return stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".svg")


def check_figure_path(path: str | Path, overwrite: bool) -> None:
    """Check before any work is done that a figure can be drawn and written."""
    check_can_draw()
    check_has_name(path)
    check_extension(path, (".png", ".svg"), "or no ending: both are written")
    for file in figure_paths(path):
        check_output_path(file, overwrite)


def save_figure(figure: Figure, path: str | Path, overwrite: bool = False) -> tuple[Path, Path]:
    """Write a figure as PNG (300 dots per inch) and SVG, inside its ``with`` block. ``path`` may lack a suffix.

    Raises:
        OutputError: One of the files exists and ``overwrite`` is False, or it cannot be written.
    """
    check_figure_path(path, overwrite)
    for file in figure_paths(path):
        with atomic_write(file, overwrite) as temporary:
            dateless = {"Date": None} if file.suffix == ".svg" else {}
            figure.savefig(temporary, format=file.suffix[1:], metadata=dateless)
    return figure_paths(path)


def draw_rows(rows: Sequence[Row], label: str, path: str | Path, overwrite: bool = False) -> tuple[Path, Path]:
    """Draw the rows of a table, the first one at the top, with a point for each number that is not a count.

    Arguments and errors as in :func:`save_figure`; ``label`` says what the numbers are.
    """
    names = [" ".join(str(row[title]) for title in name_columns(rows)) for row in rows]
    columns = dict.fromkeys(title for row in rows for title, cell in row.items() if isinstance(cell, float))
    with styled_figure(PAGE, 0.9 + 0.24 * len(rows)) as figure:
        axes = figure.subplots()
        axes.grid(visible=False, axis="y")
        for title, style in zip(columns, itertools.cycle(LINES)):
            numbers = [math.nan if row.get(title) is None else row[title] for row in rows]
            axes.plot(numbers, range(len(rows)), label=title, **{**style, "linestyle": "none"})
        axes.set_yticks(range(len(rows)), names)
        axes.invert_yaxis()
        axes.set_xlabel(label)
        figure.legend(loc="outside upper center", ncols=5)
        return save_figure(figure, path, overwrite)
