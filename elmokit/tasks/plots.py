"""Figures of finished runs and sweeps: sample efficiency (Figure 1 of Peters et al. 2018), mix weights (Figure 2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from elmokit.evaluation.figures import COLORS, COLUMN, INK, LINES, save_figure, styled_figure
from elmokit.tasks.mix_weights import MixWeights
from elmokit.tasks.sweep import SweepRow

if TYPE_CHECKING:
    from matplotlib.patches import Rectangle

NAMES = {"ner": "NER", "sst": "SST", "nli": "NLI", "srl": "SRL", "coref": "Coref", "qa": "QA"}
LONGEST_LEVEL = 5  # characters of a name that fits under its column
SCORES = {"f1": "F1", "accuracy": "accuracy (%)", "average_f1": "average F1"}


def plot_ratios(rows: Sequence[SweepRow], metric: str, path: str | Path, overwrite: bool = False) -> tuple[Path, Path]:
    """Plot dev scores over the fraction of the training data, without and with ELMo.

    Bands show one standard deviation over the seeds.

    Args:
        rows: The rows of a sweep over ratios.
        metric: The name of the score.
        path: The figure, with or without an ending; a PNG and an SVG file are written.
        overwrite: Replace existing files.

    Returns:
        The two files.
    """
    done = [row for row in rows if row.scores]
    with styled_figure(COLUMN, 2.4) as figure:
        axes = figure.subplots()
        for label, with_elmo, style in (("ELMo", True, LINES[0]), ("baseline", False, LINES[1])):
            line = sorted((row for row in done if row.with_elmo == with_elmo), key=lambda row: row.train_ratio)
            percents = [100 * row.train_ratio for row in line]
            means = [row.scores[metric]["mean"] for row in line]
            spreads = [row.scores[metric]["deviation"] for row in line]
            low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
            axes.plot(percents, means, label=label, **style)
            axes.fill_between(percents, low, high, color=style["color"], alpha=0.18, linewidth=0)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        percents = sorted({100 * row.train_ratio for row in done})
        axes.set_xticks(percents, [f"{percent:g}" for percent in percents])
        axes.minorticks_off()
        axes.set_xlabel("Training data (%)")
        axes.set_ylabel(f"Dev {SCORES.get(metric, metric)}")
        axes.legend(loc="best")
        return save_figure(figure, path, overwrite)


def plot_mixes(mixes: Sequence[MixWeights], path: str | Path, overwrite: bool = False) -> tuple[Path, Path]:
    """Plot the weight of each layer in each mix, input and output side by side.

    Weights below 1/n of a mix of n layers are hatched, and those above 2/n dotted (in the paper n is 3).

    Args:
        mixes: The mixes, for example from :func:`elmokit.tasks.mix_weights.weights_of_runs`.
        path: The figure, with or without an ending; a PNG and an SVG file are written.
        overwrite: Replace existing files.

    Returns:
        The two files.
    """
    n_layers = 1 + max(layer for mix in mixes for layer in mix.layers)
    labels = _labels(mixes)
    by_position = {name: [mix for mix in mixes if mix.position == name] for name in ("input", "output")}
    shown = {name: here for name, here in by_position.items() if here}
    n_columns = sum(map(len, shown.values()))
    with styled_figure(max(1.6, 0.75 + 0.42 * n_columns), 0.75 + 0.32 * n_layers) as figure:
        grid = figure.subplots(
            1, len(shown), squeeze=False, width_ratios=[len(here) for here in shown.values()], sharey=True
        )[0]
        for axes, (position, here) in zip(grid, shown.items(), strict=True):
            axes.set_title(position.capitalize())
            axes.grid(False)
            for column, mix in enumerate(here):
                equal = 1 / len(mix.layers)
                for layer, weight in zip(mix.layers, mix.weights, strict=True):
                    hatch = "/////" if weight < equal else "..." if weight > 2 * equal else None
                    box = (column - 0.5, layer - 0.5)
                    axes.add_patch(_cell(box, weight, hatch))
                    axes.text(column, layer, f"{weight:.2f}", ha="center", va="center", fontsize=6, bbox=_LABEL)
            axes.set_xlim(-0.5, len(here) - 0.5)
            axes.set_ylim(-0.5, n_layers - 0.5)
            names = [labels[mix.run, mix.task] for mix in here]
            turned = {"rotation": 45, "ha": "right"} if max(map(len, names)) > LONGEST_LEVEL else {}
            axes.set_xticks(range(len(here)), names, **turned)
            axes.set_yticks(range(n_layers), [str(layer) for layer in range(n_layers)])
            axes.tick_params(length=0)
        grid[0].set_ylabel("Layer")
        return save_figure(figure, path, overwrite)


def _labels(mixes: Sequence[MixWeights]) -> dict[tuple[str, str], str]:
    """Label each run with its task, and with its directory where a task has several runs."""
    runs = {(mix.run, mix.task) for mix in mixes}
    tasks = [task for _, task in runs]
    names = [Path(run).name for run, _ in runs]
    short = {run: Path(run).name if names.count(Path(run).name) == 1 else run for run, _ in runs}
    return {
        (run, task): NAMES.get(task, task) if tasks.count(task) == 1 else f"{NAMES.get(task, task)} ({short[run]})"
        for run, task in runs
    }


_LABEL = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}


def _cell(corner: tuple[float, float], weight: float, hatch: str | None) -> Rectangle:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    blue = to_rgb(COLORS[0])
    shade = tuple(1 - weight * (1 - part) for part in blue)
    return Rectangle(corner, 1, 1, facecolor=shade, edgecolor=INK, linewidth=0.5, hatch=hatch, clip_on=False)
