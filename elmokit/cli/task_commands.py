"""Train, evaluate and use models for six NLP tasks, with or without ELMo.

Examples:
    elmokit task train ner.toml --run ner
    elmokit task predict ner text.txt
"""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from elmokit.cli.command import Flag
from elmokit.cli.parameters import Json, OptionalOutput, Output, TextOptions
from elmokit.cli.running import echo_json, resumable_command
from elmokit.errors import ConfigError

if TYPE_CHECKING:
    from elmokit.tasks.task_loop import TaskEvaluation
    from elmokit.tasks.task_vocabulary import Coverage

TaskDevice = Annotated[str, Flag("Where to compute, such as cuda.")]
COMMANDS = ("train", "evaluate", "predict", "import_", "open_")


def train(
    config: Path,
    *,
    run: Output,
    set_: Annotated[tuple[str, ...], Flag("Override a setting, such as train.epochs=5.", metavar="KEY=VALUE")] = (),
    seeds: Annotated[tuple[int, ...] | None, Flag("Train once with each seed; overrides train.seeds.")] = None,
    device: TaskDevice = "cpu",
    overwrite: Annotated[bool, Flag("Start over: replace the run in the directory.")] = False,
) -> None:
    """Train a task model from CONFIG (TOML) and keep the model with the best dev score.

    docs/reference/tasks.md describes CONFIG for each task. If the command is interrupted, run it again to resume. Seeds
    can be added to a run.

    Args:
        run: Run directory.

    Examples:
        elmokit task train ner.toml --run ner
        elmokit task train ner.toml --run ner-long --set train.epochs=50 --seeds 1,2,3
    """
    from elmokit.storage.progress import ProgressBar
    from elmokit.tasks.config_file import load_config
    from elmokit.tasks.run import train_task

    overrides = set_ if seeds is None else (*set_, f"train.seeds={list(seeds)}")
    chosen, content = load_config(config, overrides)
    with resumable_command((run / "config.toml").exists), ProgressBar("") as progress:
        results = train_task(
            chosen,
            content,
            run,
            progress=progress,
            on_evaluation=lambda evaluation: progress.write(format_evaluation(evaluation)),
            on_coverage=lambda table, coverage: progress.write(format_coverage(table, coverage)),
            device=device,
            overwrite=overwrite,
        )
    echo_scores(results["dev"], len(results["seeds"]))


def evaluate(
    run: Path,
    data: tuple[str, ...],
    *,
    json: Json = False,
    seed: int | None = None,
    count_unknown_labels: bool = False,
    device: TaskDevice = "cpu",
) -> None:
    """Evaluate RUN on DATA: files in the format of its training data.

    RUN is a run directory of `elmokit task train`, or a model that AllenNLP trained (model.tar.gz).

    Args:
        seed: Evaluate the training run with this seed only.  [default: all finished ones]
        count_unknown_labels: Accept gold labels unknown to the model, and count them as missed.

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
    json: bool = False,
    reading: TextOptions,
    best: int | None = None,
    seed: int | None = None,
    device: TaskDevice = "cpu",
) -> None:
    """Label TEXT (- for standard input) with RUN's model.

    RUN is a run directory of `elmokit task train`, or a model that AllenNLP trained (model.tar.gz). The format of TEXT
    depends on the task (docs/reference/tasks.md).

    Args:
        json: Print one JSON object per line.
        best: Print the N most probable answers to each question, with their probabilities.
        seed: Use the model trained with this seed.  [default: the best on dev]

    Examples:
        elmokit task predict ner text.txt
        elmokit task predict ner reviews.txt --raw --json
        elmokit task predict qa questions.jsonl --best 3
    """
    from elmokit.tasks.run import open_run

    read = reading.text(text, refuse_raw=True)
    opened = open_run(run, seed, device)
    is_empty = True
    for example, prediction in opened.predict_file(read, best=best):
        is_empty = False
        if json:
            click.echo(json_module.dumps(opened.task.to_record(example, prediction), ensure_ascii=False))
        else:
            click.echo(opened.task.to_text(example, prediction))
    if is_empty:
        click.echo(f"{text} has nothing to label.", err=True)


def import_(
    file: Path,
    *,
    var: Annotated[tuple[str, ...], Flag("Set an external variable of a Jsonnet file.", metavar="NAME=VALUE")] = (),
) -> None:
    """Print the AllenNLP config FILE (JSON or Jsonnet) as TOML for `elmokit task train`.

    Settings without a counterpart are listed on standard error.

    Examples:
        elmokit task import ner_elmo.jsonnet > ner.toml
        elmokit task import ner_elmo.jsonnet --var NER_TRAIN_DATA_PATH=train.txt > ner.toml
    """
    from elmokit.tasks.allennlp.config_import import import_config

    variables = {}
    for variable in var:
        name, sign, value = variable.partition("=")
        if not sign or not name:
            raise ConfigError(f"--var is {variable!r}; expected NAME=VALUE.")
        variables[name] = value
    toml, differences = import_config(file, variables)
    click.echo(toml, nl=False)
    for line, _ in differences:
        click.echo(f"{file.name}: not supported: {line}", err=True)


def open_(
    archive: Path,
    *,
    run: OptionalOutput = None,
    json: Json = False,
    start: Literal["allennlp", "zero", "warm"] = "allennlp",
    options: Path | None = None,
) -> None:
    """Open, check and describe ARCHIVE, a model that AllenNLP trained.

    ARCHIVE is model.tar.gz or an unpacked one, for one of the six tasks or constituency parsing. `elmokit task predict`
    and `task evaluate` accept it directly; a run directory opens faster, and its settings can be edited.

    Args:
        run: Write the model as a run directory.
        start: LSTM state that ELMo's sentences start from: as in AllenNLP, zero, or the model's start state (warm).
        options: ELMo's options file, if it is not in the archive.

    Examples:
        elmokit task open ner-elmo.tar.gz
        elmokit task open ner-elmo.tar.gz --run ner
        elmokit task open ner-elmo.tar.gz --options options.json --run ner
    """
    from elmokit.tasks.allennlp.task_archive import describe_archive, open_task_archive, save_as_run

    opened = open_task_archive(archive, start=start, options=options)
    facts = describe_archive(opened)
    if run is not None:
        save_as_run(opened, run)
        facts["run"] = str(run)
    if json:
        echo_json({**facts, "notes": opened.notes})
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {_format_fact(value)}")
    for note in opened.notes:
        click.echo(f"{archive.name}: {note}", err=True)


def _format_fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_format_fact(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return f"{len(value)}: {', '.join(value[:20])}{' ...' if len(value) > 20 else ''}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def format_coverage(table: str, coverage: Coverage) -> str:
    """Return a line with the share of training words that have no pretrained vector."""
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
    layers = evaluation.trained_layers
    if layers is None:
        return line
    if not layers:
        return f"{line}  (biLM: frozen)"
    return f"{line}  (biLM: layers {', '.join(map(str, layers))} trained)"


def echo_scores(scores: dict[str, dict[str, float]], n_seeds: int) -> None:
    """Print a line for each score, with its deviation if there are several seeds."""
    width = max(map(len, scores))
    for name, score in scores.items():
        spread = f" ± {score['deviation']:.2f} ({n_seeds} seeds)" if n_seeds > 1 else ""
        click.echo(f"{name:<{width}}  {score['mean']:6.2f}{spread}")
