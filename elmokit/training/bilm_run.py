"""The run of a biLM: what it starts from, and how the call that started it continues it.

The settings of the run, which identify the call, and the resolved config, the paths of the text and its sizes are in
the journal (``training_run.py``). Next to it are::

    vocab.txt               the words of the softmax
    held-out.txt            the sentences to evaluate on
    old-text.txt            for fine-tuning: sentences of the old domain
    card.json               the model card, without results
    initial/                for fine-tuning: the model that training started from
    initial-optimizer.safetensors
                            for fine-tuning: the state of the optimizer, if it was kept from a checkpoint
    teacher/                for distillation: the model that the trained one learns from

The training adds log and checkpoints, and::

    model/                  the best model so far, by held-out perplexity
    tensorboard/            the log for TensorBoard, if the settings ask for it
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from elmokit.config import from_dict, read_json, to_dict, write_json
from elmokit.embedding.fingerprint import fingerprint
from elmokit.errors import ConfigError, ModelError, OutputError, TrainingError
from elmokit.formats.folder import RUN_MODEL, load_folder, save_folder
from elmokit.formats.model import PretrainedBiLM
from elmokit.lm.perplexity import unknown_words_warning
from elmokit.network.bilm import BiLM
from elmokit.network.softmax_module import build_softmax
from elmokit.network.tensors import save_tensors
from elmokit.storage.atomic import sync
from elmokit.storage.checksums import file_digest, sentences_digest, text_digest
from elmokit.storage.text_files import TextPaths, check_names, find_text_files, folders_of, path_list
from elmokit.storage.workspace import check_folder, read_workspace
from elmokit.text.text import Text
from elmokit.text.vocabulary import Vocabulary, read_new_vocabulary
from elmokit.training.distillation import check_directions, resolve_predictions
from elmokit.training.reports import TrainingCallback, TrainingNotice
from elmokit.training.training_config import MAY_CHANGE, DataConfig, TrainingConfig
from elmokit.training.training_run import Run, run_origin
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
    *(VOCABULARY, HELD_OUT, OLD_TEXT, CARD, INITIAL, TEACHER, INITIAL_OPTIMIZER),
    *(RUN_MODEL, "tensorboard"),
)
FORMER = ("settings.json", CARD, VOCABULARY)
"""Files by which a run of version 0.2 is recognized."""
RUN_VERSION = 4  # raised when a change makes earlier runs impossible to resume


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

    def check(self, n_processes: int) -> None:
        """Refuse what cannot be trained, before anything is written."""
        config, corpus = self.config, self.corpus
        corpus.check(config, n_processes)
        with torch.device("meta"):  # find out whether the softmax fits, without its memory
            token_layer = BiLM(config.model).token_layer
            build_softmax(config.softmax, len(corpus.vocabulary), config.model.projection_dim, token_layer)

    def write(self, run: Run) -> None:
        """Write what a new run starts from, with copies of the models, and commit it."""
        folder, corpus = run.folder, self.corpus
        (folder / VOCABULARY).write_text(corpus.vocabulary.to_text(), encoding="utf-8", newline="\n")
        for name, sentences in ((HELD_OUT, corpus.held_out), (OLD_TEXT, self.old_text)):
            if sentences:
                text = "".join(" ".join(sentence) + "\n" for sentence in sentences)
                # A byte order mark of the first token would be left out when it is read, as one of the file is.
                mark = "\ufeff" if text.startswith("\ufeff") else ""
                (folder / name).write_text(mark + text, encoding="utf-8", newline="\n")
        write_json(folder / CARD, {**self.card, **self._origin()})
        for name, model in ((INITIAL, self.initial), (TEACHER, self.teacher)):
            if model is not None:
                save_folder(model, folder / name)
        if self.initial_optimizer is not None:
            save_tensors(self.initial_optimizer, folder / INITIAL_OPTIMIZER)
        for name in (VOCABULARY, HELD_OUT, OLD_TEXT, INITIAL_OPTIMIZER):
            if (folder / name).exists():
                sync(folder / name)
        _record(run, self.config, corpus.shards, n_sentences=corpus.n_sentences, n_tokens=corpus.n_tokens)

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
    def open(cls, path: Path) -> TrainingSetup:
        """Read what a run was started with.

        Raises:
            TrainingError: There is no run, or it is from another version of elmokit.
        """
        committed = read_workspace(path)
        if committed is None or "config" not in committed.progress:
            raise TrainingError(f"{path} is not a training run of this version of elmokit.")
        progress = committed.progress
        config = from_dict(TrainingConfig, progress["config"], str(path))
        corpus = TrainingCorpus(
            list(map(Path, progress["shards"])),
            list(Text(path / HELD_OUT).token_lists()),
            Vocabulary.from_file(path / VOCABULARY),
            progress["n_sentences"],
            progress["n_tokens"],
            config.bilm_tf_lines,
        )
        setup = cls(config, corpus, read_json(path / CARD))
        if config.distillation is not None:
            setup = dataclasses.replace(setup, teacher=load_folder(path / TEACHER))
        if "n_steps" in progress:  # the training starts at a checkpoint
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
        vocabulary = read_new_vocabulary(Path(vocabulary))
    return data, vocabulary


def _names(texts: TextPaths) -> tuple[str, ...]:
    """Return the names of texts, by which a run finds them again."""
    names = tuple(map(str, path_list(texts)))
    check_names(names)
    return names


@contextlib.contextmanager
def started_or_continued(
    path: str | Path,
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
) -> Iterator[Run]:
    """Yield a run, under its lock: a new one, or that which the same call has started there.

    Args:
        path: The directory of the run.
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
    check_folder(Path(path), FORMER, overwrite)  # before hours of reading
    if config.distillation is not None and teacher is None:
        raise ConfigError("The settings of a distillation need a teacher: use elmokit distill or elmokit.distill.")
    if teacher is not None:
        check_directions(teacher.config, config.model)
    shards = find_shards(data.texts)
    held_out = read_held_out(data.held_out, data.held_out_sentences, config.bilm_tf_lines)
    old_sentences = read_held_out(old_text, data.held_out_sentences)
    settings = {
        "run version": RUN_VERSION,
        "teacher": None if teacher is None else fingerprint(teacher, "warm"),
        # Not "model", which is the architecture among the settings.
        "initial model": None if model is None else fingerprint(model, "warm"),
        **{name: value for name, value in to_dict(config).items() if name not in MAY_CHANGE},
        "texts": [shard.name for shard in shards],
        **{f"text file {name}": digest for name, digest in _digests(shards).items()},
        "held-out text": sentences_digest(held_out),
        "max_words": data.max_words,
        "vocabulary": None if vocabulary is None else text_digest(vocabulary.to_text()),
        "keep_optimizer": keep_optimizer,
        "old text": sentences_digest(old_sentences),
    }
    if model is not None and model.exact_marks and not config.bilm_tf_lines:  # with such lines, it always reads so
        settings["exact_marks"] = True
    run, setup = Run(path, settings, FILES, FORMER, overwrite), None
    if not run.continues():
        _check_output(run.folder, data)
        setup = _new_setup(config, data, shards, held_out, vocabulary, teacher, model, keep_optimizer, report)
        setup = dataclasses.replace(setup, old_text=old_sentences)
        setup.check(n_processes)
    with run:
        if setup is not None and not run.progress:
            setup.write(run)
        else:
            own = from_dict(TrainingConfig, run.progress["config"], str(run.folder))
            _record(run, dataclasses.replace(own, **{name: getattr(config, name) for name in MAY_CHANGE}), shards)
        yield run


