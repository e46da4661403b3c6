"""Create the run directory of a new training: read and count the text, and write what the first step starts from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elmokit.errors import ConfigError, OutputError, TrainingError
from elmokit.formats.model import PretrainedBiLM
from elmokit.storage.text_files import TextPaths, path_list
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.config import TrainingConfig
from elmokit.training.corpus import check_vocabulary_choice, count_corpus, read_held_out, word_order_notice
from elmokit.training.distillation import check_directions, resolve_predictions
from elmokit.training.optimizer_transfer import OptimizerState, read_optimizer_state, transfer_optimizer_state
from elmokit.training.reports import TrainingCallback, TrainingNotice
from elmokit.training.run import create_run
from elmokit.training.settings import ContinuationConfig, DataConfig, TrainingSettings
from elmokit.training.softmax_transfer import describe_transfer, softmax_words, with_dropout, with_softmax_over

N_WORDS_TO_TRY = 3  # a vocabulary size to check the settings with, before the text is counted


@dataclass(frozen=True)
class TextChoice:
    """The text of a new training, and the words that its softmax predicts."""

    texts: Sequence[str | Path]
    held_out: Sequence[str | Path]
    held_out_sentences: int
    """How many sentences of ``held_out`` to read at most."""
    vocabulary: Vocabulary | str | Path | None
    """The words or their file; None for the most frequent words of ``texts``, or for a default of the caller."""
    max_words: int | None

    @property
    def names_words(self) -> bool:
        """Whether the words of the softmax were chosen."""
        return self.vocabulary is not None or self.max_words is not None


def choose_text(
    data: DataConfig,
    texts: TextPaths,
    held_out: TextPaths,
    held_out_sentences: int | None,
    vocabulary: Vocabulary | str | Path | None,
    max_words: int | None,
) -> TextChoice:
    """Choose text and words: those of the arguments, and where there are none, those of a config file.

    Args:
        data: The table ``[data]`` of the config file.
        texts, held_out, held_out_sentences, vocabulary, max_words: As in :func:`elmokit.train`.

    Raises:
        ConfigError: There is no text or no held-out text, or there are both a vocabulary and ``max_words``.
    """
    if vocabulary is None and max_words is None:  # together, because one of them replaces the other
        vocabulary, max_words = data.vocabulary, data.max_words
    choice = TextChoice(
        path_list(texts) or data.texts,
        path_list(held_out) or data.held_out,
        data.held_out_sentences if held_out_sentences is None else held_out_sentences,
        vocabulary,
        max_words,
    )
    if not choice.texts:
        raise ConfigError("There is no text to train on. Pass one or more files or directories.")
    if not choice.held_out:
        raise ConfigError(
            "There is no held-out text. Pass text that is not trained on, to choose the best model by: --held-out "
            "dev.txt, in Python held_out=."
        )
    check_vocabulary_choice(vocabulary, max_words)
    return choice


def check_new(run: Path) -> None:
    """Check that a run directory does not exist.

    Raises:
        OutputError: It does.
    """
    if run.exists():
        raise OutputError(f"{run} already exists and is not a run to continue. Choose another directory.")


def create_training(
    run: Path,
    settings: TrainingSettings,
    text: TextChoice,
    n_processes: int,
    report: TrainingCallback,
    teacher: PretrainedBiLM | None = None,
) -> None:
    """Create the run of a new model.

    Args:
        run: The run directory.
        settings: The settings.
        text: The text.
        n_processes: Number of processes that will train.
        report: Called with the progress of counting, and with notices.
        teacher: The model to learn from, in a distillation.

    Raises:
        ConfigError, TextError, OutputError: As in :func:`elmokit.train` and :func:`elmokit.distill`.
    """
    # Refuse impossible settings before counting, which can take long.
    checked = settings.config(N_WORDS_TO_TRY)
    if teacher is not None:
        check_directions(teacher.config, checked.model)
    held_out = read_held_out(text.held_out, text.held_out_sentences)
    corpus, counts, word_counts = count_corpus(text.texts, held_out, text.vocabulary, text.max_words, report)
    config = settings.config(len(corpus.vocabulary))
    if teacher is not None:
        config, change = resolve_predictions(config, teacher, corpus.vocabulary)
        report(TrainingNotice(change))
    if notice := word_order_notice(config, corpus.vocabulary, word_counts):
        report(notice)
    n_words, expected = len(corpus.vocabulary), settings.data.max_words
    if text.vocabulary is not None and expected not in (None, n_words):
        report(
            TrainingNotice(
                f"The vocabulary has {n_words:,} words and replaces max_words = {expected:,} of the config (in "
                "bilm-tf's options.json: n_tokens_vocab)."
            )
        )
    create_run(run, config, corpus, dataclasses.asdict(counts), n_processes, teacher=teacher)


def create_finetuning(
    run: Path,
    model: PretrainedBiLM,
    config: TrainingConfig,
    continuation: ContinuationConfig,
    text: TextChoice,
    old_text: TextPaths,
    n_processes: int,
    report: TrainingCallback,
) -> None:
    """Create the run of a fine-tuning.

    Args:
        run: The run directory.
        model: The model to fine-tune.
        config: The settings.
        continuation: Says whether to keep the optimizer's state.
        text: The text. If it names no words, those of the softmax are the model's own.
        old_text: Text of the domain that the model was trained on.
        n_processes: Number of processes that will train.
        report: Called with the progress of counting, and with notices.

    Raises:
        ConfigError, TextError, OutputError, TrainingError: As in :func:`elmokit.finetune`.
    """
    kept = _kept_optimizer(model, config.optimizer, continuation, report)
    if config.freeze_softmax and model.softmax is None and config.softmax.kind != "tied":
        raise ConfigError("The model has no softmax, and freeze_softmax would freeze random weights. Leave it out.")
    words = text.vocabulary if text.names_words else softmax_words(model)
    old_sentences = read_held_out(old_text, text.held_out_sentences)
    held_out = read_held_out(text.held_out, text.held_out_sentences)
    corpus, counts, word_counts = count_corpus(text.texts, held_out, words, text.max_words, report)
    if notice := word_order_notice(config, corpus.vocabulary, word_counts):
        report(notice)
    initial = with_softmax_over(model, corpus.vocabulary, word_counts, corpus.n_sentences, config.softmax, config.seed)
    is_random, change = describe_transfer(model, initial)
    report(TrainingNotice(change[:1].upper() + change[1:]))
    if config.freeze_softmax and is_random:
        raise ConfigError(f"freeze_softmax would freeze random weights: {change}. Leave it out.")
    optimizer = None
    if kept is not None:
        optimizer, change = transfer_optimizer_state(kept, config.optimizer, model, initial)
        report(TrainingNotice(change))
    dropout = config.model.dropout
    sizes = dataclasses.replace(initial.config, dropout=dropout)
    # An alignment was learned for the old weights, and there is no dictionary here to learn another one from.
    initial = with_dropout(initial, dropout).replace(alignment=None)
    initial.precision = None
    config = dataclasses.replace(config, model=sizes)
    create_run(run, config, corpus, dataclasses.asdict(counts), n_processes, initial, old_sentences, optimizer)


def _kept_optimizer(
    model: PretrainedBiLM, optimizer: str, continuation: ContinuationConfig, report: TrainingCallback
) -> OptimizerState | None:
    """Read the optimizer's state that a fine-tuning continues with; None for a new optimizer."""
    required = continuation.keep_optimizer
    if not (continuation.recipe == "bilm-tf" if required is None else required):
        return None
    try:
        return read_optimizer_state(model, optimizer)
    except TrainingError as error:
        if required:
            raise
        report(TrainingNotice(f"The training starts with a new optimizer. {error}"))
        return None
