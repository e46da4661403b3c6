"""Start training a biLM, or continue the run that the same call has started.

A call makes a :class:`TrainingRequest`. It continues a run with equal settings, including the fingerprints of text and
models. Otherwise, the text is counted, which can take hours, and the initial state is checked and written; until then,
an earlier run to be replaced is not changed.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmokit.config import from_dict, to_dict
from elmokit.embedding.fingerprint import fingerprint
from elmokit.errors import ConfigError, ModelError, OutputError, TrainingError
from elmokit.lm.perplexity import unknown_words_warning
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.checksums import file_digest, sentences_digest, text_digest
from elmokit.storage.text_files import TextPaths, check_names, find_text_files, folders_of, path_list
from elmokit.text.vocabulary import Vocabulary, read_new_vocabulary
from elmokit.training.bilm_run import TrainingSetup, record
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

RUN_VERSION = 4  # raised when a change makes earlier runs impossible to resume


@dataclass(frozen=True)
class TrainingRequest:
    """The request of a call of ``train``, ``distill`` or ``finetune``."""

    config: TrainingConfig
    """How to train."""
    data: DataConfig
    """The text."""
    vocabulary: Vocabulary | None = None
    """The words of the softmax; None for those of ``model``, or the most frequent ones of the text."""
    model: PretrainedBiLM | None = None
    """The model to fine-tune; None for a new one."""
    keep_optimizer: bool | None = False
    """Keep the optimizer state that ``model`` was trained with; None keeps it if there is one."""
    old_text: TextPaths = ()
    """Text of the domain that ``model`` was trained on."""
    teacher: PretrainedBiLM | None = None
    """The model to learn from, in a distillation."""

    @property
    def exact_marks(self) -> bool:
        """Whether the model reads typographic marks unchanged, as it always does with bilm-tf's lines."""
        return self.config.bilm_tf_lines or (self.model is not None and self.model.exact_marks)

    def check(self, run: Path) -> None:
        """Check, before any work is done, that the request can be trained in a directory."""
        if self.config.distillation is not None and self.teacher is None:
            raise ConfigError("Distillation settings need a teacher: use elmokit distill or elmokit.distill.")
        if self.teacher is not None:
            check_directions(self.teacher.config, self.config.model)
        # The run's files, including held-out sentences, would be read as text.
        out = Path(os.path.realpath(run))
        for folder in folders_of(self.data.texts):
            if out.is_relative_to(os.path.realpath(folder)):
                raise OutputError(
                    f"{run} is inside the text directory {folder}, so its files would be read as text, too."
                )


def merge_data(
    data: DataConfig,
    texts: TextPaths,
    held_out: TextPaths,
    held_out_sentences: int | None,
    vocabulary: Vocabulary | str | Path | None,
    max_words: int | None,
) -> tuple[DataConfig, Vocabulary | None]:
    """Override the table ``[data]`` with the arguments of a call; return it, and the softmax words, if given."""
    if vocabulary is None and max_words is None:  # together, because one replaces the other
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
        raise ConfigError("Set only one of vocabulary and max_words.")
    if vocabulary is not None and not isinstance(vocabulary, Vocabulary):
        vocabulary = read_new_vocabulary(Path(vocabulary))
    return data, vocabulary


def _names(texts: TextPaths) -> tuple[str, ...]:
    """Return the names of texts, which a run records."""
    names = tuple(map(str, path_list(texts)))
    check_names(names)
    return names


@dataclass(frozen=True)
class _RequestText:
    """The part of a request's text that is read before it is known whether a run continues."""

    shards: Sequence[Path]
    held_out: Sequence[Sequence[str]]
    old_text: Sequence[Sequence[str]]


def start_or_continue(run: Run, request: TrainingRequest, n_processes: int, report: TrainingCallback) -> TrainingSetup:
    """Start training in a run that was entered without settings, or continue it.

    Args:
        run: The run.
        request: What to train.
        n_processes: Number of processes that train together.
        report: Called while the text is counted, and with notices.

    Returns:
        The initial state of the training, apart from the checkpoint, if any.
    """
    config, data = request.config, request.data
    text = _RequestText(
        find_shards(data.texts),
        read_held_out(data.held_out, data.held_out_sentences, config.bilm_tf_lines),
        read_held_out(request.old_text, data.held_out_sentences),
    )
    if run.continues(_settings(request, text)):
        recorded = from_dict(TrainingConfig, run.progress["config"], str(run.folder))
        changes = {name: getattr(config, name) for name in MAY_CHANGE}
        record(run, dataclasses.replace(recorded, **changes), text.shards)
        return TrainingSetup.of(run.committed)
    setup = _new_setup(request, text, report)
    setup.check(n_processes)
    run.start()
    setup.write(run)
    return setup


