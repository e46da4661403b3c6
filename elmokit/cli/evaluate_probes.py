"""``elmokit evaluate pos`` and ``evaluate wsd``: measure what a model's layers encode."""

from __future__ import annotations

import json
from pathlib import Path

import click

from elmokit.cli.common import (
    device_option,
    figure_option,
    json_option,
    model_option,
    options_option,
    overwrite_option,
)
from elmokit.cli.options import OutputPath, layer_numbers
from elmokit.config import check_at_least
from elmokit.io.progress import ProgressBar


@click.command(short_help="Probe parts of speech with a linear classifier.")
@click.argument("train", type=click.Path(path_type=Path))
@click.argument("test", type=click.Path(path_type=Path))
@model_option
@options_option
@click.option("--tags", help="The tags: in CoNLL-U a column's name, in columns a number from 1.  [default: upos; 2]")
@click.option("--words", default=1, show_default=True, help="The column of the words, in a file of columns.")
@click.option("--layers", metavar="N[,N...]", help="Layers to probe.  [default: all]")
@click.option("--seeds", default=1, show_default=True, help="Number of trainings; their mean and deviation are shown.")
@click.option("--control", is_flag=True, help="Also run the control task: a random tag per word (doubles the time).")
@click.option("--sentences", type=int, help="Train on the first N sentences only.")
@click.option("--epochs", default=5, show_default=True, help="Number of epochs of the classifier.")
@click.option("--vectors", type=OutputPath(), help="Keep the vectors in this directory, for later runs.")
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
    """Train a linear part-of-speech classifier on each layer and show its accuracy.

    TRAIN and TEST are CoNLL-U files (.conllu, .conllup), or files of columns separated by spaces or tabs. They can be
    compressed (.gz, .xz, .zst).
    """
    from elmokit.embedder import Elmo
    from elmokit.io.figures import check_figure_path
    from elmokit.probes.linear import LinearSettings
    from elmokit.probes.pos import probe_pos
    from elmokit.probes.tagged import read_tagged

    if sentences is not None:
        check_at_least("--sentences", sentences, 1)
    check_at_least("--seeds", seeds, 1)
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
        result.draw(figure, overwrite)
    click.echo(json.dumps(result.to_dict(), indent=2, ensure_ascii=False) if as_json else result.to_text())


@click.command(short_help="Probe word senses with a nearest-mean classifier.")
@click.argument("train", type=click.Path(path_type=Path))
@click.argument("tests", metavar="TEST...", nargs=-1, required=True, type=click.Path(path_type=Path))
@model_option
@options_option
@click.option(
    "--inventory",
    type=click.Path(path_type=Path),
    help="The senses of each lemma in order: WordNet's index.sense, or a table of lemma, POS and keys.",
)
@click.option("--senses", type=OutputPath(), help="Keep the sense means in this file, for later runs.")
@click.option("--answers", type=OutputPath(), help="Write key files for the official scorer here.")
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
    """Disambiguate words by the nearest mean vector of a sense, with each layer, and show the official scores.

    TRAIN and TEST are *.data.xml files of the unified evaluation framework with their *.gold.key.txt next to them, or
    directories with such a pair. They can be compressed (.gz, .xz, .zst). Words that are not in TRAIN get the first
    sense of the inventory; without --inventory they have no answer.
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
        result.draw(figure, overwrite)
    click.echo(json.dumps(result.to_dict(), indent=2, ensure_ascii=False) if as_json else result.to_text())
