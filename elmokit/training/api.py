"""Train, distill, fine-tune and resume a biLM: the public functions, which the command line calls too."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from elmokit.config import read_json
from elmokit.errors import ConfigError, SettingError, TextError
from elmokit.formats.folder import load_folder
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.open import as_model
from elmokit.storage.text_files import TextPaths, find_text_files, path_list, read_sentences
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.checkpoint import read_tensors
from elmokit.training.config import LENGTHS, MAY_CHANGE
from elmokit.training.corpus import HELD_OUT_SENTENCES, TrainingCorpus
from elmokit.training.creation import check_new, choose_text, create_finetuning, create_training
from elmokit.training.curves import TensorBoardLog
from elmokit.training.distributed import World, init_distributed, training_device
from elmokit.training.loop import run_training
from elmokit.training.reports import TrainingCallback, TrainingDisplay, TrainingProgress, TrainingReport
from elmokit.training.results import TrainingResult, finish_run
from elmokit.training.run import CARD, HELD_OUT, INITIAL, INITIAL_OPTIMIZER, SETTINGS, TEACHER, VOCABULARY, RunSettings
from elmokit.training.settings import ConfigSource, DataConfig, finetuning_settings, training_settings
from elmokit.training.softmax_transfer import softmax_words
from elmokit.training.state import checkpoints

NEEDS_TEACHER = "The settings of a distillation are for elmokit distill and elmokit.distill."


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

    The run directory ``out`` holds everything that is needed to resume an interrupted training with :func:`resume`.
    Under ``torchrun``, each process calls this function, and all of them train one model.

    Args:
        texts: Text to train on, with one tokenized sentence per line: files (``.txt``, ``.gz``, ``.xz``, ``.zst``),
            directories or glob patterns.
        held_out: Validation text. The model with the lowest perplexity on it is kept.
        out: The run directory. If the same call has started a run there, it is continued.
        recipe: Settings to start from: ``"modern"`` (default) or ``"bilm-tf"``.
        preset: Size of the model: ``"tiny"``, ``"mini"``, ``"small"``, ``"medium"`` or ``"original"``; by default that
            of the recipe.
        config: A TOML file of settings, or its content as a table; or the ``options.json`` of a training with bilm-tf.
            Keyword arguments override it.
        vocabulary: The words of the softmax, or a file of them.
        max_words: Alternative to ``vocabulary``: use the ``max_words`` most frequent words of ``texts`` (30,000
            by default).
        held_out_sentences: If ``held_out`` has more sentences, sample that many (2,000 by default).
        device: ``"cpu"``, ``"cuda"``, or ``"auto"`` for a GPU if there is one.
        overwrite: Start anew: replace the run in ``out``.
        report: Called with the dataclasses of ``elmokit.training.reports``; by default they are printed.
        **settings: Fields of ``TrainingConfig``, such as ``epochs`` or ``learning_rate``; sizes of the model
            (``hidden_dim``, ``projection_dim``, ``n_layers``, ``dropout``, ``bidirectional``); ``input``
            (``"characters"`` or ``"words"``); ``softmax`` (``"full"``, ``"tied"`` or ``"adaptive"``) and the
            ``cutoffs`` of an adaptive one.

    Returns:
        The best model, its perplexities, and the run directory.

    Raises:
        ConfigError: A setting is unknown or cannot be used.
        TextError: A text cannot be read, or there is too little of it.
        OutputError: ``out`` exists already, or cannot be written.
        TrainingError: The training cannot continue, for example because the loss is not a number.

    Example:
        >>> result = elmokit.train("corpus/", held_out="dev.txt", out="my-run", preset="small", epochs=3)
        >>> forward, backward = result.best_perplexity
        >>> elmo = elmokit.Elmo.from_pretrained("my-run")
    """
    run, report = Path(out), report or TrainingDisplay()

    def create(n_processes: int) -> None:
        layers = training_settings(recipe, preset, config, settings)
        if layers.table["distillation"] is not None:
            raise ConfigError(f"There is no teacher to learn from. {NEEDS_TEACHER}")
        text = choose_text(layers.data, texts, held_out, held_out_sentences, vocabulary, max_words)
        create_training(run, layers, text, n_processes, report)

    return _run_new(run, create, device, overwrite, report)


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
    """Train a small biLM, the student, to do what a large one does.

    The student reads the text as in :func:`train`. Besides the words, it learns the vectors of each layer of the
    teacher, through a projection that is left out in the end, and the teacher's predictions if it has a softmax. The
    result is an ordinary model with vectors of its own size.

    Args:
        teacher: A model, or its path or published name; None for the small English model inside the package.
        texts: Text to train on, as in :func:`train`. It need not be the text that the teacher was trained on.
        held_out: Validation text. The student with the lowest perplexity on it is kept.
        out: The run directory. If the same call has started a run there, it is continued. It gets a copy of the
            teacher.
        recipe, preset, config: As in :func:`train`. They describe the student.
        vocabulary: The words of the student's softmax, or a file of them. The default is the teacher's words if it has
            a softmax, because its predictions can be learned only for the same words; otherwise those of ``texts``.
        max_words: Alternative to ``vocabulary``, as in :func:`train`.
        held_out_sentences, device, overwrite, report: As in :func:`train`.
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
    run, report = Path(out), report or TrainingDisplay()

    def create(n_processes: int) -> None:
        layers = training_settings(recipe, preset, config, settings)
        layers.table["distillation"] = layers.table["distillation"] or {}
        text = choose_text(layers.data, texts, held_out, held_out_sentences, vocabulary, max_words)
        stored = as_model(teacher, options=options)
        if stored.softmax is not None and not text.names_words:
            text = dataclasses.replace(text, vocabulary=softmax_words(stored))
        create_training(run, layers, text, n_processes, report, stored)

    return _run_new(run, create, device, overwrite, report)


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
    device: str | torch.device = "auto",
    overwrite: bool = False,
    report: TrainingCallback | None = None,
    **settings: Any,
) -> TrainingResult:
    """Continue the training of a biLM on your own text.

    By default this trains for one epoch at a fifth of the usual learning rate, as Peters et al. (2018) did before each
    task, and stops early after three evaluations without improvement. The best model includes the one you start from:
    if training does not improve it, it is returned unchanged.

    Args:
        model: A model, or its path or published name; None for the small English model inside the package.
        texts: Text to train on, as in :func:`train`.
        held_out: Text of the same domain to evaluate on.
        out: The run directory. If the same call has started a run there, it is continued.
        old_text: Text of the domain that the model was trained on. Its perplexity before and after shows what the model
            forgets.
        recipe: Settings to start from: ``"modern"`` (default), or ``"bilm-tf"``, which continues a training as the
            ``restart.py`` of bilm-tf does: Adagrad at 0.2, with the sums of the checkpoint.
        keep_optimizer: Continue with the optimizer's state of the checkpoint that the model is from, so that the first
            steps are not larger than the last ones of the earlier training. The checkpoint is bilm-tf's or elmokit's
            (``RUN/checkpoints/step-N``). By default, the recipe ``bilm-tf`` keeps the state where there is one.
        config: As in :func:`train`.
        vocabulary: Words for the softmax, or a file of them. The default is the model's own words, or, for a model
            without a softmax, the words of ``texts``. Weights are kept word by word.
        max_words: Alternative to ``vocabulary``: use the ``max_words`` most frequent words of ``texts``.
        held_out_sentences: If ``held_out`` has more sentences, sample that many; the same goes for ``old_text``.
        options: The options file of an HDF5 model, if it is not next to the weights.
        device, overwrite, report: As in :func:`train`.
        **settings: Fields of ``TrainingConfig``, ``dropout``, and ``softmax`` with ``cutoffs``.

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
    run, report = Path(out), report or TrainingDisplay()

    def create(n_processes: int) -> None:
        # A config file of a fine-tuning has no table [data].
        text = choose_text(DataConfig(), texts, held_out, held_out_sentences, vocabulary, max_words)
        stored = as_model(model, options=options)
        built, continuation = finetuning_settings(stored, recipe, keep_optimizer, config, settings)
        if built.distillation is not None:
            raise ConfigError(f"Fine-tuning has no teacher to learn from. {NEEDS_TEACHER}")
        create_finetuning(run, stored, built, continuation, text, old_text, n_processes, report)

    return _run_new(run, create, device, overwrite, report)


