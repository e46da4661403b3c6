"""A figure of probing results: one value for each layer, with the baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmokit.evaluation.figures import COLUMN, INK, LINES, save_figure, styled_figure

DASHES = ("--", ":", "-.")


@dataclass(frozen=True)
class Series:
    """One line of the figure: a value for each layer and for each combination of layers."""

    label: str
    values: Sequence[float]
    deviations: Sequence[float] | None = None


def row_title(name: str) -> str:
    """Return how to show a row: ``layer 1`` for the number of a layer, other names unchanged."""
    return f"layer {name}" if name.isdigit() else name


def draw_layers(
    path: str | Path,
    names: Sequence[str],
    series: Sequence[Series],
    levels: Mapping[str, float],
    value_label: str,
    overwrite: bool = False,
) -> tuple[Path, Path]:
    """Draw values by layer as PNG and SVG. Layers are joined by a line; combinations of layers are separate points.

    Args:
        path: The figure, as in ``save_figure``.
        names: Names of the rows: layer numbers first, then combinations.
        series: Values in the unit of ``value_label``.
        levels: Baselines, drawn as horizontal lines.
        value_label: Label of the vertical axis.
        overwrite: Replace existing files.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: The figure exists, or cannot be written.
    """
    n_numbers = sum(name.isdigit() for name in names)
    with styled_figure(COLUMN, 2.4) as figure:
        axes = figure.subplots()
        axes.grid(visible=False, axis="x")
        entries: list[Any] = []
        for one, style in zip(series, LINES, strict=False):
            for part, how in ((slice(0, n_numbers), style), (slice(n_numbers, None), {**style, "linestyle": "none"})):
                x = range(len(names))[part]
                (line,) = axes.plot(x, one.values[part], label=one.label, **how)
                if one.deviations is not None:
                    bars = {"color": style["color"], "linestyle": "none", "capsize": 2}
                    axes.errorbar(x, one.values[part], one.deviations[part], **bars)
                if part.start == 0:
                    entries.append(line)
        for (label, level), dashes in zip(levels.items(), DASHES, strict=False):
            entries.append(axes.axhline(level, color=INK, linestyle=dashes, linewidth=0.9, label=label))
        axes.set_xticks(range(len(names)), [row_title(name) for name in names])
        axes.set_xlim(-0.4, len(names) - 0.6)
        axes.set_ylabel(value_label)
        if len(entries) > 1:
            figure.legend(handles=entries, loc="outside upper center", ncols=2)
        return save_figure(figure, path, overwrite)
