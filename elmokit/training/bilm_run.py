"""What a training of a biLM was started with, as its run directory holds it.

::

    settings.json           the settings, and sizes and checksums of the text
    vocab.txt               the words of the softmax
    held-out.txt            the sentences to evaluate on
    old-text.txt            for fine-tuning: sentences of the old domain
    card.json               the model card, without results
    initial/                for fine-tuning: the model that training started from
    initial-optimizer.safetensors
                            for fine-tuning: the state of the optimizer, if it was kept from a checkpoint
    teacher/                for distillation: the model that the trained one learns from

The training adds log and checkpoints (``training/training_run.py``), and::

    model/                  the best model so far, by held-out perplexity
    curves.png, curves.svg  training loss and held-out perplexity, drawn at the end
    tensorboard/            the log for TensorBoard, if the settings ask for it
"""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from elmokit.config import from_dict, read_json, to_dict, write_json
from elmokit.embedding.fingerprint import fingerprint
from elmokit.errors import ConfigError, ModelError, ModelNotFoundError, OutputError, TrainingError
from elmokit.formats.folder import RUN_MODEL, load_folder, save_folder
from elmokit.formats.model import PretrainedBiLM
from elmokit.lm.perplexity import unknown_words_warning
from elmokit.network.bilm import BiLM
from elmokit.network.softmax import build_softmax
from elmokit.network.tensors import save_tensors
from elmokit.storage.atomic import atomic_write
from elmokit.storage.bounded import CRC32, as_read_back, size_and_crc32
from elmokit.storage.text_files import TextPaths, check_names, find_text_files, folders_of, path_list, read_sentences
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.distillation import check_directions, resolve_predictions
from elmokit.training.reports import TrainingCallback, TrainingNotice
from elmokit.training.training_config import MAY_CHANGE, DataConfig, TrainingConfig
from elmokit.training.training_run import SETTINGS, Run, check_settings, run_origin
from elmokit.training.training_text import (
    TrainingCorpus,
    count_corpus,
    find_shards,
    read_held_out,
    word_order_notice,
)
from elmokit.training.transfer import (
    OptimizerState,
    describe_transfer,
    read_optimizer_state,
    softmax_words,
    transfer_optimizer_state,
    with_dropout,
    with_softmax_over,
)

VOCABULARY, HELD_OUT, OLD_TEXT = "vocab.txt", "held-out.txt", "old-text.txt"
CARD, INITIAL, TEACHER, INITIAL_OPTIMIZER = "card.json", "initial", "teacher", "initial-optimizer.safetensors"
FILES = (
    *(SETTINGS, VOCABULARY, HELD_OUT, OLD_TEXT, CARD, INITIAL, TEACHER, INITIAL_OPTIMIZER),
    *(RUN_MODEL, "curves.*", "tensorboard"),
)
RUN_VERSION = 3  # raised when a change makes earlier runs impossible to resume


def bilm_run(path: str | Path) -> Run:
    """The run of a biLM training in a directory."""
    return Run(path, FILES)


@dataclass(frozen=True)
class RunSettings:
    """The content of ``settings.json``."""

    config: TrainingConfig
    request: dict[str, Any]
    """What identifies the call that started the run: the same call continues it."""
    shards: tuple[str, ...]
    """The paths of the text."""
    n_sentences: int
    n_tokens: int
    version: int = RUN_VERSION

    @classmethod
    def open(cls, run: Path) -> RunSettings:
        """Read a run's settings."""
        path = run / SETTINGS
        try:
            table = read_json(path)
        except ModelNotFoundError:
            raise TrainingError(f"{run} is not a training run: it has no {SETTINGS}.") from None
        if table.get("version") != RUN_VERSION:
            raise TrainingError(
                f"{run} was trained with another version of elmokit and cannot be resumed with this one; elmokit "
                f"finetune can start a new run from {run / RUN_MODEL}."
            )
        return from_dict(cls, table, str(path))

    def save(self, run: Path) -> None:
        """Write ``settings.json``."""
        write_json(run / SETTINGS, to_dict(self))


