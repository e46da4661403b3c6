"""``elmokit evaluate pos`` and ``evaluate wsd``: measure what a model's layers encode."""

from __future__ import annotations

from pathlib import Path

import click

from elmokit.cli.evaluation_options import EvaluationOptions, evaluation_options
from elmokit.cli.options import GroupedCommand, OutputPath, layer_numbers
from elmokit.config import check_at_least
from elmokit.storage.progress import ProgressBar


@click.command(cls=GroupedCommand, short_help="Probe parts of speech with a linear classifier.")
@click.argument("train", type=click.Path(path_type=Path))
@click.argument("test", type=click.Path(path_type=Path))
@click.option("--tags", help="The tags: in CoNLL-U a column's name, in columns a number from 1.  [default: upos; 2]")
@click.option("--words", default=1, show_default=True, help="The column of the words, in a file of columns.")
@click.option("--layers", metavar="N[,N...]", help="Layers to probe.  [default: all]")
@click.option("--seeds", default=1, show_default=True, help="Number of trainings; their mean and deviation are shown.")
@click.option("--control", is_flag=True, help="Also run the control task: a random tag per word (doubles the time).")
@click.option("--sentences", type=int, help="Train on the first N sentences only.")
@click.option("--epochs", default=5, show_default=True, help="Number of epochs of the classifier.")
@click.option("--vectors", type=OutputPath(), help="Keep the vectors in this directory, for later runs.")
@evaluation_options
def pos(
    common: EvaluationOptions,
    train: Path,
    test: Path,
    tags: str | None,
    words: int,
    layers: str | None,
    seeds: int,
    control: bool,
    sentences: int | None,
    epochs: int,
    vectors: Path | None,
) -> None:
    """Train a linear part-of-speech classifier on each layer and show its accuracy.

    TRAIN and TEST are CoNLL-U files (.conllu, .conllup), or files of columns separated by spaces or tabs. They can be
    compressed (.gz, .xz, .zst).

    \b
    Examples:
      elmokit evaluate pos train.conllu dev.conllu
      elmokit evaluate pos train.conllu dev.conllu --tags xpos --seeds 3 --control --figure pos.png
    """
    from elmokit.evaluation.pos import LinearSettings, probe_pos
    from elmokit.evaluation.tagged import read_tagged

    if sentences is not None:
        check_at_least("--sentences", sentences, 1)
    check_at_least("--seeds", seeds, 1)
    settings = LinearSettings(epochs=epochs)
    chosen = layer_numbers(layers)
    common.check_figure()
    parts = list(read_tagged(train, tags, words))[:sentences], list(read_tagged(test, tags, words))
    elmo = common.open_elmo()
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
    common.show(result)


@click.command(cls=GroupedCommand, short_help="Probe word senses with a nearest-mean classifier.")
@click.argument("train", type=click.Path(path_type=Path))
@click.argument("tests", metavar="TEST...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--inventory",
    type=click.Path(path_type=Path),
    help="The senses of each lemma in order: WordNet's index.sense, or a table of lemma, POS and keys.",
)
@click.option("--senses", type=OutputPath(), help="Keep the sense means in this file, for later runs.")
@click.option("--answers", type=OutputPath(), help="Write key files for the official scorer here.")
@evaluation_options
def wsd(
    common: EvaluationOptions,
    train: Path,
    tests: tuple[Path, ...],
    inventory: Path | None,
    senses: Path | None,
    answers: Path | None,
) -> None:
    """Disambiguate words by the nearest mean vector of a sense, with each layer, and show the official scores.

    TRAIN and TEST are *.data.xml files of the unified evaluation framework with their *.gold.key.txt next to them, or
    directories with such a pair. They can be compressed (.gz, .xz, .zst). Words that are not in TRAIN get the first
    sense of the inventory; without --inventory they have no answer.

    \b
    Examples:
      elmokit evaluate wsd semcor.data.xml senseval3.data.xml
      elmokit evaluate wsd SemCor/ senseval2/ senseval3/ --inventory index.sense --senses means --answers keys
    """
    from elmokit.evaluation.sense_files import find_sense_set, read_inventory
    from elmokit.evaluation.senses import ANSWERS, probe_senses, write_answers
    from elmokit.storage.atomic import check_output_path

    common.check_figure()
    if answers is not None:
        check_output_path(answers, common.overwrite, folder=True, parts=[ANSWERS])
    train_set, test_sets = find_sense_set(train), [find_sense_set(test) for test in tests]
    known = None if inventory is None else read_inventory(inventory)
    elmo = common.open_elmo()
    with ProgressBar("") as progress:
        result = probe_senses(elmo, train_set, test_sets, known, senses, progress)
    if answers is not None:
        write_answers(result, answers, common.overwrite)
    common.show(result)