def _new_setup(
    config: TrainingConfig,
    data: DataConfig,
    shards: Sequence[Path],
    held_out: Sequence[Sequence[str]],
    vocabulary: Vocabulary | None,
    teacher: PretrainedBiLM | None,
    model: PretrainedBiLM | None,
    keep_optimizer: bool | None,
    report: TrainingCallback,
) -> TrainingSetup:
    """Count the text, and make what a new training starts from."""
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
        data.texts,
        held_out,
        words,
        data.max_words if words is None else None,
        report,
        config.bilm_tf_lines,
        exact_marks=config.bilm_tf_lines or (model is not None and model.exact_marks),
    )
    if notice := word_order_notice(config, corpus.vocabulary, word_counts):
        report(notice)
    unknown = corpus.held_out_unknown()
    if warning := unknown_words_warning(unknown.ratio, unknown.first):
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
    return dataclasses.replace(setup, card={"corpus": dataclasses.asdict(counts)})


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
    initial = with_dropout(initial, dropout).without_fitted_maps().replace(precision=None)
    if names := " and ".join(model.fitted_maps):
        report(TrainingNotice(f"Left out, because fitted to the old weights: the model's {names}. Fit them again."))
    return TrainingSetup(config, corpus, initial=initial, initial_optimizer=optimizer)


def _kept_optimizer(
    model: PretrainedBiLM, config: TrainingConfig, keep: bool | None, report: TrainingCallback
) -> OptimizerState | None:
    """Read the optimizer's state that a fine-tuning continues with; None for a new optimizer."""
    if keep is False:
        return None
    try:
        return read_optimizer_state(model, config.optimizer)
    except (ModelError, OutputError, TrainingError) as error:
        if keep:
            raise
        report(TrainingNotice(f"The training starts with a new optimizer. {error}"))
        return None


def _digests(shards: Sequence[Path]) -> dict[str, str]:
    """Return the digest of each file, by its name: the text may have moved to another directory."""
    digests: dict[str, list[str]] = {}
    for shard in shards:
        digests.setdefault(shard.name, []).append(file_digest(shard))
    return {name: "-".join(sorted(of_name)) for name, of_name in digests.items()}


def _record(run: Run, config: TrainingConfig, shards: Sequence[Path], **counts: int) -> None:
    """Record in the journal of a run what it is trained with from now on."""
    paths = [str(shard.resolve()) for shard in shards]
    run.commit({**run.progress, "config": to_dict(config), "shards": paths, **counts})
