"""Train, distill and fine-tune a biLM: the public functions, which the command line also calls.

Repeating the call that started a run continues it. On the CPU, the result has the same bits as without the
interruption. Each process has a :class:`TrainingProcess`: the main one starts or continues the run, and all of them
train.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from elmokit.errors import ElmoError
from elmokit.formats.open import as_model
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.text_files import TextPaths
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.bilm_run import FILES, FORMER, TrainingSetup
from elmokit.training.distributed import World, init_distributed, training_device
from elmokit.training.loop import run_training
from elmokit.training.reports import TrainingCallback, TrainingDisplay
from elmokit.training.results import TensorBoardLog, TrainingResult, finish_run
from elmokit.training.settings import ConfigSource, finetuning_settings, training_settings
from elmokit.training.start import TrainingRequest, merge_data, start_or_continue
from elmokit.training.training_config import HELD_OUT_SENTENCES, DataConfig, DistillationConfig
from elmokit.training.training_run import Run
from elmokit.training.transfer import softmax_words


def train(
    texts: TextPaths = (),
    *,
    held_out: TextPaths = (),
    out: str | Path,
    recipe: str | None = None,
    preset: str | None = None,
    config: ConfigSource | None = None,
    vocabulary: Vocabulary | str | Path | None = None,
    max_words: int | None = None,
    held_out_sentences: int | None = None,
    device: str | torch.device = "auto",
    overwrite: bool = False,
    report: TrainingCallback | None = None,
    **settings: Any,
) -> TrainingResult:
    """Pre-train a biLM on tokenized text.

    Repeating the call continues an interrupted training run from its last checkpoint. Under ``torchrun``, each process
    calls this function, and all of them train the same model.

    Args:
        texts: Text to train on, with one tokenized sentence per line: files (``.txt``, ``.gz``, ``.xz``, ``.zst``),
            directories or glob patterns.
        held_out: Validation text. The model with the lowest perplexity on it is kept.
        out: The run directory. If the same call has started a run there, it is continued. The length of the training
            (``epochs``, ``tokens``), ``patience``, ``log_every``, ``eval_every``, ``save_every`` and ``tensorboard``
            may differ, and the text may have moved.
        recipe: Default settings: ``"modern"`` (default), which the included model was trained with, or ``"bilm-tf"``.
        preset: Size of the model: ``"tiny"``, ``"mini"``, ``"small"``, ``"medium"`` or ``"original"``; by default that
            of the recipe.
        config: TOML file of settings, or bilm-tf's ``options.json``; or its content as a table. Other arguments
            override it.
        vocabulary: The words of the softmax, or a file of them.
        max_words: Alternative to ``vocabulary``: use the ``max_words`` most frequent words of ``texts`` (30,000
            by default).
        held_out_sentences: If ``held_out`` has more sentences, sample that many (2,000 by default).
        device: cpu, cuda, or auto: a GPU if there is one.
        overwrite: Start over: replace the run.
        report: Called with the dataclasses of ``elmokit.training.reports``; by default they are printed.
        **settings: Fields of ``TrainingConfig``, such as ``epochs`` or ``learning_rate``; sizes of the model
            (``hidden_dim``, ``projection_dim``, ``n_layers``, ``dropout``, ``bidirectional``); ``input``
            (``"characters"``, ``"words"`` or ``"both"``); ``softmax`` (``"full"`` or ``"tied"``) and
            ``softmax_inner_dim``.

    Returns:
        The best model, its perplexities, and the run directory.

    Raises:
        ConfigError: A setting is unknown or cannot be used.
        TextError: A text cannot be read, or there is too little of it.
        OutputError: ``out`` is not a run, or was started with other settings, or cannot be written.
        TrainingError: The training cannot continue, for example because the loss is not a number.

    Example:
        >>> result = elmokit.train("corpus/", held_out="dev.txt", out="my-run", preset="small", epochs=3)
        >>> forward, backward = result.best_perplexity
        >>> elmo = elmokit.Elmo.from_pretrained("my-run")
    """
    with training_process(out, device, overwrite, report) as process:
        if process.is_main:
            training, data = training_settings(recipe, preset, config, settings)
            data, words = merge_data(data, texts, held_out, held_out_sentences, vocabulary, max_words)
            process.start(TrainingRequest(training, data, words))
        return process.train()


def distill(
    teacher: PretrainedBiLM | str | Path | None,
    texts: TextPaths = (),
    *,
    held_out: TextPaths = (),
    out: str | Path,
    recipe: str | None = None,
    preset: str | None = None,
    config: ConfigSource | None = None,
    vocabulary: Vocabulary | str | Path | None = None,
    max_words: int | None = None,
    held_out_sentences: int | None = None,
    options: str | Path | None = None,
    device: str | torch.device = "auto",
    overwrite: bool = False,
    report: TrainingCallback | None = None,
    **settings: Any,
) -> TrainingResult:
    """Train a small biLM, the student, to imitate a large one, the teacher.

    The student reads the text as in :func:`train`. Besides predicting words, it learns to reproduce the vectors of each
    of the teacher's layers, through a projection that is dropped at the end. It also learns the teacher's predictions
    if the teacher has a softmax. The result is an ordinary model with vectors of its own size.

    Args:
        teacher: A model, or its path or published name; None for the small English model inside the package.
        texts: Text to train on, as in :func:`train`. It need not be the text that the teacher was trained on.
        held_out: Validation text. The student with the lowest perplexity on it is kept.
        out: The run directory, as in :func:`train`. It gets a copy of the teacher.
        recipe, preset: As in :func:`train`. They describe the student.
        config: TOML file of settings, which other arguments override; or bilm-tf's ``options.json``.
        vocabulary: The words of the student's softmax, or a file of them. The default is the teacher's words if it has
            a softmax, because its predictions can be learned only for the same words; otherwise those of ``texts``.
        max_words: Alternative to ``vocabulary``, as in :func:`train`.
        held_out_sentences, report: As in :func:`train`.
        device: cpu, cuda, or auto: a GPU if there is one.
        overwrite: Start over: replace the run.
        options: The options file of an HDF5 teacher, if it is not next to the weights.
        **settings: As in :func:`train`, and the fields of ``DistillationConfig``, such as ``layer_weight``.

    Returns:
        The best student, its perplexities, and the run directory.

    Raises:
        ModelError: The teacher cannot be opened.
        ConfigError: The student cannot learn from this teacher in this way; or as in :func:`train`.
        TextError, OutputError, TrainingError: As in :func:`train`.

    Example:
        >>> result = elmokit.distill("my-large-elmo", "corpus/", held_out="dev.txt", out="student", preset="mini")
        >>> elmo = elmokit.Elmo.from_pretrained("student")
    """
    with training_process(out, device, overwrite, report) as process:
        if process.is_main:
            training, data = training_settings(recipe, preset, config, settings)
            if training.distillation is None:
                training = dataclasses.replace(training, distillation=DistillationConfig())
            data, words = merge_data(data, texts, held_out, held_out_sentences, vocabulary, max_words)
            teacher = as_model(teacher, options=options)
            if teacher.softmax is not None and words is None and data.max_words is None:
                words = softmax_words(teacher)
            process.start(TrainingRequest(training, data, words, teacher=teacher))
        return process.train()


def finetune(
    model: PretrainedBiLM | str | Path | None,
    texts: TextPaths,
    *,
    held_out: TextPaths = (),
    out: str | Path,
    old_text: TextPaths = (),
    recipe: str | None = None,
    keep_optimizer: bool | None = None,
    config: ConfigSource | None = None,
    vocabulary: Vocabulary | str | Path | None = None,
    max_words: int | None = None,
    held_out_sentences: int = HELD_OUT_SENTENCES,
    options: str | Path | None = None,
    exact_marks: bool = False,
    device: str | torch.device = "auto",
    overwrite: bool = False,
    report: TrainingCallback | None = None,
    **settings: Any,
) -> TrainingResult:
    """Continue the training of a biLM on your own text.

    By default, training lasts one epoch at a fifth of the usual learning rate, as Peters et al. (2018) did before each
    task, or at the full rate if the softmax is new. It stops early after three evaluations without improvement. If
    training does not improve the model you start from, that model is returned unchanged.

    Args:
        model: A model, or its path or published name; None for the small English model inside the package.
        texts: Text to train on, as in :func:`train`.
        held_out: Text of the same domain to evaluate on.
        out: The run directory, as in :func:`train`.
        old_text: Text of the domain that the model was trained on, to measure forgetting. Its perplexity before and
            after shows what the model forgets.
        recipe: Settings to start from: ``"modern"`` (default), or ``"bilm-tf"``, which continues a training as the
            ``restart.py`` of bilm-tf does: Adagrad at 0.2, with the sums of the checkpoint.
        keep_optimizer: Continue with the optimizer state of the model's checkpoint, so the first steps are not larger
            than the last ones of the earlier training. The checkpoint can be bilm-tf's or elmokit's
            (``RUN/checkpoints/step-N``). By default, the recipe ``bilm-tf`` keeps the state if there is one.
        config: TOML file of settings, which other arguments override; or bilm-tf's ``options.json``.
        vocabulary: Words for the softmax, or a file of them. The default is the model's own words, or, for a model
            without a softmax, the words of ``texts``. Weights are kept word by word.
        max_words: Alternative to ``vocabulary``: use the ``max_words`` most frequent words of ``texts``.
        held_out_sentences: If ``held_out`` has more sentences, sample that many; the same goes for ``old_text``.
        options: The options file of an HDF5 model, if it is not next to the weights.
        exact_marks: Read typographic marks unchanged, like bilm-tf, instead of as ASCII. The trained model keeps this.
        device: cpu, cuda, or auto: a GPU if there is one.
        overwrite: Start over: replace the run.
        report: As in :func:`train`.
        **settings: Fields of ``TrainingConfig``, ``dropout``, and ``softmax_inner_dim``.

    Returns:
        The best model, its perplexities before and after, and the run directory.

    Raises:
        ModelError: The model cannot be opened.
        TrainingError: The optimizer state cannot be kept; or as in :func:`train`.
        ConfigError, TextError, OutputError: As in :func:`train`.

    Example:
        >>> result = elmokit.finetune("en-mini", "notes/", held_out="dev.txt", out="clinical")
        >>> result.before_and_after["held-out"]["after"]  # perplexities: forward, backward
    """
    with training_process(out, device, overwrite, report) as process:
        if process.is_main:
            # A config file for fine-tuning has no table [data].
            data, words = merge_data(DataConfig(), texts, held_out, held_out_sentences, vocabulary, max_words)
            model = as_model(model, options=options)
            if exact_marks:
                model = model.replace(exact_marks=True)
            training, keeps = finetuning_settings(model, recipe, keep_optimizer, config, settings)
            process.start(TrainingRequest(training, data, words, model, keeps, old_text))
        return process.train()


class TrainingProcess:
    """This process of a training, from :func:`training_process`."""

    def __init__(self, run: Run, world: World, device: torch.device, report: TrainingCallback) -> None:
        self.run, self.world, self.device, self.report = run, world, device, report
        self.setup: TrainingSetup | None = None
        self.open = ExitStack()
        """Resources that stay open until the end: the run, and the log for TensorBoard."""
        self._others_wait = world.is_main_process

    @property
    def is_main(self) -> bool:
        """Whether this process starts the run, and writes its files."""
        return self.world.is_main_process

    def start(self, request: TrainingRequest) -> None:
        """Start training, or continue the run of the same request. Only called in the main process."""
        request.check(self.run.folder)
        self.open.enter_context(self.run)
        self.setup = start_or_continue(self.run, request, self.world.size, self.report)

    def tell_others(self, error: ElmoError | None = None) -> None:
        """Notify the processes waiting in :meth:`train` that the run has started, or of the error."""
        if self._others_wait:
            self._others_wait = False
            self.world.broadcast((error, self.run.committed))

    def train(self) -> TrainingResult:
        """Train until the end, and return the result. All processes must call this.

        Raises:
            ElmoError: The main process could not start the run, or the training failed.
        """
        if self.is_main:
            self.tell_others()
        else:
            error, self.run.committed = self.world.broadcast(None)
            if error is not None:
                raise error
        # The other processes read what the main process has written.
        setup = TrainingSetup.of(self.run.committed) if self.setup is None else self.setup
        report = self.report
        if setup.config.tensorboard and self.is_main:
            n_steps, directions = self.run.progress.get("n_steps", 0), setup.config.model.direction_names
            report = self.open.enter_context(closing(TensorBoardLog(self.run.folder, n_steps, directions, report)))
        end = run_training(setup, self.run, report, world=self.world, device=self.device)
        if not self.is_main:
            return TrainingResult(self.run.folder, end, None, is_main_process=False)
        return finish_run(self.run.folder, setup.config, end, self.report)


@contextmanager
def training_process(
    out: str | Path, device: str | torch.device, overwrite: bool, report: TrainingCallback | None
) -> Iterator[TrainingProcess]:
    """Connect this process to the other training processes, if any, during the block.

    Errors in the main process are also raised in the others, so none waits for it.

    Args:
        out: The run directory.
        device: Where to train.
        overwrite: Start over: replace the run.
        report: Called with reports in the main process; None prints them.
    """
    device = training_device(device)
    with init_distributed(device) as world:
        run = Run(out, None, FILES, FORMER, overwrite)
        process = TrainingProcess(run, world, device, TrainingDisplay() if report is None else report)
        try:
            with process.open:
                yield process
        except ElmoError as error:
            process.tell_others(error)
            raise
