"""``elmokit probe``: what the layers know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmokit.cli.common import model_option, options_option, overwrite_option
from elmokit.errors import ConfigError
from elmokit.io.progress import ProgressBar

if TYPE_CHECKING:
    from elmokit.probes.pos import PosResult
    from elmokit.probes.senses import SenseResult

json_option = click.option("--json", "as_json", is_flag=True, help="For programs.")
device_option = click.option("--device", help="Where to compute vectors: cpu, cuda, cuda:1, ...")
figure_option = click.option(
    "--figure", type=click.Path(path_type=Path), help="Draw the layers: PNG and SVG side by side."
)


@click.group(short_help="Measure what the layers know.")
def probe() -> None:
    """Measure what the layers know: parts of speech (pos), word senses (wsd).

    Neighbours of a word in its sentence: elmokit neighbours.
    """


@probe.command(short_help="Parts of speech, by a linear classifier on each layer.")
@click.argument("train", type=click.Path(path_type=Path))
@click.argument("test", type=click.Path(path_type=Path))
@model_option
@options_option
@click.option("--tags", help="CoNLL-U: a column's name, as upos, xpos. Columns: a number from 1.  [default: upos; 2]")
@click.option("--words", default=1, show_default=True, help="Columns: the number of the words' column.")
@click.option("--layers", metavar="N[,N...]", help="Which layers.  [default: all]")
@click.option("--seeds", default=1, show_default=True, help="Train so often; shows mean and deviation.")
@click.option("--control", is_flag=True, help="Also a task with a random tag for each word (takes twice as long).")
@click.option("--sentences", type=int, help="Train on the first so many sentences only.")
@click.option("--epochs", default=5, show_default=True, help="Passes of the classifier over the training words.")
@click.option("--vectors", type=click.Path(path_type=Path), help="Keep the vectors in this folder, to use them again.")
@json_option
@figure_option
@device_option
@overwrite_option
def pos(
    train: Path,
    test: Path,
    model: str | None,
    options: str | None,
    tags: str | None,
    words: int,
    layers: str | None,
    seeds: int,
    control: bool,
    sentences: int | None,
    epochs: int,
    vectors: Path | None,
    as_json: bool,
    figure: Path | None,
    device: str | None,
    overwrite: bool,
) -> None:
    """Accuracy of a linear part-of-speech probe on each layer.

    TRAIN and TEST are CoNLL-U files (.conllu, .conllup), or columns with blanks between; .gz and .xz too.
    """
    from elmokit.embedder import Elmo
    from elmokit.io.figures import check_figure_path
    from elmokit.probes.linear import LinearSettings
    from elmokit.probes.pos import probe_pos
    from elmokit.probes.tagged import read_tagged

    if sentences is not None and sentences < 1:
        raise ConfigError(f"--sentences is {sentences}; it must be at least 1.")
    if seeds < 1:
        raise ConfigError(f"--seeds is {seeds}; it must be at least 1.")
    settings = LinearSettings(epochs=epochs)
    chosen = layer_numbers(layers)
    if figure is not None:
        check_figure_path(figure, overwrite)
    parts = list(read_tagged(train, tags, words))[:sentences], list(read_tagged(test, tags, words))
    elmo = Elmo.from_pretrained(model, options=options, device=device)
    with ProgressBar("") as progress:
        result = probe_pos(
            elmo,
            *parts,
            layers=chosen,
            seeds=range(seeds),
            control=control,
            settings=settings,
            folder=vectors,
            progress=progress,
        )
    if figure is not None:
        _draw_pos(result, figure, overwrite)
    click.echo(_json(_pos_facts(result)) if as_json else _pos_table(result, seeds))


@probe.command(short_help="Word senses, by the nearest sense mean in each layer.")
@click.argument("train", type=click.Path(path_type=Path))
@click.argument("tests", metavar="TEST...", nargs=-1, required=True, type=click.Path(path_type=Path))
@model_option
@options_option
@click.option(
    "--inventory",
    type=click.Path(path_type=Path),
    help="Senses of each lemma in order: WordNet's index.sense, or lemma, POS, keys with tabs between.",
)
@click.option(
    "--senses", type=click.Path(path_type=Path), help="Keep the sense means in this file: to resume, to reuse."
)
@click.option("--answers", type=click.Path(path_type=Path), help="Write key files into this new folder, for a scorer.")
@json_option
@figure_option
@device_option
@overwrite_option
def wsd(
    train: Path,
    tests: tuple[Path, ...],
    model: str | None,
    options: str | None,
    inventory: Path | None,
    senses: Path | None,
    answers: Path | None,
    as_json: bool,
    figure: Path | None,
    device: str | None,
    overwrite: bool,
) -> None:
    """Tell word senses apart by the nearest mean of a sense's vectors, layer by layer.

    TRAIN and TEST are *.data.xml files of the unified evaluation framework with their *.gold.key.txt beside them, or
    folders that hold such a pair; .gz and .xz too. Words that TRAIN did not have take the inventory's first sense;
    without --inventory they go without an answer. Scores are those of the official scorer.
    """
    from elmokit.embedder import Elmo
    from elmokit.io.atomic import check_output_path
    from elmokit.io.figures import check_figure_path
    from elmokit.probes.sense_files import find_sense_set, read_inventory
    from elmokit.probes.senses import ANSWERS, probe_senses, write_answers

    if figure is not None:
        check_figure_path(figure, overwrite)
    if answers is not None:
        check_output_path(answers, overwrite, folder=True, parts=[ANSWERS])
    train_set, test_sets = find_sense_set(train), [find_sense_set(test) for test in tests]
    known = None if inventory is None else read_inventory(inventory)
    elmo = Elmo.from_pretrained(model, options=options, device=device)
    with ProgressBar("") as progress:
        result = probe_senses(elmo, train_set, test_sets, known, senses, progress)
    if answers is not None:
        write_answers(result, answers, overwrite)
    if figure is not None:
        _draw_wsd(result, figure, overwrite)
    click.echo(_json(_wsd_facts(result)) if as_json else _wsd_table(result))


def layer_numbers(text: str | None) -> list[int] | None:
    """Layers as they stand in a flag.

    Raises:
        ConfigError: they are no numbers with commas between.
    """
    if text is None:
        return None
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(f"--layers is {text!r}; give layer numbers with commas between, such as 0,2.") from None


def _json(facts: dict[str, Any]) -> str:
    return json.dumps(facts, indent=2, ensure_ascii=False)


def _title(name: str) -> str:
    return f"layer {name}" if name.isdigit() else name


def _pos_facts(result: PosResult) -> dict[str, Any]:
    rows = [
        {
            "name": row.name,
            "accuracy": row.accuracy,
            "deviation": row.deviation,
            "accuracies": row.accuracies,
            "controls": row.controls,
            "selectivity": row.selectivity,
            "weights": row.weights,
        }
        for row in result.rows
    ]
    return {
        "train_tokens": result.n_train_tokens,
        "test_tokens": result.n_test_tokens,
        "tags": result.n_tags,
        "unknown_tags": result.n_unknown_tags,
        "most_frequent_tag": result.baseline,
        "rows": rows,
    }


def _pos_table(result: PosResult, seeds: int) -> str:
    lines = [
        f"{result.n_tags} tags, {result.n_train_tokens:,} words to learn from, {result.n_test_tokens:,} to test on",
        f"{'most frequent tag':<18} {result.baseline:7.2%}",
    ]
    for row in result.rows:
        line = f"{_title(row.name):<18} {row.accuracy:7.2%}"
        if seeds > 1:
            line += f" ± {row.deviation:.2%}"
        if row.selectivity is not None:
            line += f"   control {row.accuracy - row.selectivity:.2%}, selectivity {row.selectivity:.2%}"
        if row.weights is not None:
            line += f"   weights {' '.join(f'{weight:.2f}' for weight in row.weights)}"
        lines.append(line)
    if result.n_unknown_tags:
        lines.append(f"{result.n_unknown_tags:,} test words have a tag that training has not; they count as wrong.")
    return "\n".join(lines)


def _draw_pos(result: PosResult, path: Path, overwrite: bool) -> None:
    from elmokit.probes.layer_figure import Series, draw_layers

    accuracies = [100 * row.accuracy for row in result.rows]
    series = [Series("linear probe", accuracies, [100 * row.deviation for row in result.rows])]
    if all(row.selectivity is not None for row in result.rows):
        series.append(Series("control task", [100 * (row.accuracy - (row.selectivity or 0)) for row in result.rows]))
    levels = {"most frequent tag": 100 * result.baseline}
    draw_layers(path, [row.name for row in result.rows], series, levels, "accuracy (%)", overwrite)


def _wsd_facts(result: SenseResult) -> dict[str, Any]:
    rows = [
        {
            "name": row.name,
            "scores": {name: score._asdict() for name, score in row.scores.items()},
            "parts_of_speech": {name: score._asdict() for name, score in row.by_pos.items()},
        }
        for row in result.rows
    ]
    return {
        "senses": result.n_senses,
        "instances": result.n_instances,
        "backed_off": result.n_backed_off,
        "rows": rows,
    }


def _wsd_table(result: SenseResult) -> str:
    """F1 in percent: a row for each layer, a column for each test set, then one for each part of speech."""
    sets, parts = list(result.rows[0].scores), list(result.rows[0].by_pos)
    widths = [max(8, len(name) + 1) for name in [*sets, *parts]]
    heads = "".join(f"{name:>{width}}" for name, width in zip([*sets, *parts], widths, strict=True))
    lines = [f"{'F1 in percent':<14}{heads}"]
    for row in result.rows:
        scores = [row.scores[name] for name in sets] + [row.by_pos[name] for name in parts]
        cells = "".join(f"{100 * score.f1:>{width}.1f}" for score, width in zip(scores, widths, strict=True))
        lines.append(f"{_title(row.name):<14}{cells}")
    asked, missed = sum(result.n_instances.values()), sum(result.n_backed_off.values())
    lines.append(f"{result.n_senses:,} senses learnt; {missed:,} of {asked:,} instances had none in training")
    incomplete = [row for row in result.rows for score in row.scores.values() if score.precision != score.recall]
    if incomplete:
        lines.append("Some instances go without an answer; --json gives precision and recall, --inventory fills in.")
    return "\n".join(lines)


def _draw_wsd(result: SenseResult, path: Path, overwrite: bool) -> None:
    from elmokit.probes.layer_figure import Series, draw_layers

    layers = [row for row in result.rows if row.name not in ("first", "most frequent")]
    rules = [row for row in result.rows if row.name in ("first", "most frequent")]
    last = list(result.rows[0].scores)[-1]  # the pooled one, where there are several
    series = [Series(name, [100 * row.scores[name].f1 for row in layers]) for name in result.rows[0].scores]
    levels = {f"{row.name} sense ({last})": 100 * row.scores[last].f1 for row in rules}
    draw_layers(path, [row.name for row in layers], series, levels, "F1 (%)", overwrite)