@dataclass(frozen=True)
class TrainingSetup:
    """What a training starts from."""

    config: TrainingConfig
    corpus: TrainingCorpus
    card: Mapping[str, Any] = field(default_factory=dict)
    """What the model card says besides the results."""
    initial: PretrainedBiLM | None = None
    """The model to start from, with a softmax over the corpus's vocabulary; None for random weights. It is evaluated
    first, and stays the best model until training improves on it."""
    initial_optimizer: Mapping[str, Tensor] | None = None
    """The state of the optimizer to start from, as in a checkpoint; None for a new optimizer."""
    teacher: PretrainedBiLM | None = None
    """The model to learn from, if the config has a ``distillation``."""
    old_text: Sequence[Sequence[str]] = ()
    """Sentences of the domain that ``initial`` was trained on, scored before and after."""

    def write(self, run: Run, n_processes: int, request: Mapping[str, Any], overwrite: bool = False) -> None:
        """Write the run directory of a new training, with copies of the models."""
        config, corpus = self.config, self.corpus
        corpus.check(config, n_processes)
        with torch.device("meta"):  # find out whether the softmax fits before anything is written, without its memory
            token_layer = BiLM(config.model).token_layer
            build_softmax(config.softmax, len(corpus.vocabulary), config.model.projection_dim, token_layer)
        if run.check_start(overwrite):
            raise OutputError(
                f"Another process has just started a run in {run.path}. Run the command again to resume it."
            )
        if overwrite and run.path.exists():
            run.remove()
        with atomic_write(run.path, overwrite=True, folder=True) as folder:
            (folder / VOCABULARY).write_text(corpus.vocabulary.to_text(), encoding="utf-8", newline="\n")
            for name, sentences in ((HELD_OUT, corpus.held_out), (OLD_TEXT, self.old_text)):
                if sentences:
                    text = "".join(" ".join(sentence) + "\n" for sentence in sentences)
                    # A byte order mark of the first token would be left out when it is read, as one of the file is.
                    mark = "\ufeff" if text.startswith("\ufeff") else ""
                    (folder / name).write_text(mark + text, encoding="utf-8", newline="\n")
            write_json(folder / CARD, {**self.card, **self._origin()})
            shards = tuple(str(shard.resolve()) for shard in corpus.shards)
            RunSettings(config, dict(request), shards, corpus.n_sentences, corpus.n_tokens).save(folder)
            for name, model in ((INITIAL, self.initial), (TEACHER, self.teacher)):
                if model is not None:
                    save_folder(model, folder / name)
            if self.initial_optimizer is not None:
                save_tensors(self.initial_optimizer, folder / INITIAL_OPTIMIZER)

    def _origin(self) -> dict[str, Any]:
        """What the model card says about how the training was started."""
        left_out = {"model", "softmax"} | ({"distillation"} if self.config.distillation is None else set())
        settings = {name: value for name, value in dataclasses.asdict(self.config).items() if name not in left_out}
        origin = {"vocabulary_size": len(self.corpus.vocabulary), **run_origin(), "train": settings}
        for key, model in (("initial", self.initial), ("teacher", self.teacher)):
            if model is not None:
                origin[key] = {"source": model.source_name, "card": model.card}
        return origin

    @classmethod
    def open(cls, run: Run) -> TrainingSetup:
        """Read what a run was started with."""
        settings, path = RunSettings.open(run.path), run.path
        config = settings.config
        corpus = TrainingCorpus(
            list(map(Path, settings.shards)),
            list(read_sentences(path / HELD_OUT)),
            Vocabulary.from_file(path / VOCABULARY),
            settings.n_sentences,
            settings.n_tokens,
            config.bilm_tf_lines,
        )
        setup = cls(config, corpus, read_json(path / CARD))
        if config.distillation is not None:
            setup = dataclasses.replace(setup, teacher=load_folder(path / TEACHER))
        if run.checkpoints():  # which are where the training starts now
            return setup
        if (path / INITIAL).exists():
            setup = dataclasses.replace(setup, initial=load_folder(path / INITIAL))
        if (path / INITIAL_OPTIMIZER).exists():
            setup = dataclasses.replace(setup, initial_optimizer=load_file(path / INITIAL_OPTIMIZER))
        return setup


