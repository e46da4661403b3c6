"""Train, distill and fine-tune a biLM: the public functions, which the command line calls too.

The call that started a run continues it. On the CPU the result has the same bits as that of a training that was not
interrupted.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from elmokit.formats.open import as_model
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.text_files import TextPaths
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.process import training_process
from elmokit.training.reports import TrainingCallback
from elmokit.training.results import TrainingResult
from elmokit.training.settings import ConfigSource, finetuning_settings, training_settings
from elmokit.training.start import TrainingRequest, merge_data
from elmokit.training.training_config import HELD_OUT_SENTENCES, DataConfig, DistillationConfig
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
        recipe: Settings to start from: ``"modern"`` (default), which the included model was trained with, or
            ``"bilm-tf"``.
        preset: Size of the model: ``"tiny"``, ``"mini"``, ``"small"``, ``"medium"`` or ``"original"``; by default that
            of the recipe.
        config: TOML file of settings, which other arguments override; or bilm-tf's ``options.json``. It can
            also be the content of such a file as a table.
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
        keep_optimizer: Continue with the optimizer's state of the checkpoint that the model is from, so that the first
            steps are not larger than the last ones of the earlier training. The checkpoint is bilm-tf's or elmokit's
            (``RUN/checkpoints/step-N``). By default, the recipe ``bilm-tf`` keeps the state where there is one.
        config: TOML file of settings, which other arguments override; or bilm-tf's ``options.json``.
        vocabulary: Words for the softmax, or a file of them. The default is the model's own words, or, for a model
            without a softmax, the words of ``texts``. Weights are kept word by word.
        max_words: Alternative to ``vocabulary``: use the ``max_words`` most frequent words of ``texts``.
        held_out_sentences: If ``held_out`` has more sentences, sample that many; the same goes for ``old_text``.
        options: The options file of an HDF5 model, if it is not next to the weights.
        exact_marks: Read typographic marks as they are, as bilm-tf did, and not in ASCII. The trained model keeps this.
        device: cpu, cuda, or auto: a GPU if there is one.
        overwrite: Start over: replace the run.
        report: As in :func:`train`.
        **settings: Fields of ``TrainingConfig``, ``dropout``, and ``softmax_inner_dim``.

    Returns:
        The best model, its perplexities before and after, and the run directory.

    Raises:
        ModelError: The model cannot be opened.
        TrainingError: The optimizer's state cannot be kept; or as in :func:`train`.
        ConfigError, TextError, OutputError: As in :func:`train`.

    Example:
        >>> result = elmokit.finetune("en-mini", "notes/", held_out="dev.txt", out="clinical")
        >>> result.before_and_after["held-out"]["after"]  # perplexities: forward, backward
    """
    with training_process(out, device, overwrite, report) as process:
        if process.is_main:
            # A config file of a fine-tuning has no table [data].
            data, words = merge_data(DataConfig(), texts, held_out, held_out_sentences, vocabulary, max_words)
            model = as_model(model, options=options)
            if exact_marks:
                model = model.replace(exact_marks=True)
            training, keeps = finetuning_settings(model, recipe, keep_optimizer, config, settings)
            process.start(TrainingRequest(training, data, words, model, keeps, old_text))
        return process.train()
