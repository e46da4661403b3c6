"""``elmokit evaluate pos`` and ``evaluate wsd``: measure what a model's layers encode."""

from __future__ import annotations

from pathlib import Path

from elmokit.cli.evaluation_options import EvaluationOptions
from elmokit.cli.parameters import OptionalOutput
from elmokit.cli.running import resumable_command
from elmokit.config import check_at_least
from elmokit.storage.progress import ProgressBar


def pos(
    train: Path,
    test: Path,
    *,
    tags: str | None = None,
    words: int = 1,
    layers: tuple[int, ...] | None = None,
    seeds: int = 1,
    control: bool = False,
    sentences: int | None = None,
    epochs: int = 5,
    vectors: OptionalOutput = None,
    common: EvaluationOptions,
) -> None:
    """Train a linear part-of-speech classifier on each layer and show its accuracy.

    TRAIN and TEST are CoNLL-U files (.conllu, .conllup), or files of columns separated by spaces or tabs. They can be
    compressed (.gz, .xz, .zst).

    Args:
        tags: The tags: in CoNLL-U a column's name, in columns a number from 1.  [default: upos; 2]
        words: The column of the words, in a file of columns.
        layers: Layers to probe.  [default: all]
        seeds: Number of trainings; their mean and deviation are shown.
        control: Also run the control task: a random tag per word (doubles the time).
        sentences: Train on the first N sentences only.
        epochs: Number of epochs of the classifier.
        vectors: Keep the vectors in this directory, for later runs.

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
    common.check_figure()
    parts = list(read_tagged(train, tags, words))[:sentences], list(read_tagged(test, tags, words))
    elmo = common.open_elmo()
    with resumable_command(lambda: vectors is not None), ProgressBar("") as progress:
        result = probe_pos(
            elmo,
            *parts,
            layers=layers,
            seeds=range(seeds),
            control=control,
            settings=settings,
            folder=vectors,
            overwrite=common.overwrite,
            progress=progress,
        )
    common.show(result)


def wsd(
    train: Path,
    tests: tuple[Path, ...],
    *,
    inventory: Path | None = None,
    senses: OptionalOutput = None,
    answers: OptionalOutput = None,
    common: EvaluationOptions,
) -> None:
    """Disambiguate words by the nearest mean vector of a sense, with each layer, and show the official scores.

    TRAIN and TESTS are *.data.xml files of the unified evaluation framework with their *.gold.key.txt next to them, or
    directories with such a pair. They can be compressed (.gz, .xz, .zst). Words that are not in TRAIN get the first
    sense of the inventory; without --inventory they have no answer.

    Args:
        inventory: The senses of each lemma in order: WordNet's index.sense, or a table of lemma, POS and keys.
        senses: Keep the sense means in this file, for later runs.
        answers: Write key files for the official scorer here.

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
    sense_order = None if inventory is None else read_inventory(inventory)
    elmo = common.open_elmo()
    with resumable_command(lambda: senses is not None), ProgressBar("") as progress:
        result = probe_senses(elmo, train_set, test_sets, sense_order, senses, progress, overwrite=common.overwrite)
    if answers is not None:
        write_answers(result, answers, common.overwrite)
    common.show(result)