def merge_data(
    data: DataConfig,
    texts: TextPaths,
    held_out: TextPaths,
    held_out_sentences: int | None,
    vocabulary: Vocabulary | str | Path | None,
    max_words: int | None,
) -> tuple[DataConfig, Vocabulary | None]:
    """Override the table ``[data]`` by the arguments of a call; return it, and the words of the softmax if given."""
    if vocabulary is None and max_words is None:  # together, because one of them replaces the other
        vocabulary, max_words = data.vocabulary, data.max_words
    data = dataclasses.replace(
        data,
        texts=_names(texts) or data.texts,
        held_out=_names(held_out) or data.held_out,
        held_out_sentences=data.held_out_sentences if held_out_sentences is None else held_out_sentences,
        max_words=data.max_words if max_words is None else max_words,
    )
    for names, what in ((data.texts, "text to train on"), (data.held_out, "held-out text (--held-out)")):
        if not names:
            raise ConfigError(f"There is no {what}: pass one or more files or directories.")
    if vocabulary is not None and max_words is not None:
        raise ConfigError("Give only one of vocabulary and max_words.")
    if vocabulary is not None and not isinstance(vocabulary, Vocabulary):
        vocabulary = Vocabulary.from_file(Path(vocabulary))
    return data, vocabulary


def _names(texts: TextPaths) -> tuple[str, ...]:
    """Return the names of texts, by which a run finds them again."""
    names = tuple(map(str, path_list(texts)))
    check_names(names)
    return names


def start_or_continue(
    run: Run,
    config: TrainingConfig,
    data: DataConfig,
    vocabulary: Vocabulary | None,
    *,
    n_processes: int,
    overwrite: bool,
    report: TrainingCallback,
    teacher: PretrainedBiLM | None = None,
    model: PretrainedBiLM | None = None,
    keep_optimizer: bool | None = False,
    old_text: TextPaths = (),
) -> None:
    """Write the directory of a new run; or, if the same call has started one there, check that it can be continued.

    Args:
        run: The run.
        config: How to train.
        data, vocabulary: As returned by :func:`merge_data`.
        n_processes: How many processes train together.
        overwrite: Start anew.
        report: Called while the text is counted, and with what is decided.
        teacher: The model to learn from, in a distillation.
        model: The model to fine-tune; None for a new one.
        keep_optimizer: Whether to keep the state of the optimizer that ``model`` was trained with; None keeps it where
            there is one.
        old_text: Text of the domain that ``model`` was trained on.
    """
    if config.distillation is not None and teacher is None:
        raise ConfigError("The settings of a distillation need a teacher: use elmokit distill or elmokit.distill.")
    if teacher is not None:
        check_directions(teacher.config, config.model)
    continues = run.check_start(overwrite)
    shards = find_shards(data.texts)
    held_out = read_held_out(data.held_out, data.held_out_sentences, config.bilm_tf_lines)
    old_sentences = read_held_out(old_text, data.held_out_sentences)
    request = as_read_back(
        {
            **to_dict(config),
            "texts": [shard.name for shard in shards],
            "content": _checksums(shards),
            "held_out_crc32": _sentences_crc32(held_out),
            "max_words": data.max_words,
            "vocabulary_crc32": None if vocabulary is None else _text_crc32(vocabulary.to_text()),
            "teacher": None if teacher is None else fingerprint(teacher, "warm"),
            # Not "model", which is the architecture among the settings.
            "initial_model": None if model is None else fingerprint(model, "warm"),
            "keep_optimizer": keep_optimizer,
            "old_text_crc32": _sentences_crc32(old_sentences),
        }
    )
    if continues:
        earlier = RunSettings.open(run.path)
        check_settings(run.path, earlier.request, request, MAY_CHANGE)
        changed = dataclasses.replace(earlier.config, **{name: getattr(config, name) for name in MAY_CHANGE})
        with run.lock():
            paths = tuple(str(shard.resolve()) for shard in shards)
            dataclasses.replace(earlier, config=changed, shards=paths).save(run.path)
        return
    _check_output(run.path, data)
    texts = set(map(os.path.realpath, shards))
    for path in find_text_files(data.held_out):
        if os.path.realpath(path) in texts:
            problem = f"Held-out text: {path} is trained on, too, so its perplexity will be too low. Take other text."
            report(TrainingNotice(problem))
    words = vocabulary
    if model is not None and vocabulary is None and data.max_words is None:
        words = softmax_words(model)
    kept = None if model is None else _kept_optimizer(model, config, keep_optimizer, report)
    corpus, counts, word_counts = count_corpus(
        data.texts, held_out, words, data.max_words if words is None else None, report, config.bilm_tf_lines
    )
    if notice := word_order_notice(config, corpus.vocabulary, word_counts):
        report(notice)
    if warning := unknown_words_warning(corpus.held_out_unknown_ratio):
        report(
            TrainingNotice(
                f"Held-out text: {warning} Train with words of this domain: max_words (--max-words) or vocabulary "
                "(--vocabulary)."
            )
        )
    if model is None:
        setup = _new_model(config, corpus, teacher, report)
    else:
        setup = _finetuning(config, corpus, word_counts, model, kept, report)
    card = {"corpus": dataclasses.asdict(counts)}
    setup = dataclasses.replace(setup, card=card, old_text=old_sentences)
    setup.write(run, n_processes, request, overwrite)