def resume(
    run: str | Path,
    texts: TextPaths = (),
    *,
    device: str | torch.device = "auto",
    report: TrainingCallback | None = None,
    **changes: Any,
) -> TrainingResult:
    """Resume an interrupted training, or continue a finished one with another length.

    On the CPU the result is bit-identical to that of a training that was not interrupted.

    Args:
        run: The run directory.
        texts: The text, if it has moved since the run was started.
        device: As in :func:`train`.
        report: As in :func:`train`.
        **changes: Settings that can change: ``epochs``, ``tokens`` or ``hours`` (``hours`` count from now),
            ``patience``, ``log_every``, ``eval_every``, ``save_every``, ``tensorboard``.

    Returns:
        The best model, its perplexities, and the run directory.

    Raises:
        ConfigError: A setting cannot change.
        TrainingError: The run does not exist, or its text has changed.
        TextError: A text is missing.

    Example:
        >>> result = elmokit.resume("my-run", epochs=5)
    """
    place = training_device(device)
    with init_distributed(place) as world:
        return _run_to_end(Path(run), path_list(texts), changes, world, place, report or TrainingDisplay())


def _run_new(
    run: Path, create: Callable[[int], None], device: str | torch.device, overwrite: bool, report: TrainingCallback
) -> TrainingResult:
    """Create a run directory in the main process unless there is one to continue, and train in all processes."""
    place = training_device(device)
    with init_distributed(place) as world:

        def create_in_main_process() -> None:
            if overwrite and (run / SETTINGS).exists():
                shutil.rmtree(run)
            if not (run / SETTINGS).exists():
                check_new(run)
                create(world.size)

        world.on_main_process(create_in_main_process)
        return _run_to_end(run, (), {}, world, place, report)


