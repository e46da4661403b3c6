"""Train a task, and open and evaluate the trained model: the functions behind ``elmokit task``."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch

from elmokit.config import check_at_least, check_choice, write_json
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.elmo_module import ElmoModule
from elmokit.embedding.fingerprint import fingerprint
from elmokit.errors import (
    ConfigError,
    ModelNotFoundError,
    TextError,
    UnknownLabelError,
)
from elmokit.formats.folder import DEFAULT_MODEL
from elmokit.network.tensors import parse_device
from elmokit.storage.progress import ProgressCallback
from elmokit.storage.text_files import path_list
from elmokit.storage.workspace import check_folder
from elmokit.tasks.allennlp.archive_files import is_task_archive
from elmokit.tasks.allennlp.task_archive import OpenedArchive, open_task_archive
from elmokit.tasks.config_file import load_config
from elmokit.tasks.inputs import ComputedLayers, ElmoLayers, ElmoShape, Inputs, LayersInModel
from elmokit.tasks.layer_cache import LayerCache
from elmokit.tasks.run_folder import (
    ARCHIVE_SEED,
    CONFIG,
    FACTS,
    FILES,
    FORMER,
    OWN_BILM,
    RESULTS,
    SEED_FILES,
    VOCABULARY,
    check_bilm,
    check_recordable,
    data_checksums,
    finished_seeds,
    load_best_weights,
    mean_and_deviation,
    read_result,
    read_vocabulary,
    resolve_path,
    run_settings,
    vocabulary_content,
    write_facts,
    write_start,
)
from elmokit.tasks.task import AnyModel, AnyTask, Labels, TaskSetup, Tokenize
from elmokit.tasks.task_config import ElmoConfig, expand_paths
from elmokit.tasks.task_loop import EvaluationCallback, TaskTraining, train_seed
from elmokit.tasks.task_vocabulary import (
    Coverage,
    TaskVocabulary,
    make_vocabulary,
)
from elmokit.tasks.trained_bilm import finetune_for_task
from elmokit.text.batching import read_ahead
from elmokit.text.first_lines import check_split, check_tokens, is_json_object, look_ahead
from elmokit.text.text import Text, is_conllu
from elmokit.text.tokenize import split_tokens
from elmokit.training.training_run import Run, damage_errors

READ_AHEAD_EXAMPLES = 256


def train_task(
    task: AnyTask,
    config: Any,
    run: str | Path,
    *,
    device: str | torch.device = "cpu",
    progress: ProgressCallback | None = None,
    on_evaluation: EvaluationCallback | None = None,
    on_coverage: Callable[[str, Coverage], None] | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train a task's model, once for each of the config's seeds.

    If the training is interrupted, the same call continues it.

    Args:
        task: The task.
        config: Its config, for example from :func:`elmokit.tasks.config_file.load_config`.
        run: The run directory. A run with the same config and data in it is continued; seeds can be added.
        device: The device to compute on, such as cuda.
        progress: Called with the stages ``"layers"`` (tokens through a frozen biLM), ``"seed N"`` (training steps) and
            ``"predict"`` (dev examples); for a config with ``elmo.finetune`` also ``"fine-tune"``.
        on_evaluation: Called after each evaluation on dev.
        on_coverage: Called before training for each table of pretrained word vectors, with its name and coverage.
        overwrite: Start over: replace the run in the directory.

    Returns:
        The content of ``results.json``: the results of all seeds, and the mean and standard deviation of dev scores.

    Raises:
        ConfigError, TextError, ModelError: The config, the data or the biLM cannot be used.
        OutputError: The directory is not a run, was started with other settings, or cannot be written.
        TrainingError: The training failed.
        LockedError: Another process is training in the directory.

    Example:
        >>> task, config = load_config("ner.toml")
        >>> results = train_task(task, config, "ner-run")
        >>> results["dev"]["f1"]["mean"]
    """
    path = Path(run)
    check_folder(path, FORMER, overwrite)
    torch_device = parse_device(device)
    _check_config(task, config)
    examples = _read_all(task, config)
    labels = task.labels([*examples.train, *examples.dev], config)
    vocabulary = make_vocabulary(task, config, examples.train, examples.others)
    if on_coverage is not None:
        for name, coverage in vocabulary.coverage.items():
            on_coverage(name, coverage)
    elmo = None
    if config.elmo is not None:
        elmo = _open_elmo(config.elmo, config.elmo.model, torch_device)
    _check_model(task, config, vocabulary, labels, elmo)
    content = vocabulary_content(vocabulary.vocabularies, labels)
    checksums = data_checksums(task, config)
    settings = run_settings(task, config, checksums, content, elmo)
    # Each seed is a run of its own inside this one.
    with Run(path, settings, FILES, FORMER, overwrite) as whole_run:
        _start(whole_run, task, config, content)
        if elmo is not None and config.elmo.finetune is not None:
            elmo = _finetuned(task, config.elmo, path, examples.train, torch_device, progress)
        write_facts(path, task, vocabulary.coverage, elmo, {"device": str(torch_device), "data": checksums})
        layers = None
        trained_elmo = None
        if elmo is not None:
            layers = _layers_of(elmo, config.elmo, config.elmo.cache or path / "layers")
            if config.elmo.trainable:
                trained_elmo = elmo
        setup = TaskSetup(task, config, Inputs(vocabulary.vocabularies, layers), labels, torch_device)
        _fill_cache(setup, [*examples.train, *examples.dev], progress)
        training = TaskTraining(
            setup,
            examples.train,
            examples.dev,
            vocabulary.initial_vectors,
            trained_elmo,
            progress=progress,
            on_evaluation=on_evaluation,
        )
        return _train_seeds(training, path)


