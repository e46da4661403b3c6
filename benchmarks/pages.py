"""Tables in Markdown, and figures in one style, for the pages that benchmarks and documents write."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmokit.evaluation.result import Row, Table, name_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


@contextlib.contextmanager
def styled_figure(width: float = COLUMN, height: float = 2.4) -> Iterator[Figure]:
    """Yield an empty figure in our style, of a size in inches. Draw and save it inside the ``with`` block."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # ignore the user's matplotlibrc
        settings: Any = matplotlib.rcParams
        settings.update(STYLE)
        yield Figure(figsize=(width, height))


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the path's extension names, inside its ``with`` block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {})


def draw_rows(rows: Sequence[Row], label: str, path: Path) -> None:
    """Draw the rows of a table, the first one at the top, with a point for each number that is not a count.

    ``label`` says what the numbers are.
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
        save_figure(figure, path)


def to_markdown(table: Table) -> str:
    """Return a table in Markdown."""
    separator = ["---"] * table.n_text_columns + ["---:"] * (len(table.head) - table.n_text_columns)
    cells = (
        [escape_markdown(cell).replace("|", "\\|") for cell in row] for row in (table.head, separator, *table.rows)
    )
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def escape_markdown(text: str) -> str:
    """Escape what Markdown would take for HTML or emphasis, such as ``<UNK>`` and the stars of file names."""
    return text.replace("<", "&lt;").replace("*", "\\*")
