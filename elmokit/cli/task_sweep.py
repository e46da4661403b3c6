"""The commands ``elmokit task sweep`` and ``task weights``: comparisons and figures as in Peters et al. 2018."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click

from elmokit.cli.command import CommaSeparated
from elmokit.cli.parameters import Figure, Json, Output, Overwrite
from elmokit.cli.running import check_needed, echo_json, resumable_command
from elmokit.cli.task import Overrides, Seeds, TaskDevice, format_evaluation, load_config_with
from elmokit.errors import MissingExtraError, TrainingError
from elmokit.storage.progress import ProgressBar, count_of, format_duration

if TYPE_CHECKING:
    from elmokit.tasks.sweep import StepsSaved, SweepRow, TrainingStart


def sweep(
    config: Path,
    *,
    over: Literal["ratios", "layers", "positions"],
    run: Output,
    ratios: Annotated[tuple[float, ...] | None, CommaSeparated(float)] = None,
    seeds: Seeds = None,
    set_: Overrides = (),
    figure: bool | None = None,
    device: TaskDevice = "cpu",
) -> None:
    """Train variants of CONFIG (TOML) and print their dev scores, as Peters et al. 2018 do.

    `ratios` reproduces Figure 1, with the number of steps to the baseline's best score; `layers` reproduces Table 2,
    and `positions` Table 3. To continue after an interruption, run the same command again. You can also run it in
    several processes at once: they share the work. If a training fails, the others are still done.

    Args:
        over: What to vary: the fraction of the training data, without and with ELMo; which layers are mixed; where ELMo
            enters the model.
        run: Sweep directory.
        ratios (R[,R...]): Above 0, up to 1.  [default: 0.001,0.003,0.01,0.03,0.1,0.3,1]
        figure: Plot the curve of --over ratios.  [default: plot it if matplotlib is installed]

    Examples:
        elmokit task sweep ner.toml --over layers --run ner-layers
        elmokit task sweep ner.toml --over ratios --ratios 0.01,0.1,1 --seeds 1,2,3 --run ner-ratios
    """
    from elmokit.evaluation.figures import check_can_draw
    from elmokit.tasks.plots import plot_ratios
    from elmokit.tasks.sweep import (
        RATIOS,
        layer_variants,
        n_unfinished,
        position_variants,
        ratio_variants,
        run_sweep,
        steps_to_baseline,
    )

    check_needed("--ratios", ratios, "--over ratios", over == "ratios")
    task, content = load_config_with(config, set_, seeds)
    if over == "ratios":
        variants = ratio_variants(task, content, RATIOS if ratios is None else list(ratios))
        if figure:
            check_can_draw()  # before hours of training
    else:
        variants = layer_variants(task, content) if over == "layers" else position_variants(task, content)
    with resumable_command(), ProgressBar("") as progress:
        rows = run_sweep(
            task,
            variants,
            content.train.seeds,
            run,
            device=device,
            on_start=lambda start: progress.write(_format_start(start)),
            progress=progress,
            on_evaluation=lambda evaluation: progress.write(format_evaluation(evaluation)),
        )
    _echo_table(rows, task.metric)
    if over == "ratios":
        for ratio, saved in steps_to_baseline(rows, run, task.metric).items():
            click.echo(f"{100 * ratio:g} %: {format_steps_saved(saved)}")
        if figure is not False and any(row.scores for row in rows):
            try:
                for path in plot_ratios(rows, task.metric, run / "curve", overwrite=True):
                    click.echo(str(path))
            except MissingExtraError as error:
                click.echo(f"{error}, and run this command again to plot the curve.", err=True)
    if missing := n_unfinished(rows, content.train.seeds):
        click.echo(f"Other processes are running {missing} trainings. Run the command again afterwards.", err=True)
    failed: dict[str, list[str]] = {}  # by the error, which is often the same for all seeds
    for row in rows:
        for seed, message in row.failures.items():
            failed.setdefault(message, []).append(f"{row.label} (seed {seed})")
    if failed:
        raise TrainingError("Failed: " + "; ".join(f"{', '.join(names)}: {error}" for error, names in failed.items()))


def weights(
    runs: tuple[Path, ...],
    *,
    figure: Figure = None,
    json: Json = False,
    overwrite: Overwrite = False,
) -> None:
    """Show the softmaxed weights of each mix of RUNS, averaged over their seeds (Figure 2 of Peters et al. 2018).

    Examples:
        elmokit task weights ner srl
        elmokit task weights ner srl --figure mixes.png
    """
    from dataclasses import asdict

    from elmokit.tasks.mix_weights import weights_of_runs
    from elmokit.tasks.plots import plot_mixes

    mixes = weights_of_runs(runs)
    if json:
        echo_json([asdict(mix) for mix in mixes])
    else:
        for mix in mixes:
            parts = zip(mix.layers, mix.weights, mix.deviations, strict=True)
            spread = [f"{layer}: {w:.3f}" + (f" ± {d:.3f}" if mix.n_seeds > 1 else "") for layer, w, d in parts]
            click.echo(f"{mix.run}  {mix.position:<6}  layers  {'  '.join(spread)}  gamma {mix.gamma:.3f}")
    if figure is not None:  # last, because the weights are of use even if the figure cannot be drawn
        for path in plot_mixes(mixes, figure, overwrite):
            click.echo(str(path), err=json)


def format_steps_saved(saved: StepsSaved) -> str:
    """Return a sentence that says how many steps ELMo saves, and in how many seeds."""
    seeds = f"in {saved.n_reached} of {saved.n_seeds} seeds"
    if not saved.n_reached:
        return f"ELMo reaches the baseline's best score {seeds}"
    change = 1 - saved.with_elmo / saved.baseline
    than = f"{change:.0%} fewer" if change >= 0 else f"{-change:.0%} more"
    return (
        f"the baseline reaches its best score after {count_of(round(saved.baseline), 'step')}, "
        f"ELMo the same score after {saved.with_elmo:,.0f} ({than}), {seeds}"
    )


def _echo_table(rows: list[SweepRow], metric: str) -> None:
    width = max(len(row.label) for row in rows)
    for row in rows:
        score = row.scores.get(metric)
        if score is None:
            click.echo(f"{row.label:<{width}}  no training is finished")
            continue
        spread = f" ± {score['deviation']:.2f} ({len(row.seeds)} seeds)" if len(row.seeds) > 1 else ""
        click.echo(f"{row.label:<{width}}  dev {metric} {score['mean']:6.2f}{spread}")


def _format_start(start: TrainingStart) -> str:
    left = "" if start.seconds_left is None else f", about {format_duration(start.seconds_left)} left for all trainings"
    variant, seed = start.training.variant, start.training.seed
    return f"training {start.number} of {start.total}: {variant.label}, seed {seed}{left}"