def _run_to_end(
    run: Path,
    texts: Sequence[str | Path],
    changes: dict[str, Any],
    world: World,
    device: torch.device,
    report: TrainingCallback,
) -> TrainingResult:
    """Train from the last checkpoint, or from the start, and return the result."""
    earlier = RunSettings.open(run)
    if fixed := sorted(set(changes) - MAY_CHANGE):
        raise SettingError(
            fixed[0],
            "cannot be changed when resuming. You can change the length of the training, its patience, how often it "
            "logs, evaluates and saves, and tensorboard.",
        )
    no_length = dict.fromkeys(LENGTHS) if set(LENGTHS) & set(changes) else {}
    config = dataclasses.replace(earlier.config, **{**no_length, **changes})
    shards = find_text_files(texts, reread=True) if texts else [Path(name) for name, _ in earlier.shards]
    if missing := [shard for shard in shards if not shard.is_file()]:
        raise TextError(f"{missing[0]}, which the run reads, is missing. If the text has moved, give its new path.")
    corpus = TrainingCorpus(
        shards,
        list(read_sentences(run / HELD_OUT)),
        Vocabulary.from_file(run / VOCABULARY),
        earlier.n_sentences,
        earlier.n_tokens,
    )
    card = read_json(run / CARD)
    found = checkpoints(run)
    board = None
    if config.tensorboard and world.is_main_process:
        n_steps = int(found[-1].name.removeprefix("step-")) if found else 0
        board = TensorBoardLog(run, n_steps, config.model.direction_names)

    def report_and_log(progress: TrainingReport) -> None:
        report(progress)
        if board is not None and isinstance(progress, TrainingProgress):
            board.add(progress)

    is_new, has_optimizer = not found, (run / f"{INITIAL_OPTIMIZER}.safetensors").exists()
    end = run_training(
        config,
        corpus,
        run,
        card,
        report_and_log,
        initial=load_folder(run / INITIAL) if is_new and (run / INITIAL).exists() else None,
        initial_optimizer=read_tensors(run, INITIAL_OPTIMIZER) if is_new and has_optimizer else None,
        teacher=None if config.distillation is None else load_folder(run / TEACHER),
        world=world,
        device=device,
        hours_from_now="hours" in changes,
    )
    if board is not None:
        board.close()
    if not world.is_main_process:
        return TrainingResult(run, end, None, is_main_process=False)
    return finish_run(run, config, end, report)
