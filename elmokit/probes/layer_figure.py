"""One figure for what layers know: a value for each layer, with what it has to beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmokit.io.figures import COLUMN, INK, LINES, save_figure, styled_figure

DASHES = ("--", ":", "-.")


@dataclass(frozen=True)
class Series:
    """One value for each row: a layer by its number, or a combination of layers by its name."""

    label: str
    values: Sequence[float]
    deviations: Sequence[float] | None = None


def draw_layers(
    path: str | Path,
    names: Sequence[str],
    series: Sequence[Series],
    levels: Mapping[str, float],
    value_label: str,
    overwrite: bool = False,
) -> tuple[Path, Path]:
    """Draw values over layers as PNG and SVG: layers joined by a line, combinations as points apart.

    Args:
        names: of the rows, numbers first.
        series: values in the unit of ``value_label``.
        levels: what needs no layer, drawn as level lines.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: the figure exists and may not be overwritten, or cannot be written.
    """
    n_numbers = sum(name.isdigit() for name in names)
    with styled_figure(COLUMN, 2.4) as figure:
        axes = figure.subplots()
        axes.grid(visible=False, axis="x")
        entries: list[Any] = []
        for one, look in zip(series, LINES, strict=False):
            for part, how in ((slice(0, n_numbers), look), (slice(n_numbers, None), {**look, "linestyle": "none"})):
                places = range(len(names))[part]
                (line,) = axes.plot(places, one.values[part], label=one.label, **how)
                if one.deviations is not None:
                    bars = {"color": look["color"], "linestyle": "none", "capsize": 2}
                    axes.errorbar(places, one.values[part], one.deviations[part], **bars)
                if part.start == 0:
                    entries.append(line)
        for (label, level), dashes in zip(levels.items(), DASHES, strict=False):
            entries.append(axes.axhline(level, color=INK, linestyle=dashes, linewidth=0.9, label=label))
        axes.set_xticks(range(len(names)), [f"layer {name}" if name.isdigit() else name for name in names])
        axes.set_xlim(-0.4, len(names) - 0.6)
        axes.set_ylabel(value_label)
        if len(entries) > 1:
            figure.legend(handles=entries, loc="outside upper center", ncols=2)
        return save_figure(figure, path, overwrite)
