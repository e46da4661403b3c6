"""Figures in one style, drawn with matplotlib and saved as PNG and SVG.

Draw on the figure that :func:`styled_figure` yields, and save it with :func:`save_figure`::

    with styled_figure() as figure:
        axes = figure.subplots()
        axes.plot(steps, losses, **LINES[0])
        save_figure(figure, "loss")

This does not use ``pyplot``, so that no window opens and no global setting changes.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmokit.errors import MissingExtraError
from elmokit.storage.atomic import atomic_write, check_extension, check_has_name, check_output_path

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
DASHES = ("--", ":", "-.")
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


def plot_bars(
    figure: Figure, names: Sequence[str], lengths: Sequence[float], errors: Sequence[float] | None, label: str
) -> None:
    """Draw horizontal bars, the first one at the top."""
    axes = figure.subplots()
    axes.grid(visible=False, axis="y")
    rows = range(len(names))
    axes.barh(rows, lengths, xerr=errors, color=COLORS[5], ecolor=INK, capsize=2, height=0.6)
    axes.set_yticks(rows, names)
    axes.invert_yaxis()
    axes.set_xlabel(label)


@dataclass(frozen=True)
class Series:
    """One line of :func:`plot_layers`: a value for each layer and for each combination of layers."""

    label: str
    values: Sequence[float]
    deviations: Sequence[float] | None = None


def plot_layers(
    figure: Figure, names: Sequence[str], series: Sequence[Series], levels: Mapping[str, float], label: str
) -> None:
    """Draw values by layer, joined by a line; combinations of layers, which follow them, are separate points.

    ``levels`` are baselines, drawn as horizontal lines.
    """
    n_numbers = sum(name.isdigit() for name in names)
    axes = figure.subplots()
    axes.grid(visible=False, axis="x")
    entries: list[Any] = []
    for row, style in zip(series, itertools.cycle(LINES)):
        for columns, how in ((slice(0, n_numbers), style), (slice(n_numbers, None), {**style, "linestyle": "none"})):
            x = range(len(names))[columns]
            (line,) = axes.plot(x, row.values[columns], label=row.label, **how)
            if row.deviations is not None:
                bars = {"color": style["color"], "linestyle": "none", "capsize": 2}
                axes.errorbar(x, row.values[columns], row.deviations[columns], **bars)
            if columns.start == 0:
                entries.append(line)
    for (level_label, level), dashes in zip(levels.items(), DASHES, strict=False):
        entries.append(axes.axhline(level, color=INK, linestyle=dashes, linewidth=0.9, label=level_label))
    axes.set_xticks(range(len(names)), [layer_title(name) for name in names])
    axes.set_xlim(-0.4, len(names) - 0.6)
    axes.set_ylabel(label)
    if len(entries) > 1:
        figure.legend(handles=entries, loc="outside upper center", ncols=2)


def layer_title(name: str) -> str:
    """Name a row: ``layer 1`` for the number of a layer; other names are unchanged."""
    return f"layer {name}" if name.isdigit() else name