def _check_output(run: Path, data: DataConfig) -> None:
    """Refuse a run inside of its text, where its own files, held-out sentences too, would be taken for text."""
    out = Path(os.path.realpath(run))
    for folder in folders_of(data.texts):
        if out.is_relative_to(os.path.realpath(folder)):
            raise OutputError(
                f"{run} is inside of {folder}, whose files are the text, so its files would be read as text, too."
            )


def _new_model(
    config: TrainingConfig, corpus: TrainingCorpus, teacher: PretrainedBiLM | None, report: TrainingCallback
) -> TrainingSetup:
    if config.model.n_table_words is not None:
        config = dataclasses.replace(config, model=config.model.with_table_words(len(corpus.vocabulary)))
    if teacher is not None:
        config, change = resolve_predictions(config, teacher, corpus.vocabulary)
        report(TrainingNotice(change))
    return TrainingSetup(config, corpus, teacher=teacher)


def _finetuning(
    config: TrainingConfig,
    corpus: TrainingCorpus,
    word_counts: Mapping[str, int],
    model: PretrainedBiLM,
    kept: OptimizerState | None,
    report: TrainingCallback,
) -> TrainingSetup:
    initial = with_softmax_over(model, corpus.vocabulary, word_counts, corpus.n_sentences, config.softmax, config.seed)
    is_random, change = describe_transfer(model, initial)
    report(TrainingNotice(change[:1].upper() + change[1:]))
    if config.freeze_softmax and is_random:
        raise ConfigError(f"freeze_softmax would freeze random weights: {change}.")
    optimizer = None
    if kept is not None:
        optimizer, change = transfer_optimizer_state(kept, config.optimizer, model, initial)
        report(TrainingNotice(change))
    dropout = config.model.dropout
    config = dataclasses.replace(config, model=dataclasses.replace(initial.config, dropout=dropout))
    # Of what they were learned from, such as a dictionary or pairs of sentences, nothing is here.
    initial = with_dropout(initial, dropout).without_fitted_maps()
    if names := " and ".join(model.fitted_maps):
        report(TrainingNotice(f"Left out, because fitted to the old weights: the model's {names}. Fit them again."))
    initial.precision = None
    return TrainingSetup(config, corpus, initial=initial, initial_optimizer=optimizer)


def _kept_optimizer(
    model: PretrainedBiLM, config: TrainingConfig, keep: bool | None, report: TrainingCallback
) -> OptimizerState | None:
    """Read the optimizer's state that a fine-tuning continues with; None for a new optimizer."""
    if keep is False:
        return None
    try:
        return read_optimizer_state(model, config.optimizer)
    except (ModelError, TrainingError) as error:
        if keep:
            raise
        report(TrainingNotice(f"The training starts with a new optimizer. {error}"))
        return None


def _checksums(shards: Sequence[Path]) -> dict[str, int]:
    """Return the checksum of each file, by its name: the text may have moved to another directory."""
    checksums: dict[str, int] = {}
    for shard in shards:
        with shard.open("rb") as file:
            _, checksum = size_and_crc32(file)
        name = f"{shard.name}{CRC32}"
        checksums[name] = checksums.get(name, 0) ^ checksum  # of all files of a name together
    return checksums


def _sentences_crc32(sentences: Sequence[Sequence[str]]) -> int:
    return _text_crc32("\n".join(" ".join(sentence) for sentence in sentences))


def _text_crc32(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "replace"))
