"""The ``elmokit task`` command: train, evaluate and use models for six NLP tasks."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmokit.cli.common import PROGRAM, echo_json, json_option, overwrite_option, resumable_command, resume_command
from elmokit.cli.options import CommandGroup, OutputPath
from elmokit.errors import ConfigError

if TYPE_CHECKING:
    from elmokit.tasks.loop import TaskEvaluation
    from elmokit.tasks.vocabulary import Coverage

device_option = click.option("--device", default="cpu", show_default=True, help="Where to compute: cpu, cuda, ...")
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a setting, such as train.epochs=5."
)
seeds_option = click.option("--seeds", metavar="N[,N...]", help="Train once with each; overrides train.seeds.")


@click.group(cls=CommandGroup)
def task() -> None:
    """Train, evaluate and use models for six NLP tasks, with or without ELMo.

    \b
    Examples:
      elmokit task train ner.toml --run ner
      elmokit task predict ner text.txt
    """


@task.command("train", short_help="Train a model from a config file.")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--run", required=True, type=OutputPath(), help="Run directory.")
@set_option
@seeds_option
@device_option
@overwrite_option
def train_command(
    config: Path, run: Path, overrides: tuple[str, ...], seeds: str | None, device: str, overwrite: bool
) -> None:
    """Train a task model from CONFIG (TOML) and keep the model with the best dev score.

    If the training is interrupted, the same command continues it.

    \b
    Examples:
      elmokit task train ner.toml --run ner
      elmokit task train ner.toml --run ner-long --set train.epochs=50 --seeds 1,2,3
    """
    from elmokit.storage.progress import ProgressBar
    from elmokit.tasks.run import train_task

    chosen, content = load_config_with(config, overrides, seeds)
    command = resume_command("task", "train", str(run / "config.toml"), "--run", str(run))
    is_started = (run / "config.toml").exists
    with resumable_command(lambda: command if is_started() else None), ProgressBar("") as progress:
        results = train_task(
            chosen,
            content,
            run,
            device=device,
            progress=progress,
            on_evaluation=lambda evaluation: progress.write(format_evaluation(evaluation)),
            on_coverage=lambda table, coverage: progress.write(format_coverage(table, coverage)),
            overwrite=overwrite,
            facts=run_facts(),
        )
    echo_scores(results["dev"], len(results["seeds"]))


@task.command("evaluate", short_help="Compute the official scores of a run on labeled data.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("data", nargs=-1, required=True)
@click.option("--seed", type=int, help="Evaluate this training alone.  [default: all, mean and deviation]")
@click.option(
    "--count-unknown-labels",
    is_flag=True,
    help="Accept gold labels that RUN does not know, and count them as missed.  [default: refuse them]",
)
@json_option
@device_option
def evaluate_command(
    run: Path, data: tuple[str, ...], seed: int | None, count_unknown_labels: bool, as_json: bool, device: str
) -> None:
    """Evaluate RUN on DATA, files in the format of its training data.

    \b
    Examples:
      elmokit task evaluate ner test.txt
      elmokit task evaluate ner-elmo.tar.gz eng.testb --count-unknown-labels --json
    """
    from elmokit.storage.progress import ProgressBar
    from elmokit.tasks.run import evaluate_run
    from elmokit.tasks.run_folder import mean_and_deviation

    with ProgressBar("") as progress:
        n_examples, per_seed = evaluate_run(
            run, data, seed, count_unknown_labels=count_unknown_labels, device=device, progress=progress
        )
    scores = mean_and_deviation(list(per_seed.values()))
    if as_json:
        echo_json({"n_examples": n_examples, "scores": scores, "seeds": per_seed})
    else:
        echo_scores(scores, len(per_seed))


@task.command("predict", short_help="Label text with a trained model.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("text", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--seed", type=int, help="Use the model of this training.  [default: the best on dev]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--tokenize", is_flag=True, help="TEXT is raw text: split it into Penn Treebank tokens.")
@device_option
def predict_command(run: Path, text: Path, seed: int | None, as_json: bool, tokenize: bool, device: str) -> None:
    """Label TEXT (- for standard input) with RUN's model.

    The input format depends on the task (docs/reference/tasks.md).

    \b
    Examples:
      elmokit task predict ner text.txt
      elmokit task predict ner reviews.txt --tokenize --json
    """
    from elmokit.storage.text_files import read_lines
    from elmokit.tasks.run import open_run
    from elmokit.text.tokenize import get_tokenizer

    tokenizer = get_tokenizer("treebank" if tokenize else "spaces")
    opened = open_run(run, seed, device)
    for example, prediction in opened.predict_lines(read_lines(text), str(text), tokenizer):
        if as_json:
            click.echo(json.dumps(opened.task.to_record(example, prediction), ensure_ascii=False))
        else:
            click.echo(opened.task.to_text(example, prediction))


def load_config_with(path: Path, overrides: tuple[str, ...], seeds: str | None) -> tuple[Any, Any]:
    """Read a config file with the values of ``--set`` and ``--seeds`` in place of its own."""
    from elmokit.tasks.table import load_config

    if seeds is not None:
        if not all(part.strip().isdigit() for part in seeds.split(",")):
            raise ConfigError(f"--seeds is {seeds!r}; expected numbers with commas between them, such as 1,2,3.")
        overrides = (*overrides, f"train.seeds=[{seeds}]")
    return load_config(path, overrides)


def run_facts() -> dict[str, str]:
    """Return what ``run.json`` records about the command."""
    return {"elmokit": version(PROGRAM), "command": shlex.join([PROGRAM, *sys.argv[1:]])}


def format_coverage(table: str, coverage: Coverage) -> str:
    """Return a line that says how many of the training words have no pretrained vector."""
    return (
        f"{table}: no pretrained vector for {coverage.unknown_types:.1%} of the training words, "
        f"{coverage.unknown_tokens:.1%} of the tokens"
    )


def format_evaluation(evaluation: TaskEvaluation) -> str:
    """Return a line with the results of an evaluation; a star marks the best one so far."""
    scores = "  ".join(f"{name} {value:.2f}" for name, value in list(evaluation.scores.items())[:3])
    line = (
        f"seed {evaluation.seed}  epoch {evaluation.epoch}/{evaluation.n_epochs}  loss {evaluation.loss:.4f}  "
        f"dev {scores}{'  *' if evaluation.is_best else ''}"
    )
    if (cost := evaluation.bilm) is not None:
        trained = f"layers {', '.join(map(str, cost.layers))} trained" if cost.layers else "frozen"
        memory = "" if cost.peak_memory_mib is None else f", peak memory {cost.peak_memory_mib:,} MiB"
        line += f"  (biLM: {trained}, {cost.tokens_per_second:,.0f} tokens/s{memory})"
    return line


def echo_scores(scores: dict[str, dict[str, float]], n_seeds: int) -> None:
    """Print a line for each score, with its deviation if there are several seeds."""
    width = max(map(len, scores))
    for name, score in scores.items():
        spread = f" ± {score['deviation']:.2f} ({n_seeds} seeds)" if n_seeds > 1 else ""
        click.echo(f"{name:<{width}}  {score['mean']:6.2f}{spread}")