class _Examples(NamedTuple):
    """The examples for training."""

    train: list[Any]
    dev: list[Any]
    others: list[Any]
    """The dev and test examples, whose words get pretrained vectors, too."""


def _check_config(task: AnyTask, config: Any) -> None:
    """Refuse configs that cannot be trained, before reading any data."""
    task.check_inputs(config)
    if config.elmo is not None:  # "continued" is only for models trained by AllenNLP
        check_choice("elmo.start", config.elmo.start, ("warm", "zero"))
    check_recordable(task, config)


def _read_all(task: AnyTask, config: Any) -> _Examples:
    """Read all examples, and sample the training examples according to ``train_ratio``."""
    train = _read_examples(task, config, "train")
    texts = []
    for example in train:
        sentences = map(tuple, task.texts(example))
        texts.append(tuple(sentences))
    sample = [train[index] for index in sample_texts(texts, config.data.train_ratio)]
    dev = _read_examples(task, config, "dev")
    others = list(dev)
    if config.data.test:
        others += _read_examples(task, config, "test")
    return _Examples(sample, dev, others)


def _check_model(task: AnyTask, config: Any, vocabulary: TaskVocabulary, labels: Labels, elmo: Elmo | None) -> None:
    """Build a model once, so settings that do not fit together are an error before anything is written."""
    layers = None if elmo is None else LayersInModel(ElmoShape.of(elmo))
    inputs = Inputs(vocabulary.vocabularies, layers)
    TaskSetup(task, config, inputs, labels, torch.device("cpu")).build(vocabulary.initial_vectors)


def _start(run: Run, task: AnyTask, config: Any, content: Mapping[str, Any]) -> None:
    """Write the vocabulary, and the config with the seeds of all calls."""
    earlier = run.progress.get("seeds", ())
    seeds = tuple(dict.fromkeys([*earlier, *config.train.seeds]))  # without repeats
    training = replace(config.train, seeds=seeds)
    write_start(run.folder, task, replace(config, train=training), content)
    run.commit({"seeds": seeds})


def _fill_cache(setup: TaskSetup, examples: Sequence[Any], progress: ProgressCallback | None) -> None:
    """Add the layers of examples to the cache, if the layers are cached."""
    layers = setup.inputs.layers
    if isinstance(layers, LayerCache):
        by_example = map(setup.task.sentences, examples)
        layers.fill(chain.from_iterable(by_example), progress)


def _train_seeds(training: TaskTraining, folder: Path) -> dict[str, Any]:
    """Train each seed of the config, and write the results of all finished seeds."""
    task = training.setup.task
    for seed in training.setup.config.train.seeds:
        with Run(folder / f"seed-{seed}", {"seed": seed}, SEED_FILES) as seed_run:
            train_seed(training, seed, seed_run)
    # Earlier calls may have finished other seeds.
    results = [read_result(folder / f"seed-{seed}") for seed in finished_seeds(folder)]
    summary = {
        "task": task.name,
        "metric": task.metric,
        "dev": mean_and_deviation([result["dev"] for result in results]),
        "seeds": results,
    }
    write_json(folder / RESULTS, summary)
    return summary


