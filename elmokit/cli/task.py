"""``elmokit task``: the six tasks, with and without ELMo."""

from __future__ import annotations

import json
import shlex
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmokit.cli.common import PROGRAM
from elmokit.errors import ConfigError

if TYPE_CHECKING:
    from elmokit.tasks.loop import Progress
    from elmokit.tasks.vocabulary import Coverage

SECONDS_BETWEEN_LINES = 10.0
SLOW = 10.0  # seconds of work after which judging or predicting says how far it is

device_option = click.option("--device", default="cpu", show_default=True, help="Where to compute: cpu, cuda, ...")
seed_option = click.option("--seed", type=int, help="Of the training to take.  [default: the best on dev]")


@click.group(short_help="Train and use models of the six tasks, with and without ELMo.")
def task() -> None:
    """Train, judge and use models of the six tasks, with and without ELMo."""


@task.command(short_help="A config and its data to a run.")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--run", required=True, type=click.Path(path_type=Path), help="Folder for everything about the run.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Instead of the file's: train.epochs=5.")
@click.option("--seeds", metavar="N[,N...]", help="Train once for each; instead of train.seeds.")
@device_option
@click.option("--resume", is_flag=True, help="Go on with the run in the folder, with the same config.")
def train(config: Path, run: Path, settings: tuple[str, ...], seeds: str | None, device: str, resume: bool) -> None:
    """Train as CONFIG (TOML) says, keep the best model on dev, and print its scores."""
    from elmokit.cli.task_finetune import finetune_for_task
    from elmokit.tasks.run import train_task
    from elmokit.tasks.table import load_config

    if seeds is not None:
        refuse_no_seeds(seeds)
        settings = (*settings, f"train.seeds=[{seeds}]")
    chosen, content = load_config(config, settings)
    results = train_task(
        chosen,
        content,
        run,
        device=device,
        report=Reporter(),
        tell=echo_coverage,
        finetune=finetune_for_task,
        resume=resume,
        facts={"elmokit": version(PROGRAM), "command": shlex.join([PROGRAM, *sys.argv[1:]])},
    )
    echo_scores(results["dev"], len(results["seeds"]))


@task.command(short_help="The official scores of a run on labelled data.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("data", nargs=-1, required=True)
@click.option("--seed", type=int, help="Judge one training alone.  [default: all, mean and deviation]")
@click.option(
    "--count-unknown-labels",
    is_flag=True,
    help="Take gold labels that RUN does not know, and count them as missed.  [default: refuse them]",
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@device_option
def evaluate(
    run: Path, data: tuple[str, ...], seed: int | None, count_unknown_labels: bool, as_json: bool, device: str
) -> None:
    """Judge RUN on DATA, files in the format of its training data."""
    from elmokit.tasks.run import open_run
    from elmokit.tasks.run_folder import finished_seeds, mean_and_deviation

    per_seed: dict[int, dict[str, float]] = {}
    examples: list[Any] | None = None
    numbers: list[int | None] = [seed] if seed is not None else [*finished_seeds(run)]
    for number in numbers or [None]:  # of no training open_run says what is missing
        opened = open_run(run, number, device)
        if examples is None:
            examples = opened.read(data, count_unknown_labels)
            if len(numbers) > 1:
                opened.keep_layers(examples, Waiting())
        per_seed[opened.seed] = opened.score(examples, Waiting())
    scores = mean_and_deviation(list(per_seed.values()))
    if as_json:
        click.echo(json.dumps({"n_examples": len(examples or ()), "scores": scores, "seeds": per_seed}, indent=2))
    else:
        echo_scores(scores, len(per_seed))


@task.command(short_help="Text in, labelled text out.")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("text", type=click.Path(path_type=Path, allow_dash=True))
@seed_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.option("--tokenize", is_flag=True, help="TEXT is raw: split it in the manner of the Penn Treebank.")
@device_option
def predict(run: Path, text: Path, seed: int | None, as_json: bool, tokenize: bool, device: str) -> None:
    """Label TEXT (- for standard input) with RUN's model; what a line holds depends on the task."""
    from elmokit.io.text_files import read_lines, split_tokens
    from elmokit.tasks.run import open_run
    from elmokit.text.tokenize import treebank_tokenizer

    tokenizer = treebank_tokenizer() if tokenize else split_tokens
    opened = open_run(run, seed, device)
    for example, prediction in opened.predict_lines(read_lines(text), str(text), tokenizer):
        if as_json:
            click.echo(json.dumps(opened.task.to_record(example, prediction), ensure_ascii=False))
        else:
            click.echo(opened.task.to_text(example, prediction))


def echo_coverage(table: str, coverage: Coverage) -> None:
    """How many of the training words have no pretrained vector."""
    click.echo(
        f"{table}: no pretrained vector for {coverage.unknown_types:.1%} of the training words, "
        f"{coverage.unknown_tokens:.1%} of the tokens",
        err=True,
    )


def echo_scores(scores: dict[str, dict[str, float]], n_seeds: int) -> None:
    """A line for each score, with its deviation where there are several seeds."""
    width = max(map(len, scores))
    for name, score in scores.items():
        spread = f" ± {score['deviation']:.2f} ({n_seeds} seeds)" if n_seeds > 1 else ""
        click.echo(f"{name:<{width}}  {score['mean']:6.2f}{spread}")


class Reporter:
    """Prints what a training does: every evaluation, and a line now and then between them."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if progress.scores is None and time.monotonic() - self.last < SECONDS_BETWEEN_LINES:
            return
        self.last = time.monotonic()
        click.echo(line_of(progress), err=True)


def line_of(progress: Progress) -> str:
    """One line about a training."""
    left = clock(progress.seconds_left)
    if progress.phase == "layers":
        return f"layers of the biLM: {progress.done:,} of {progress.total:,} tokens, {left} left"
    head = f"seed {progress.seed}  epoch {progress.epoch}/{progress.n_epochs}"
    if progress.phase == "train":
        return f"{head}  step {progress.done:,}/{progress.total:,}  loss {progress.loss:.4f}  at most {left} left"
    if progress.scores is None:
        return f"{head}  dev {progress.done:,}/{progress.total:,}  {left} left"
    scores = "  ".join(f"{name} {value:.2f}" for name, value in list(progress.scores.items())[:3])
    return f"{head}  loss {progress.loss:.4f}  dev {scores}{'  *' if progress.is_best else ''}"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


class Waiting:
    """Says how far a long judging is."""

    def __init__(self) -> None:
        self.started = self.last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last < SLOW:
            return
        self.last = now
        click.echo(f"{done:,} of {total:,}  {clock((now - self.started) / done * (total - done))} left", err=True)


def refuse_no_seeds(seeds: str) -> None:
    """Refuse what is no list of numbers."""
    if not all(part.strip().isdigit() for part in seeds.split(",")):
        raise ConfigError(f"--seeds is {seeds!r}; give numbers with commas between, such as 1,2,3.")
