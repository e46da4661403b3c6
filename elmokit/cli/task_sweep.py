"""``elmokit task sweep`` and ``task weights``: the comparisons and figures of Peters et al. 2018 on your data."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elmokit.cli.common import PROGRAM, overwrite_option
from elmokit.cli.task import Reporter, clock, device_option, refuse_no_seeds
from elmokit.errors import ConfigError

if TYPE_CHECKING:
    from elmokit.tasks.loop import Progress
    from elmokit.tasks.sweep import Row, Saving, SweepProgress


@click.command(short_help="Many trainings side by side: shares of the data, layers, places.")
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--over",
    required=True,
    type=click.Choice(["shares", "layers", "places"]),
    help="What differs: the share of the training data, without and with ELMo; which layers are mixed and how freely; "
    "where ELMo enters.",
)
@click.option("--run", "folder", required=True, type=click.Path(path_type=Path), help="Folder for all of it.")
@click.option("--shares", metavar="S[,S...]", help="Above 0, up to 1.  [default: 0.001,0.003,0.01,0.03,0.1,0.3,1]")
@click.option("--seeds", metavar="N[,N...]", help="Train once for each; instead of train.seeds.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Instead of the file's: train.epochs=5.")
@click.option("--figure/--no-figure", default=True, help="Draw the curve of --over shares.  [default: --figure]")
@device_option
def sweep(
    config: Path,
    over: str,
    folder: Path,
    shares: str | None,
    seeds: str | None,
    settings: tuple[str, ...],
    figure: bool,
    device: str,
) -> None:
    """Train CONFIG (TOML) in variants and print their dev scores, as Peters et al. 2018 do.

    --over shares is their Figure 1 (and steps to the baseline's best), layers their Table 2, places their Table 3. The
    same command goes on after a kill; run it in several processes at once to share the work.
    """
    from elmokit.cli.task_finetune import finetune_for_task
    from elmokit.io.figures import styled_figure
    from elmokit.tasks.plots import plot_shares
    from elmokit.tasks.sweep import (
        SHARES,
        layer_variants,
        n_elsewhere,
        place_variants,
        run_sweep,
        share_variants,
        steps_to_baseline,
    )
    from elmokit.tasks.table import load_config

    if shares is not None and over != "shares":
        raise ConfigError(f"--shares goes with --over shares, not with --over {over}.")
    if seeds is not None:
        refuse_no_seeds(seeds)
        settings = (*settings, f"train.seeds=[{seeds}]")
    task, content = load_config(config, settings)
    if over == "shares":
        variants = share_variants(task, content, SHARES if shares is None else _numbers(shares))
        if figure:
            with styled_figure():  # a missing matplotlib is told before hours of training
                pass
    else:
        variants = layer_variants(task, content) if over == "layers" else place_variants(task, content)
    seed_list = content.train.seeds
    facts = {"elmokit": version(PROGRAM), "command": shlex.join([PROGRAM, *sys.argv[1:]])}
    rows = run_sweep(
        task,
        variants,
        seed_list,
        folder,
        device=device,
        report=_Reporter(),
        finetune=finetune_for_task,
        facts=facts,
    )
    _echo_table(rows, task.metric)
    if over == "shares":
        for share, saving in steps_to_baseline(rows, folder, task.metric).items():
            click.echo(f"{100 * share:g} %: {_told(saving)}")
        if figure and any(row.scores for row in rows):
            for path in plot_shares(rows, task.metric, folder / "curve", overwrite=True):
                click.echo(str(path))
    if missing := n_elsewhere(rows, seed_list):
        click.echo(f"{missing} trainings are another process's; run the command again when it is done.", err=True)


@click.command(short_help="The learned weights of the layers in finished runs.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--figure", type=click.Path(path_type=Path), help="Draw them: PNG and SVG.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@overwrite_option
def weights(runs: tuple[Path, ...], figure: Path | None, as_json: bool, overwrite: bool) -> None:
    """The softmaxed weights of each mix of RUNS, means over their seeds; Figure 2 of Peters et al. 2018."""
    from dataclasses import asdict

    from elmokit.io.figures import check_figure_path
    from elmokit.tasks.mix_weights import weights_of_runs
    from elmokit.tasks.plots import plot_mixes

    if figure is not None:
        check_figure_path(figure, overwrite)
    mixes = weights_of_runs(runs)
    if as_json:
        click.echo(json.dumps([asdict(mix) for mix in mixes], indent=2))
    else:
        for mix in mixes:
            parts = zip(mix.layers, mix.weights, mix.deviations, strict=True)
            spread = [f"{layer}: {w:.3f}" + (f" ± {d:.3f}" if mix.n_seeds > 1 else "") for layer, w, d in parts]
            click.echo(f"{mix.run}  {mix.place:<6}  layers  {'  '.join(spread)}  gamma {mix.gamma:.3f}")
    if figure is not None:
        for path in plot_mixes(mixes, figure, overwrite):
            click.echo(str(path), err=as_json)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--shares is {text!r}; give numbers with commas between, such as 0.01,0.1,1.") from None


def _echo_table(rows: list[Row], metric: str) -> None:
    width = max(len(row.label) for row in rows)
    for row in rows:
        score = row.scores.get(metric)
        if score is None:
            click.echo(f"{row.label:<{width}}  no training is over")
            continue
        spread = f" ± {score['deviation']:.2f} ({len(row.seeds)} seeds)" if len(row.seeds) > 1 else ""
        click.echo(f"{row.label:<{width}}  dev {metric} {score['mean']:6.2f}{spread}")


class _Reporter:
    """Says which training begins, and what it does."""

    def __init__(self) -> None:
        self.of_training = Reporter()

    def __call__(self, progress: SweepProgress | Progress) -> None:
        from elmokit.tasks.loop import Progress

        if isinstance(progress, Progress):
            self.of_training(progress)
            return
        left = "" if progress.seconds_left is None else f", about {clock(progress.seconds_left)} left in all"
        variant, seed = progress.cell.variant, progress.cell.seed
        click.echo(f"training {progress.number} of {progress.total}: {variant.label}, seed {seed}{left}", err=True)


def _told(saving: Saving) -> str:
    """How much sooner ELMo is as good as the baseline, and in how many seeds."""
    seeds = f"in {saving.n_there} of {saving.n_seeds} seeds"
    if not saving.n_there:
        return f"ELMo is as good as the baseline at its best {seeds}"
    change = 1 - saving.with_elmo / saving.baseline
    than = f"{change:.0%} fewer" if change >= 0 else f"{-change:.0%} more"
    return (
        f"the baseline is at its best after {saving.baseline:,.0f} steps; ELMo is as good after "
        f"{saving.with_elmo:,.0f} ({than}), {seeds}"
    )
