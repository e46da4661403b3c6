"""The house's figures: one look, made by matplotlib, saved as PNG and as SVG.

A plot draws on what ``styled_figure`` hands out and saves it with ``save_figure``::

    with styled_figure() as figure:
        axes = figure.subplots()
        axes.plot(steps, losses, **LINES[0])
        save_figure(figure, "loss")

Nothing here touches ``pyplot``: no window, no current figure, no setting that outlives the block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmokit.errors import MissingExtraError, OutputError
from elmokit.io.atomic import atomic_write, check_output_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.3, 6.9
"""Width in inches of one column and of both, in a paper of two columns."""
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette: apart for colour-blind readers too."""
LINES: tuple[dict[str, Any], ...] = tuple(
    {"color": color, "marker": marker, "linestyle": dashes}
    for color, marker, dashes in zip(COLORS, "os^DvPX", ("-", "--", "-", "--", "-", "--", "-"), strict=True)
)
"""How the first, second ... line of a plot look: colour, marker and dashes all differ, so grey print works too."""
INK = "#262626"
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same figure on every machine
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
    """An empty figure in the house's look, for a ``with`` block that draws and saves it.

    Args:
        width: in inches; ``COLUMN`` and ``PAGE`` are those of a paper.
        height: in inches.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("Drawing a figure", "plot") from None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # what the user's own matplotlibrc says stays out
        settings: Any = matplotlib.rcParams
        settings.update(STYLE)
        yield Figure(figsize=(width, height))


def figure_paths(path: str | Path) -> tuple[Path, Path]:
    """The PNG and the SVG file that belong to a path, with or without one of these endings."""
    path = Path(path)
    stem = path.with_name(path.stem) if path.suffix.lower() in (".png", ".svg") else path
    return stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".svg")


def check_figure_path(path: str | Path, overwrite: bool) -> None:
    """Say before any work is done that a figure's place is taken.

    Raises:
        OutputError: its PNG or its SVG exists and may not be overwritten, or the path names no file.
    """
    if not Path(path).name:
        raise OutputError(f"{path} names no file. Give a figure's path, such as figures/curve.png.")
    for file in figure_paths(path):
        check_output_path(file, overwrite)


def save_figure(figure: Figure, path: str | Path, overwrite: bool = False) -> tuple[Path, Path]:
    """Write a figure as PNG (300 dots per inch) and as SVG, each whole or not at all; inside its ``with`` block.

    Args:
        path: of either file, or without an ending; both stand side by side.

    Returns:
        the two files, PNG first.

    Raises:
        OutputError: one of the files exists and may not be overwritten, or cannot be written.
    """
    check_figure_path(path, overwrite)
    for file in figure_paths(path):
        with atomic_write(file, overwrite) as beside:
            dateless = {"Date": None} if file.suffix == ".svg" else {}
            figure.savefig(beside, format=file.suffix[1:], metadata=dateless)
    return figure_paths(path)