def _settings(request: TrainingRequest, text: _RequestText) -> dict[str, Any]:
    """Return the settings that must be equal to continue a run."""
    settings: dict[str, Any] = {
        "run version": RUN_VERSION,
        "teacher": _fingerprint(request.teacher),
        # Not "model", which is the architecture among the settings.
        "initial model": _fingerprint(request.model),
    }
    for name, value in to_dict(request.config).items():
        if name not in MAY_CHANGE:
            settings[name] = value
    settings["texts"] = [shard.name for shard in text.shards]
    for name, digest in _digests(text.shards).items():
        settings[f"text file {name}"] = digest
    settings["held-out text"] = sentences_digest(text.held_out)
    settings["max_words"] = request.data.max_words
    settings["vocabulary"] = None if request.vocabulary is None else text_digest(request.vocabulary.to_text())
    settings["keep_optimizer"] = request.keep_optimizer
    settings["old text"] = sentences_digest(text.old_text)
    if request.exact_marks and not request.config.bilm_tf_lines:
        settings["exact_marks"] = True
    return settings


def _fingerprint(model: PretrainedBiLM | None) -> str | None:
    return None if model is None else fingerprint(model, "warm")


def _digests(shards: Sequence[Path]) -> dict[str, str]:
    """Return the digest of each file by name, because the text may have moved to another directory."""
    digests: dict[str, list[str]] = {}
    for shard in shards:
        digests.setdefault(shard.name, []).append(file_digest(shard))
    return {name: "-".join(sorted(of_name)) for name, of_name in digests.items()}


def _new_setup(request: TrainingRequest, text: _RequestText, report: TrainingCallback) -> TrainingSetup:
    """Count the text, and build the initial state of a new training."""
    config, data, words = request.config, request.data, request.vocabulary
    _report_overlap(text.shards, data, report)
    if request.model is not None and words is None and data.max_words is None:
        words = softmax_words(request.model)
    kept = _kept_optimizer(request, report)
    corpus, counts, word_counts = count_corpus(
        data.texts,
        text.held_out,
        words,
        data.max_words if words is None else None,
        report,
        config.bilm_tf_lines,
        exact_marks=request.exact_marks,
    )
    notice = word_order_notice(config, corpus.vocabulary, word_counts)
    if notice is not None:
        report(notice)
    _report_unknown_words(corpus, report)
    if request.model is None:
        setup = _new_model(request, corpus, report)
    else:
        setup = _finetuning(config, request.model, corpus, word_counts, kept, report)
    card = {"corpus": dataclasses.asdict(counts), **_origin(setup)}
    return dataclasses.replace(setup, card=card, old_text=text.old_text)


def _origin(setup: TrainingSetup) -> dict[str, Any]:
    """Return the facts about the start of the training for the model card."""
    settings = dataclasses.asdict(setup.config)
    del settings["model"], settings["softmax"]
    if setup.config.distillation is None:
        del settings["distillation"]
    origin = {"vocabulary_size": len(setup.corpus.vocabulary), **run_origin(), "train": settings}
    for key, model in (("initial", setup.initial), ("teacher", setup.teacher)):
        if model is not None:
            origin[key] = {"source": model.source_name, "card": model.card}
    return origin


def _report_overlap(shards: Sequence[Path], data: DataConfig, report: TrainingCallback) -> None:
    """Report files of the held-out text that are also trained on."""
    texts = set(map(os.path.realpath, shards))
    for path in find_text_files(data.held_out):
        if os.path.realpath(path) in texts:
            problem = (
                f"Held-out text: {path} is trained on, too, so its perplexity will be too low. Use different text."
            )
            report(TrainingNotice(problem))


def _report_unknown_words(corpus: TrainingCorpus, report: TrainingCallback) -> None:
    """Report if many words of the held-out text are unknown."""
    unknown = corpus.held_out_unknown()
    warning = unknown_words_warning(unknown.ratio, unknown.first)
    if warning:
        remedy = "Train with words of this domain: max_words (--max-words) or vocabulary (--vocabulary)."
        report(TrainingNotice(f"Held-out text: {warning} {remedy}"))


def _kept_optimizer(request: TrainingRequest, report: TrainingCallback) -> OptimizerState | None:
    """Read the optimizer state for fine-tuning; None for a new optimizer."""
    if request.model is None or request.keep_optimizer is False:
        return None
    try:
        return read_optimizer_state(request.model, request.config.optimizer)
    except (ModelError, OutputError, TrainingError) as error:
        if request.keep_optimizer:
            raise
        report(TrainingNotice(f"Training starts with a new optimizer. {error}"))
        return None


def _new_model(request: TrainingRequest, corpus: TrainingCorpus, report: TrainingCallback) -> TrainingSetup:
    config, teacher = request.config, request.teacher
    if config.model.n_table_words is not None:
        config = dataclasses.replace(config, model=config.model.with_table_words(len(corpus.vocabulary)))
    if teacher is not None:
        config, change = resolve_predictions(config, teacher, corpus.vocabulary)
        report(TrainingNotice(change))
    return TrainingSetup(config, corpus, teacher=teacher)


def _finetuning(
    config: TrainingConfig,
    model: PretrainedBiLM,
    corpus: TrainingCorpus,
    word_counts: Mapping[str, int],
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
    # The data that they were learned from, such as a dictionary or sentence pairs, is not available here.
    initial = with_dropout(initial, dropout).without_fitted_maps().replace(precision=None)
    names = " and ".join(model.fitted_maps)
    if names:
        report(TrainingNotice(f"Left out, because fitted to the old weights: the model's {names}. Refit them."))
    return TrainingSetup(config, corpus, initial=initial, initial_optimizer=optimizer)
