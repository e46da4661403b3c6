"""Start a training: what a call asks for, and what the first step starts from once the text is read and counted."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from elmokit.config import to_dict
from elmokit.embedding.fingerprint import fingerprint
from elmokit.errors import ConfigError, ModelError, OutputError, TrainingError
from elmokit.formats.model import PretrainedBiLM
from elmokit.storage.checksums import as_read_back
from elmokit.storage.text_files import TextPaths, check_names, find_text_files, folders_of, path_list
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.config import DataConfig, TrainingConfig
from elmokit.training.corpus import (
    TrainingCorpus,
    count_corpus,
    find_shards,
    read_held_out,
    word_order_notice,
)
from elmokit.training.distillation import check_directions, resolve_predictions
from elmokit.training.optimizer_transfer import OptimizerState, read_optimizer_state, transfer_optimizer_state
from elmokit.training.reports import TextCounts, TrainingCallback, TrainingNotice
from elmokit.training.setup import TrainingSetup, sentences_crc32, text_crc32
from elmokit.training.softmax_transfer import describe_transfer, softmax_words, with_dropout, with_softmax_over


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


@dataclass(frozen=True)
class TrainingRequest:
    """What a call of ``train``, ``distill`` or ``finetune`` asks for, before the text is counted."""

    config: TrainingConfig
    data: DataConfig
    vocabulary: Vocabulary | None
    """As returned by :func:`merge_data`."""
    teacher: PretrainedBiLM | None = None
    """The model to learn from, in a distillation."""
    model: PretrainedBiLM | None = None
    """The model to fine-tune; None for a new one."""
    keep_optimizer: bool | None = False
    """Whether to keep the state of the optimizer that ``model`` was trained with; None keeps it where there is one."""
    old_text: TextPaths = ()
    """Text of the domain that ``model`` was trained on."""

    def __post_init__(self) -> None:
        if self.config.distillation is not None and self.teacher is None:
            raise ConfigError("The settings of a distillation need a teacher: use elmokit distill or elmokit.distill.")

    @cached_property
    def shards(self) -> list[Path]:
        """The files to train on."""
        return find_shards(self.data.texts)

    @cached_property
    def held_out(self) -> list[list[str]]:
        """The sentences to evaluate on."""
        return read_held_out(self.data.held_out, self.data.held_out_sentences, self.config.bilm_tf_lines)

    @cached_property
    def old_sentences(self) -> list[list[str]]:
        """The sentences of the old text."""
        return read_held_out(self.old_text, self.data.held_out_sentences)

    def check_output(self, run: Path) -> None:
        """Refuse a run inside of its text, where its own files, held-out sentences too, would be taken for text."""
        out = Path(os.path.realpath(run))
        for folder in folders_of(self.data.texts):
            if out.is_relative_to(os.path.realpath(folder)):
                raise OutputError(
                    f"{run} is inside of {folder}, whose files are the text, so its files would be read as text, too."
                )

    def identity(self) -> dict[str, Any]:
        """What is equal for equal calls, as plain JSON: settings, and what identifies texts and models."""
        words = self.vocabulary
        identity = {
            **to_dict(self.config),
            "texts": [[shard.name, shard.stat().st_size] for shard in self.shards],
            "held_out_crc32": sentences_crc32(self.held_out),
            "max_words": self.data.max_words,
            "vocabulary_crc32": None if words is None else text_crc32(words.to_text()),
            "teacher": None if self.teacher is None else fingerprint(self.teacher, "warm"),
            # Not "model", which is the architecture among the settings.
            "initial_model": None if self.model is None else fingerprint(self.model, "warm"),
            "keep_optimizer": self.keep_optimizer,
            "old_text_crc32": sentences_crc32(self.old_sentences),
        }
        return as_read_back(identity)

    def prepare(self, report: TrainingCallback) -> TrainingSetup:
        """Read and count the text, and prepare what the first step starts from."""
        identity = self.identity()
        texts = set(map(os.path.realpath, self.shards))
        for path in find_text_files(self.data.held_out):
            if os.path.realpath(path) in texts:
                problem = (
                    f"Held-out text: {path} is trained on, too, so its perplexity will be too low. Take other text."
                )
                report(TrainingNotice(problem))
        setup = self._new_model(report) if self.model is None else self._finetuning(self.model, report)
        return dataclasses.replace(setup, request=identity)

    def _new_model(self, report: TrainingCallback) -> TrainingSetup:
        config, data, teacher = self.config, self.data, self.teacher
        if teacher is not None:
            check_directions(teacher.config, config.model)
        corpus, counts, word_counts = self._count(self.vocabulary, report)
        n_words = len(corpus.vocabulary)
        if config.model.n_table_words is not None:
            config = dataclasses.replace(config, model=config.model.with_table_words(n_words))
        if teacher is not None:
            config, change = resolve_predictions(config, teacher, corpus.vocabulary)
            report(TrainingNotice(change))
        if notice := word_order_notice(config, corpus.vocabulary, word_counts):
            report(notice)
        if self.vocabulary is not None and data.max_words not in (None, n_words):
            report(
                TrainingNotice(
                    f"The vocabulary has {n_words:,} words and replaces max_words = {data.max_words:,} of the config "
                    "(in bilm-tf's options.json: n_tokens_vocab)."
                )
            )
        return TrainingSetup(config, corpus, {"corpus": dataclasses.asdict(counts)}, teacher=teacher)

    def _finetuning(self, model: PretrainedBiLM, report: TrainingCallback) -> TrainingSetup:
        config = self.config
        kept = self._kept_optimizer(model, report)
        names_words = self.vocabulary is not None or self.data.max_words is not None
        words = self.vocabulary if names_words else softmax_words(model)
        corpus, counts, word_counts = self._count(words, report)
        if notice := word_order_notice(config, corpus.vocabulary, word_counts):
            report(notice)
        initial = with_softmax_over(
            model, corpus.vocabulary, word_counts, corpus.n_sentences, config.softmax, config.seed
        )
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
        card = {"corpus": dataclasses.asdict(counts)}
        return TrainingSetup(
            config, corpus, card, initial=initial, initial_optimizer=optimizer, old_text=self.old_sentences
        )

    def _kept_optimizer(self, model: PretrainedBiLM, report: TrainingCallback) -> OptimizerState | None:
        """Read the optimizer's state that a fine-tuning continues with; None for a new optimizer."""
        if self.keep_optimizer is False:
            return None
        try:
            return read_optimizer_state(model, self.config.optimizer)
        except (ModelError, TrainingError) as error:
            if self.keep_optimizer:
                raise
            report(TrainingNotice(f"The training starts with a new optimizer. {error}"))
            return None

    def _count(
        self, words: Vocabulary | None, report: TrainingCallback
    ) -> tuple[TrainingCorpus, TextCounts, dict[str, int]]:
        max_words = self.data.max_words if words is None else None
        as_bilm_tf = self.config.bilm_tf_lines
        return count_corpus(self.data.texts, self.held_out, words, max_words, report, as_bilm_tf)
