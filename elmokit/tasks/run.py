"""A run: a folder that says all that is needed to repeat it, and the trained models in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from elmokit.config import from_dict, read_toml
from elmokit.embedder import Elmo
from elmokit.errors import (
    ConfigError,
    FormatError,
    ModelNotFoundError,
    OutputError,
    TextError,
    UnknownLabelError,
)
from elmokit.fingerprint import fingerprint
from elmokit.io.atomic import recover_interrupted
from elmokit.nn.devices import usable_device
from elmokit.tasks.batches import subset
from elmokit.tasks.config import ElmoConfig, FinetuneConfig, WordsConfig, expand
from elmokit.tasks.inputs import ElmoShape, InputLayer, Inputs, WordTable
from elmokit.tasks.layer_cache import LayerCache
from elmokit.tasks.loop import Job, Progress, Report, fit, predict_all
from elmokit.tasks.run_folder import (
    AnyTask,
    begin,
    finished_seeds,
    mean_and_deviation,
    read_json,
    where_begun,
    write_facts,
    write_json,
)
from elmokit.tasks.table import config_of
from elmokit.tasks.task import Labels, TaskModel, Tokenize
from elmokit.tasks.vocabulary import Coverage, count_words, make_chars, make_table
from elmokit.training.run_folder import run_lock
from elmokit.weights.open import DEFAULT_MODEL

Finetune = Callable[[str | None, Sequence[Sequence[str]], FinetuneConfig, Path, torch.device], None]
"""Train a biLM (path or name) on sentences, on a device, and write the result to the folder: what ``train/`` offers."""
PREDICTED_AT_ONCE = 256  # examples
TUNED = "bilm"  # the folder in a run for the biLM that it has fine-tuned


def train_task(
    task: AnyTask,
    config: Any,
    run: str | Path,
    *,
    device: str | torch.device = "cpu",
    report: Report = lambda progress: None,
    tell: Callable[[str, Coverage], None] = lambda table, coverage: None,
    finetune: Finetune | None = None,
    resume: bool = False,
    facts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train a task, once for each of the config's seeds.

    Args:
        run: a folder that is not there yet, or with ``resume`` one of a run with the same config and data.
        tell: is told before training, of each table of words with pretrained vectors, how many words lack one.
        finetune: for a config that fine-tunes the biLM first.
        facts: what ``run.json`` says beside its own, such as the command.

    Returns:
        the content of ``results.json``: each seed's result, and the dev scores' mean and deviation.

    Raises:
        ConfigError, TextError, ModelError: the config, the data or the biLM cannot be used.
        OutputError: the folder exists, or cannot be written.
        TrainingError: the folder's run has other settings, or another process is at it; training cannot go on.
    """
    run = Path(run)
    if run.exists() and not (resume and run.is_dir()):
        raise OutputError(f"{run} exists already. Add --resume to go on with a run's folder, or choose another.")
    place = usable_device(device)
    if config.elmo is not None and config.elmo.finetune is not None and finetune is None:
        raise ConfigError("elmo.finetune is set, and no function that fine-tunes a biLM was given to train_task.")
    refuse_no_input(task, config)
    train, dev = _examples(task, config, "train"), _examples(task, config, "dev")
    train = [train[number] for number in subset([_texts(task, example) for example in train], config.data.train_ratio)]
    others = [*dev, *(_examples(task, config, "test") if expand(config.data.test) else ())]
    labels = task.labels([*train, *dev], config)
    vocabulary = _vocabulary(task, config, train, others)
    for name, coverage in vocabulary.coverage.items():
        tell(name, coverage)
    inputs = vocabulary.inputs
    elmo = None if config.elmo is None else _open_elmo(config.elmo, config.elmo.model, place)
    if elmo is not None:
        inputs = _with_elmo(inputs, elmo)

    def build() -> TaskModel[Any, Any]:
        return _build(task, config, inputs, labels, vocabulary.starts)

    build()  # what does not fit together is refused before anything is written
    with run_lock(run):
        recover_interrupted(run)
        begin(run, task, config, {**vocabulary.content, "labels": labels})
        facts = {**(facts or {}), "device": str(place)}
        if elmo is not None and config.elmo is not None:
            if config.elmo.finetune is not None:
                elmo = _finetuned(task, config.elmo, run, train, place, finetune)
            write_facts(run, task, config, vocabulary.coverage, elmo, facts)
            cache = LayerCache(config.elmo.cache or run / "layers", elmo, config.elmo.cache_dtype)
            _fill(cache, task, [*train, *dev], report, config.train.epochs)
            inputs.layers_of = cache.layers
        else:
            write_facts(run, task, config, vocabulary.coverage, None, facts)

        job = Job(task, config, config.train, train, dev, inputs, labels, place)
        results = [fit(job, build, seed, run / f"seed-{seed}", report) for seed in config.train.seeds]
        summary = {
            "task": task.name,
            "metric": task.metric,
            "dev": mean_and_deviation([result["dev"] for result in results]),
            "seeds": results,
        }
        write_json(run / "results.json", summary)
    return summary


