"""Adapt the biLM to a task: fine-tune it first, or train it together with the task's model.

Fine-tuning is that of Peters et al. 2018, supplement A.1.

A trainable biLM is the module ``model.inputs.elmo``, so that checkpoints, gradient clipping and averages of the weights
include it like any other module. It has no dropout of its own while a task is trained, as in AllenNLP: only the
dropout of the mixes acts on its vectors. Every sentence starts from the same fixed LSTM state, that of the pretrained
model; no gradient flows into it, and it does not change when the weights do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import Parameter

from elmokit.embedding.elmo import Elmo
from elmokit.embedding.elmo_module import ElmoModule
from elmokit.embedding.fingerprint import fingerprint
from elmokit.errors import TextError
from elmokit.formats.folder import load_folder, save_folder
from elmokit.network.bilm import BiLM
from elmokit.storage.atomic import atomic_write
from elmokit.storage.progress import ProgressCallback
from elmokit.tasks.inputs import InputLayer
from elmokit.tasks.run_folder import OWN_BILM
from elmokit.tasks.task import TaskModel
from elmokit.tasks.task_config import ElmoConfig, FinetuneConfig
from elmokit.training import api
from elmokit.training.reports import TrainingProgress, TrainingReport

HELD_OUT_EVERY = 20  # one sentence in 20 is kept for evaluation
# A task's text is small: with the batches of a corpus, an epoch would have only a few steps.
MAX_BATCH_SIZE, MAX_WINDOW_LENGTH = 16, 20
DEFAULT_RATIO = 0.01  # of the biLM's learning rate to that of the task's model (results/trained-bilm.md)


def copy_for_training(elmo: Elmo) -> ElmoModule:
    """Return a copy of a pretrained model whose weights can be trained, without what becomes invalid with them."""
    # Copied without the softmax, which may be larger than the biLM; tasks do not use it, and it would no longer fit.
    # The alignment stays: the task is trained on the aligned vectors.
    model = elmo.model.replace(
        softmax=None,
        whitening=None,
        sentence_head=None,
        letters=None,
        vocabulary=elmo.model.vocabulary if elmo.model.config.word_table is not None else None,
        # A model that stores none would get another one from the trained weights when it is opened.
        start_state=elmo.start_state if elmo.start == "warm" else elmo.model.start_state,
    )
    return ElmoModule(model, start=elmo.start, n_mixes=0).to(elmo.computer.device)


def save_trained(elmo: ElmoModule, folder: Path, task: str) -> None:
    """Write a trained biLM as a model directory, replacing an earlier one."""
    model = elmo.model
    initial = {"source": model.source_name, "card": model.card}
    save_folder(model.replace(card={"task": task, "initial": initial}), folder / OWN_BILM, overwrite=True)


def trained_fingerprint(folder: Path, start: str) -> str:
    """Return the fingerprint of the biLM that :func:`save_trained` wrote."""
    return fingerprint(load_folder(folder / OWN_BILM), start)


def parameter_groups(
    model: TaskModel[Any, Any], config: ElmoConfig | None, learning_rate: float
) -> list[dict[str, Any]]:
    """Return the optimizer's parameter groups: the task's model, then the layers of a trainable biLM from the top."""
    layers = [] if model.inputs.elmo is None else parameters_of_layers(model.inputs.elmo.bilm)
    of_bilm = {id(parameter) for layer in layers for parameter in layer}
    others = [value for value in model.parameters() if value.requires_grad and id(value) not in of_bilm]
    # Schedules multiply the `initial_lr` of each group. Layers that are still frozen are part of it, because optimizers
    # skip parameters without a gradient.
    groups: list[dict[str, Any]] = [{"params": others, "initial_lr": learning_rate}]
    if layers:
        assert config is not None
        rate = DEFAULT_RATIO * learning_rate if config.learning_rate is None else config.learning_rate
        for depth, parameters in enumerate(reversed(layers)):
            groups.append({"params": parameters, "initial_lr": rate * config.layer_decay**depth})
    return groups


def parameters_of_layers(bilm: BiLM) -> list[list[Parameter]]:
    """Return the parameters of each layer, the token layer first."""
    return [
        [parameter for module in bilm.modules_of_layer(layer) for parameter in module.parameters()]
        for layer in range(bilm.config.n_layers + 1)
    ]


def trained_layers(config: ElmoConfig, n_layers: int, epoch: int) -> tuple[int, ...]:
    """Return the layers that are trained in an epoch from 0 (gradual unfreezing, Howard and Ruder 2018)."""
    if epoch < config.freeze_epochs:
        return ()
    n_trained = n_layers
    if config.unfreeze_every is not None:
        n_trained = min(n_layers, 1 + (epoch - config.freeze_epochs) // config.unfreeze_every)
    return tuple(range(n_layers - n_trained, n_layers))


def unfreeze(inputs: InputLayer, config: ElmoConfig, epoch: int) -> tuple[int, ...]:
    """Switch the gradients of the biLM's layers on or off for an epoch. Return the layers that are trained."""
    assert inputs.elmo is not None
    bilm = inputs.elmo.bilm
    trained = trained_layers(config, bilm.config.n_layers + 1, epoch)
    for layer, parameters in enumerate(parameters_of_layers(bilm)):
        for parameter in parameters:
            parameter.requires_grad_(layer in trained)
    return trained


def finetune_for_task(
    model: str | None,
    sentences: Sequence[Sequence[str]],
    config: FinetuneConfig,
    folder: Path,
    device: torch.device,
    progress: ProgressCallback | None = None,
) -> None:
    """Fine-tune a biLM on the distinct sentences of a task, and write the best model to a directory.

    The training is a run of its own next to the directory, and is resumed if it was interrupted.
    """

    def report(message: TrainingReport) -> None:
        if progress is not None and isinstance(message, TrainingProgress) and message.fraction:
            progress("fine-tune", message.n_predictions, round(message.n_predictions / message.fraction))

    training = [sentence for index, sentence in enumerate(sentences) if index % HELD_OUT_EVERY]
    if not training:
        raise TextError(f"{len(sentences)} sentence is not enough to fine-tune a biLM (elmo.finetune).")
    text, held_out = (folder.with_name(f"{folder.name}-{name}.txt") for name in ("text", "held-out"))
    _write_sentences(text, training)
    _write_sentences(held_out, sentences[::HELD_OUT_EVERY])
    n_predictions = sum(len(sentence) + 1 for sentence in training)
    batch_size = min(MAX_BATCH_SIZE, len(training))
    settings: dict[str, Any] = {} if config.learning_rate is None else {"learning_rate": config.learning_rate}
    result = api.finetune(
        model,
        text,
        held_out=held_out,
        out=folder.with_name(f"{folder.name}-training"),
        held_out_sentences=len(sentences),
        device=device,
        report=report,
        epochs=config.epochs,
        batch_size=batch_size,
        window_length=min(MAX_WINDOW_LENGTH, n_predictions // batch_size),
        **settings,
    )
    save_folder(result.model, folder)


def _write_sentences(path: Path, sentences: Sequence[Sequence[str]]) -> None:
    lines = [" ".join(tokens) + "\n" for tokens in sentences]
    with atomic_write(path, overwrite=True) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8", newline="\n")