@dataclass(frozen=True)
class TaskRun(TaskSetup):
    """A trained model for evaluation and prediction. :func:`open_run` opens one."""

    model: AnyModel
    seed: int

    def cache_layers(self, examples: Sequence[Any], progress: ProgressCallback | None = None) -> None:
        """Add the biLM's layers for examples to the run's cache. This is faster if several seeds predict for them."""
        _fill_cache(self, examples, progress)

    def read(self, paths: str | Sequence[str], count_unknown_labels: bool = False) -> list[Any]:
        """Read the examples of files, and check that the run knows their labels.

        Args:
            paths: Paths, patterns or directories, as in a config.
            count_unknown_labels: Accept unknown gold labels. The scores count them as missed.

        Raises:
            UnknownLabelError: A file has a label that is unknown to the run.
            TextError: A file cannot be read, or has no gold labels.
        """
        files = expand_paths(paths if isinstance(paths, str) else tuple(paths))
        examples = _examples_in(files, partial(self.task.read, config=self.config), "the data")
        for example in examples:
            try:
                self.task.check(example, self.labels)
            except UnknownLabelError:
                if not count_unknown_labels:
                    raise
        return examples

    def predict(
        self, examples: Sequence[Any], progress: ProgressCallback | None = None, best: int | None = None
    ) -> list[Any]:
        """Return one prediction per example, in the same order.

        Args:
            examples: From ``read``, for example.
            progress: Called with the stage ``"predict"``.
            best: For question answering: add this many of the most probable answers to each answer, as its ``best``.

        Raises:
            ConfigError: ``best`` is given for another task.
        """
        check_at_least("best", best, 1, optional=True)
        return self.predict_with(self.model, examples, progress, best)

    def score(self, examples: Sequence[Any], progress: ProgressCallback | None = None) -> dict[str, float]:
        """Predict for examples with gold labels, and return the official scores in percent."""
        scores: dict[str, float] = self.task.score(examples, self.predict(examples, progress), self.config)
        return scores

    def predict_file(self, text: Text | str | Path, *, best: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Read the examples of a text, and yield each with its prediction.

        Args:
            text: The file, in a format of the task; ``-`` for standard input. A :class:`~elmokit.Text` of one file
                selects another tokenization, such as ``Text(path, kind="raw")``. By default, tokens are separated by
                spaces, and text that is certainly raw is an error.
            best: For question answering: list this many of the most probable answers.

        Raises:
            TextError: The text cannot be read, has another format, or looks raw.
            ConfigError: The task cannot read this kind of text, there are several files, or ``best`` is given for
                another task.
        """
        if not isinstance(text, Text):
            text = Text(text, refuse_raw=True)
        path = _only_file(text)
        if text.kind in ("fasta", "words"):
            raise ConfigError(f"Tasks cannot read text of the kind {text.kind!r}.")
        split = text.split
        if text.kind == "raw" or is_conllu(path):
            split = split_tokens
        lines: Iterable[str]
        if not self.task.reads_tokens:
            if text.kind == "raw":
                raise ConfigError(f"The task {self.task.name} splits its texts itself; omit --raw.")
            lines = map(itemgetter(1), text.numbered_lines(path, formats=self.task.text_formats))
        elif text.kind == "raw":
            lines = _lines_of_raw_text(text)
        else:
            lines = _tokenized_lines(text, self.task.text_formats, split)
        yield from self.predict_lines(lines, str(path), split, best)

    def predict_lines(
        self, lines: Iterable[str], name: str, tokenize: Tokenize, best: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """Read examples from lines of text, and yield each with its prediction. Reads a few hundred ahead."""
        examples = self.task.read_text(lines, name, tokenize, self.config)
        for chunk in read_ahead(examples, max_items=READ_AHEAD_EXAMPLES):
            yield from zip(chunk, self.predict(chunk, best=best), strict=True)


def _only_file(text: Text) -> str | Path:
    paths = path_list(text.paths)
    if len(paths) != 1:
        raise ConfigError(f"predict_file reads one file, but the text has {len(paths)}.")
    return paths[0]


def _tokenized_lines(text: Text, formats: Sequence[str], split: Tokenize) -> Iterator[str]:
    """Return the lines of a text. Refuse text that is certainly raw."""
    path = _only_file(text)
    head, numbered = look_ahead(text.numbered_lines(path, formats=formats))
    is_json = any(is_json_object(line) for _, line in head)
    if not is_json and not is_conllu(path):
        sentences = [split(line) for _, line in head]
        if split is split_tokens:
            check_tokens(str(path), sentences, text.refuse_raw)
        else:
            check_split(str(path), sentences)
    return map(itemgetter(1), numbered)


def _lines_of_raw_text(text: Text) -> Iterator[str]:
    """Yield the sentences of raw text as lines of tokens, and blank lines, which end documents."""
    for line in text.lines():
        for tokens in line.sentences or [[]]:
            yield " ".join(tokens)


def open_run(run: str | Path, seed: int | None = None, device: str | torch.device = "cpu") -> TaskRun:
    """Open the trained model of a run or of an AllenNLP archive.

    Args:
        run: The run directory, an AllenNLP archive (``model.tar.gz``), or the directory of an unpacked one.
        seed: The seed whose model to open; None for the best on dev. An archive has a single model.
        device: The device to compute on, such as cuda.

    Raises:
        ModelNotFoundError: The run or seed does not exist, or its training is not finished.
        FormatError: The run is damaged.
        TrainingError: Its biLM has changed.
        ConfigError: The device cannot be used.
        ModelError, ConfigError: The archive cannot be opened; see
            :func:`elmokit.tasks.allennlp.task_archive.open_task_archive`.
    """
    run = Path(run)
    torch_device = parse_device(device)
    if is_task_archive(run) and not (run / CONFIG).is_file():
        _check_seed(run, ARCHIVE_SEED if seed is None else seed, [ARCHIVE_SEED])
        opened = open_task_archive(run)
        if opened.assumed is not None:
            warnings.warn(f"{run}: {opened.assumed}", stacklevel=2)
        return run_of_archive(opened, torch_device)
    task, config = load_config(run / CONFIG)
    finished = finished_seeds(run)
    if seed is None:
        seed = _best_seed(run, finished, task.metric)
    seed = _check_seed(run, seed, finished)
    vocabularies, labels = read_vocabulary(run)
    layers: ElmoLayers | None = None
    bilm = None
    if config.elmo is not None:
        elmo = _open_elmo_of(config.elmo, run, seed, torch_device)
        cache = resolve_path(run, config.elmo.cache)
        layers = _layers_of(elmo, config.elmo, cache or run / "layers")
        if config.elmo.trainable:
            bilm = ElmoModule(elmo.model, start=elmo.start, n_mixes=0)
    inputs = Inputs(vocabularies, layers)
    with damage_errors(run / VOCABULARY):  # it has to fit the config
        model = TaskSetup(task, config, inputs, labels, torch_device).build(bilm=bilm)
    load_best_weights(model, run / f"seed-{seed}")
    model = model.to(torch_device).eval()
    return TaskRun(task, config, inputs, labels, torch_device, model=model, seed=seed)


def _layers_of(elmo: Elmo, config: ElmoConfig, cache: str | Path) -> ElmoLayers:
    """Return the source of ELMo's layers for a config. The layers of a frozen biLM are cached in the directory."""
    if config.trainable:
        return LayersInModel(ElmoShape.of(elmo))
    if elmo.start == "stateful":
        return ComputedLayers(elmo)
    return LayerCache(cache, elmo, config.cache_dtype)


def _best_seed(run: Path, finished: Sequence[int], metric: str) -> int | None:
    """Return the seed with the best dev score; the first of equal ones, and None if no training is finished."""
    best: int | None = None
    best_score = 0.0
    for seed in finished:
        score = read_result(run / f"seed-{seed}")["dev"].get(metric, 0.0)
        if best is None or score > best_score:
            best, best_score = seed, score
    return best


def _check_seed(run: Path, seed: int | None, finished: Sequence[int]) -> int:
    """Return the seed if its training is finished; otherwise raise an error."""
    if seed is not None and seed in finished:
        return seed
    which = "" if seed is None else f" with seed {seed}"
    advice = "Run elmokit task train again"
    if finished:
        advice = f"Finished: {', '.join(map(str, finished))}"
    raise ModelNotFoundError(f"{run} has no finished training{which}. {advice}.")


def run_of_archive(opened: OpenedArchive, device: torch.device) -> TaskRun:
    """Return the model of an opened archive for evaluation and prediction."""
    setup, inputs = opened.setup, opened.setup.inputs
    if opened.elmo is not None:
        # Layers are not cached, because an archive has no directory for them.
        inputs = Inputs(inputs.vocabularies, ComputedLayers(opened.elmo.to(device)))
    model = opened.model.to(device).eval()
    return TaskRun(setup.task, setup.config, inputs, setup.labels, device, model=model, seed=ARCHIVE_SEED)


def evaluate_run(
    run: str | Path,
    paths: str | Sequence[str],
    seed: int | None = None,
    *,
    count_unknown_labels: bool = False,
    device: str | torch.device = "cpu",
    progress: ProgressCallback | None = None,
) -> tuple[int, dict[int, dict[str, float]]]:
    """Compute the official scores of a run's models on labeled files.

    Args:
        run: The run directory.
        paths: Files in the format of the training data.
        seed: Evaluate only this seed; None for all finished seeds.
        count_unknown_labels: Accept gold labels that are unknown to the run, and count them as missed.
        device: The device to compute on, such as cuda.
        progress: Called with the stages ``"layers"`` and ``"predict"``.

    Returns:
        The number of examples, and the scores of each seed in percent.

    Raises:
        ElmoError: As :func:`open_run` and :meth:`TaskRun.read`.
    """
    scores: dict[int, dict[str, float]] = {}
    examples: list[Any] = []
    seeds: list[int | None] = [seed]
    if seed is None:
        seeds = [*finished_seeds(Path(run))]
    for number in seeds or [None]:  # without a finished training, open_run explains what is missing
        opened = open_run(run, number, device)
        if not scores:
            examples = opened.read(paths, count_unknown_labels)
            if len(seeds) > 1:
                opened.cache_layers(examples, progress)
        scores[opened.seed] = opened.score(examples, progress)
    return len(examples), scores


def _read_examples(task: AnyTask, config: Any, split: str) -> list[Any]:
    """Read the examples of a split of the data: train, dev or test."""
    read = task.read_training if split == "train" else task.read
    paths = expand_paths(getattr(config.data, split))
    return _examples_in(paths, partial(read, config=config), f"data.{split}")


def _examples_in(paths: Sequence[str], read: Callable[[str], Iterable[Any]], what: str) -> list[Any]:
    """Read the examples of files. Errors say that ``what`` is empty."""
    examples: list[Any] = []
    for path in paths:
        examples += read(path)
    if not examples:
        raise TextError(f"There are no examples in {what}: {', '.join(paths) or 'no file is given'}.")
    return examples


def sample_texts(texts: Sequence[Hashable], ratio: float) -> list[int]:
    """Draw a random sample of the distinct texts. Smaller samples are subsets of larger ones.

    Args:
        texts: The text of each example. Examples of the same text stay together.
        ratio: The fraction of texts to draw, above 0 and at most 1. At least one text is drawn.

    Returns:
        The indices of the examples of the sampled texts, in order.
    """
    if ratio >= 1:
        return list(range(len(texts)))
    distinct = list(dict.fromkeys(texts))
    random.Random(0).shuffle(distinct)
    n_chosen = math.ceil(round(ratio * len(distinct), 6))
    chosen = set(distinct[: max(1, n_chosen)])
    return [index for index, text in enumerate(texts) if text in chosen]


def _open_elmo(config: ElmoConfig, source: str | None, device: torch.device) -> Elmo:
    return Elmo.from_pretrained(source, start=config.elmo_start, device=device)


def _open_elmo_of(config: ElmoConfig, run: Path, seed: int, device: torch.device) -> Elmo:
    """Open the biLM of a finished training: the one that was trained with the model, or the run's frozen one."""
    if config.trainable:
        source: str | None = str(run / f"seed-{seed}" / OWN_BILM)
        facts = f"seed-{seed}/result.json"
    else:
        source = _model_of(config, run)
        facts = FACTS
    elmo = _open_elmo(config, source, device)
    check_bilm(run, fingerprint(elmo.model, elmo.start), facts)
    return elmo


def _model_of(config: ElmoConfig, run: Path) -> str | None:
    """Return the source of a run's frozen biLM: the run's own (fine-tuned, or from an archive), or the config's."""
    if config.finetune is not None or (run / OWN_BILM).is_dir():
        return str(run / OWN_BILM)
    if config.model == DEFAULT_MODEL:
        return config.model
    return resolve_path(run, config.model)


def _finetuned(
    task: AnyTask,
    config: ElmoConfig,
    run: Path,
    train: Sequence[Any],
    device: torch.device,
    progress: ProgressCallback | None,
) -> Elmo:
    """Fine-tune the biLM on the distinct sentences of the training examples, unless the run already did."""
    if not (run / OWN_BILM).exists():
        assert config.finetune is not None
        distinct: dict[tuple[str, ...], None] = {}  # in order
        for example in train:
            for sentence in task.texts(example):
                if sentence:
                    distinct[tuple(sentence)] = None
        finetune_for_task(config.model, list(distinct), config.finetune, run / OWN_BILM, device, progress)
    return _open_elmo(config, str(run / OWN_BILM), device)