@dataclass
class Run:
    """A trained model, ready to judge and to predict."""

    task: AnyTask
    config: Any
    inputs: Inputs
    labels: Labels
    model: TaskModel[Any, Any]
    seed: int
    device: torch.device
    cache: LayerCache | None
    """Of the biLM's layers, where the model has one."""

    def keep_layers(self, examples: Sequence[Any], report: Callable[[int, int], None] = lambda *_: None) -> None:
        """Put the layers of examples into the run's cache, for those that are judged several times."""
        if self.cache is not None:
            self.cache.fill((sentence for one in examples for sentence in self.task.sentences(one)), report)

    def read(self, paths: str | Sequence[str], count_unknown_labels: bool = False) -> list[Any]:
        """The examples of files, their labels checked against the run's.

        Args:
            count_unknown_labels: take gold labels that the run does not know; the scores count them as missed.

        Raises:
            UnknownLabelError: a file holds a label that the run does not know.
            TextError: a file cannot be read, or has no gold labels.
        """
        given = paths if isinstance(paths, str) else tuple(paths)
        examples = [example for path in expand(given) for example in self.task.read(path, self.config)]
        if not examples:
            raise TextError(f"There is no example in {', '.join(expand(given))}.")
        for example in examples:
            try:
                self.task.check(example, self.labels)
            except UnknownLabelError:
                if not count_unknown_labels:
                    raise
        return examples

    def predict(self, examples: Sequence[Any], report: Callable[[int, int], None] = lambda *_: None) -> list[Any]:
        """One prediction for each example, in their order."""
        return predict_all(
            self.task,
            self.model,
            examples,
            self.inputs,
            self.labels,
            self.config,
            self.device,
            self.config.train.batch_size,
            report,
        )

    def score(self, examples: Sequence[Any], report: Callable[[int, int], None] = lambda *_: None) -> dict[str, float]:
        """The official scores of the predictions, in percent."""
        scores: dict[str, float] = self.task.score(examples, self.predict(examples, report), self.config)
        return scores

    def predict_lines(self, lines: Iterable[str], name: str, tokenize: Tokenize) -> Iterator[tuple[Any, Any]]:
        """Examples read from lines of text, each with its prediction; some hundreds are held at a time."""
        pool: list[Any] = []
        for example in self.task.read_text(lines, name, tokenize, self.config):
            pool.append(example)
            if len(pool) == PREDICTED_AT_ONCE:
                yield from zip(pool, self.predict(pool), strict=True)
                pool = []
        yield from zip(pool, self.predict(pool), strict=True)


def open_run(run: str | Path, seed: int | None = None, device: str | torch.device = "cpu") -> Run:
    """Open a run's model.

    Args:
        seed: of the training; None for the one with the best dev score.

    Raises:
        ModelNotFoundError: there is no such run, or seed, or it is not finished.
        FormatError: it is damaged, or its biLM is another one now.
        ConfigError: the device cannot be used.
    """
    run, place = Path(run), usable_device(device)
    if not (run / "config.toml").is_file():
        raise ModelNotFoundError(f"{run} is no run of a task: it has no config.toml.")
    task, config = config_of(read_toml(run / "config.toml"), str(run / "config.toml"))
    finished = finished_seeds(run)
    if seed is None and finished:
        results = {number: read_json(run / f"seed-{number}" / "result.json") for number in finished}
        seed = max(finished, key=lambda number: results[number]["dev"][task.metric])
    if seed not in finished:
        raise ModelNotFoundError(
            f"{run} holds no finished training{'' if seed is None else f' with seed {seed}'}. "
            + (f"Finished seeds: {', '.join(map(str, finished))}." if finished else "Go on with: task train --resume.")
        )
    content = read_json(run / "vocabulary.json")
    try:
        inputs, labels = inputs_from(content), dict(content["labels"])
    except (KeyError, TypeError) as error:
        raise FormatError(f"{run / 'vocabulary.json'} is damaged ({error}). Copy the run again.") from None
    cache = None
    if config.elmo is not None:
        elmo = _open_elmo(config.elmo, _bilm_of(config.elmo, run), place)
        expected = read_json(run / "run.json").get("bilm", {}).get("fingerprint")
        found = fingerprint(elmo.model, elmo.start)
        if expected != found:
            raise FormatError(
                f"{run} was trained with another biLM than the one at {config.elmo.model or 'en-mini'} now "
                f"(fingerprint {expected}, found {found}). Put the old one back, or train again."
            )
        cache = LayerCache(where_begun(run, config.elmo.cache) or run / "layers", elmo, config.elmo.cache_dtype)
        inputs = _with_elmo(inputs, elmo)
        inputs.layers_of = cache.layers
    model = _build(task, config, inputs, labels, {})
    weights = run / f"seed-{seed}" / "best.safetensors"
    try:
        model.load_state_dict(load_file(weights))
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FormatError(f"{weights} does not fit the run ({reason}). Copy the run again.") from None
    return Run(task, config, inputs, labels, model.to(place).eval(), seed, place, cache)


