"""Train, evaluate and use models for six NLP tasks, with or without ELMo.

Examples:
    elmokit task train ner.toml --run ner
    elmokit task predict ner text.txt
"""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from elmokit.cli.command import Flag
from elmokit.cli.parameters import Json, Output
from elmokit.cli.running import echo_json, resumable_command

if TYPE_CHECKING:
    from elmokit.tasks.loop import TaskEvaluation
    from elmokit.tasks.vocabulary import Coverage

COMMANDS = {
    "train": ("elmokit.cli.task:train", "Train a model from a config file."),
    "evaluate": ("elmokit.cli.task:evaluate", "Compute the official scores of a run on labeled data."),
    "predict": ("elmokit.cli.task:predict", "Label text with a trained model."),
    "import": ("elmokit.cli.task_import:import_", "Convert an AllenNLP config to TOML."),
    "open": ("elmokit.cli.task_open:open_", "Open a trained model of AllenNLP (model.tar.gz)."),
}
TaskDevice = Annotated[str, Flag("Where to compute: cpu, cuda, ...")]
Overrides = Annotated[tuple[str, ...], Flag("Override a setting, such as train.epochs=5.", metavar="KEY=VALUE")]
Seeds = Annotated[tuple[int, ...] | None, Flag("Train once with each; overrides train.seeds.")]


def train(
    config: Path,
    *,
    run: Output,
    set_: Overrides = (),
    seeds: Seeds = None,
    device: TaskDevice = "cpu",
    overwrite: bool = False,
) -> None:
    """Train a task model from CONFIG (TOML) and keep the model with the best dev score.

    If the command is interrupted, run it again to resume. Seeds can be added to a run.

    Args:
        run: Run directory.
        overwrite: Start anew: replace the run in --run.

    Examples:
        elmokit task train ner.toml --run ner
        elmokit task train ner.toml --run ner-long --set train.epochs=50 --seeds 1,2,3
    """
    from elmokit.storage.progress import ProgressBar
    from elmokit.tasks.run import train_task

    chosen, content = load_config_with(config, set_, seeds)
    with resumable_command((run / "config.toml").exists), ProgressBar("") as progress:
        results = train_task(
            chosen,
            content,
            run,
            device=device,
            progress=progress,
            on_evaluation=lambda evaluation: progress.write(format_evaluation(evaluation)),
            on_coverage=lambda table, coverage: progress.write(format_coverage(table, coverage)),
            overwrite=overwrite,
        )
    echo_scores(results["dev"], len(results["seeds"]))


def evaluate(
    run: Path,
    data: tuple[str, ...],
    *,
    seed: int | None = None,
    count_unknown_labels: bool = False,
    json: Json = False,
    device: TaskDevice = "cpu",
) -> None:
    """Evaluate RUN on DATA, files in the format of its training data.

    Args:
        seed: Evaluate this training alone.  [default: all, mean and deviation]
        count_unknown_labels: Accept gold labels that RUN does not know, and count them as missed.  [default: refuse
            them]

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
    if json:
        echo_json({"n_examples": n_examples, "scores": scores, "seeds": per_seed})
    else:
        echo_scores(scores, len(per_seed))


def predict(
    run: Path,
    text: Path,
    *,
    seed: int | None = None,
    json: bool = False,
    tokenize: bool = False,
    device: TaskDevice = "cpu",
) -> None:
    """Label TEXT (- for standard input) with RUN's model.

    The input format depends on the task (docs/reference/tasks.md).

    Args:
        seed: Use the model of this training.  [default: the best on dev]
        json: Print one JSON object per line.
        tokenize: TEXT is raw text: split it into Penn Treebank tokens.

    Examples:
        elmokit task predict ner text.txt
        elmokit task predict ner reviews.txt --tokenize --json
    """
    from elmokit.storage.text_files import is_conllu, text_lines
    from elmokit.tasks.run import open_run
    from elmokit.text.tokenize import get_tokenizer

    tokenizer = get_tokenizer("treebank" if tokenize and not is_conllu(text) else "spaces")
    opened = open_run(run, seed, device)
    is_empty = True
    lines = (line for _, line in text_lines(text, accepted=opened.task.text_formats))
    for example, prediction in opened.predict_lines(lines, str(text), tokenizer):
        is_empty = False
        if json:
            click.echo(json_module.dumps(opened.task.to_record(example, prediction), ensure_ascii=False))
        else:
            click.echo(opened.task.to_text(example, prediction))
    if is_empty:
        click.echo(f"{text} has nothing to label.", err=True)


def load_config_with(path: Path, overrides: tuple[str, ...], seeds: tuple[int, ...] | None) -> tuple[Any, Any]:
    """Read a config file with the values of ``--set`` and ``--seeds`` in place of its own."""
    from elmokit.tasks.table import load_config

    if seeds is not None:
        overrides = (*overrides, f"train.seeds={list(seeds)}")
    return load_config(path, overrides)


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