@dataclass(frozen=True)
class _Vocabulary:
    """What ``vocabulary.json`` holds, the tables' first values, and what was counted."""

    inputs: Inputs
    content: dict[str, Any]
    starts: dict[str, Tensor]
    coverage: dict[str, Coverage]


def inputs_from(content: Mapping[str, Any]) -> Inputs:
    """The vocabularies that ``vocabulary.json`` holds, without a biLM."""
    tables = {name: from_dict(WordTable, table, name) for name, table in content["tables"].items()}
    return Inputs(tables, content["chars"], content["max_chars"])


def _vocabulary(task: AnyTask, config: Any, train: Sequence[Any], others: Sequence[Any]) -> _Vocabulary:
    training = count_words(sentence for example in train for sentence in task.sentences(example))
    other = count_words(sentence for example in others for sentence in task.sentences(example))
    fresh = {name: make_table(name, words, training, other) for name, words in _word_configs(task, config).items()}
    tables = {name: made.table for name, made in fresh.items()}
    chars = None if config.chars is None else make_chars(config.chars, training)
    max_chars = None if config.chars is None else config.chars.max_chars
    content = {
        "tables": {name: asdict(table) for name, table in tables.items()},
        "chars": chars,
        "max_chars": max_chars,
    }
    return _Vocabulary(
        Inputs(tables, chars, max_chars),
        content,
        {name: made.start for name, made in fresh.items() if made.start is not None},
        {name: made.coverage for name, made in fresh.items() if made.coverage is not None},
    )


def refuse_no_input(task: AnyTask, config: Any) -> None:
    """Refuse a config whose model would read no word.

    Raises:
        ConfigError: there are neither words, nor characters, nor ELMo at the input.
    """
    has_elmo = config.elmo is not None and config.elmo.input is not None
    if not (has_elmo or config.chars is not None or "words" in _word_configs(task, config)):
        raise ConfigError(f"The model of {task.name} has nothing to read: give words, chars or elmo.input.")


def _word_configs(task: AnyTask, config: Any) -> dict[str, WordsConfig]:
    found = {name: getattr(config, name) for name in task.word_tables}
    return {name: words for name, words in found.items() if words is not None}


def _build(
    task: AnyTask, config: Any, inputs: Inputs, labels: Labels, starts: Mapping[str, Tensor]
) -> TaskModel[Any, Any]:
    layer = InputLayer(inputs, _word_configs(task, config), config.chars, config.elmo, starts)
    model: TaskModel[Any, Any] = task.build(config, layer, labels)
    return model


def _with_elmo(inputs: Inputs, elmo: Elmo) -> Inputs:
    shape = ElmoShape(elmo.n_layers, elmo.output_dim)
    return Inputs(inputs.tables, inputs.chars, inputs.max_chars, shape)


def _examples(task: AnyTask, config: Any, part: str) -> list[Any]:
    paths = expand(getattr(config.data, part))
    if not paths:
        raise ConfigError(f"data.{part} names no file.")
    read = task.read_training if part == "train" else task.read
    examples = [example for path in paths for example in read(path, config)]
    if not examples:
        raise TextError(f"There is no example in {', '.join(paths)}.")
    return examples


def _texts(task: AnyTask, example: Any) -> tuple[tuple[str, ...], ...]:
    return tuple(map(tuple, task.texts(example)))


def _open_elmo(config: ElmoConfig, source: str | None, device: torch.device) -> Elmo:
    return Elmo.from_pretrained(source, start=config.start, n_mixes=0, device=device)


def _bilm_of(config: ElmoConfig, run: Path) -> str | None:
    """Where a run's biLM is: its own, if it has fine-tuned one."""
    if config.finetune is not None:
        return str(run / TUNED)
    return config.model if config.model == DEFAULT_MODEL else where_begun(run, config.model)


def _finetuned(
    task: AnyTask, config: ElmoConfig, run: Path, train: Sequence[Any], device: torch.device, finetune: Finetune | None
) -> Elmo:
    """The biLM after training on the distinct sentences of the training examples; it stays in the run."""
    if not (run / TUNED).exists():
        assert finetune is not None
        assert config.finetune is not None
        texts = (sentence for example in train for sentence in _texts(task, example) if sentence)
        sentences = list(dict.fromkeys(texts))
        finetune(config.model, sentences, config.finetune, run / TUNED, device)
    return _open_elmo(config, str(run / TUNED), device)


def _fill(cache: LayerCache, task: AnyTask, examples: Sequence[Any], report: Report, n_epochs: int) -> None:
    started = time.monotonic()

    def tell(done: int, total: int) -> None:
        left = (time.monotonic() - started) / max(done, 1) * (total - done)
        report(Progress("layers", None, 0, n_epochs, done, total, left))

    cache.fill((sentence for example in examples for sentence in task.sentences(example)), tell)
