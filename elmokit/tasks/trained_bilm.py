"""Adapt the biLM to a task: fine-tune it first (Peters et al. 2018, supplement A.1), or train it with the task's model.

A trainable biLM is the module ``model.inputs.elmo``, so checkpoints, gradient clipping and averaged weights include it
like any other module. As in AllenNLP, it has no dropout of its own while a task is trained; only the mixes have some.
Every sentence starts from the pretrained model's start state, which receives no gradient and does not change with the
weights.
"""

from __future__ import annotations

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
from elmokit.tasks.inputs import InputLayer, Sentences
from elmokit.tasks.run_folder import OWN_BILM
from elmokit.tasks.task import AnyModel
from elmokit.tasks.task_config import ElmoConfig, FinetuneConfig
from elmokit.training import api
from elmokit.training.reports import TrainingProgress, TrainingReport

HELD_OUT_EVERY = 20  # one sentence in 20 is kept for evaluation
# A task's text is small: with batches as large as for a corpus, an epoch would have only a few steps.
MAX_BATCH_SIZE, MAX_WINDOW_LENGTH = 16, 20
DEFAULT_RATIO = 0.01  # the biLM's learning rate, relative to the task's (results/trained-bilm.md)


def copy_for_training(elmo: Elmo) -> ElmoModule:
    """Return a copy of a pretrained model for training, without parts that would not fit the trained weights."""
    pretrained = elmo.model
    vocabulary = None
    if pretrained.config.word_table is not None:
        vocabulary = pretrained.vocabulary
    start_state = pretrained.start_state
    if elmo.start == "warm":
        # A model without a stored start state would compute another one from the trained weights when it is opened.
        start_state = elmo.start_state
    # The alignment stays, because the task is trained on the aligned vectors.
    model = pretrained.replace(
        softmax=None,
        whitening=None,
        sentence_head=None,
        letters=None,
        vocabulary=vocabulary,
        start_state=start_state,
    )
    return ElmoModule(model, start=elmo.start, n_mixes=0).to(elmo.computer.device)


def save_trained(elmo: ElmoModule, folder: Path, task: str) -> None:
    """Write a trained biLM as a model directory, replacing an earlier one."""
    model = elmo.model
    initial = {"source": model.source_name, "card": model.card}
    trained = model.replace(card={"task": task, "initial": initial})
    save_folder(trained, folder / OWN_BILM, overwrite=True)


def trained_fingerprint(folder: Path, start: str) -> str:
    """Return the fingerprint of a biLM written by :func:`save_trained`."""
    return fingerprint(load_folder(folder / OWN_BILM), start)


def parameter_groups(model: AnyModel, config: ElmoConfig | None, learning_rate: float) -> list[dict[str, Any]]:
    """Return the optimizer's parameter groups: the task's model, then the layers of a trainable biLM from the top."""
    layers: list[list[Parameter]] = []
    if model.inputs.elmo is not None:
        layers = parameters_of_layers(model.inputs.elmo.bilm)
    of_bilm: set[int] = set()
    for layer in layers:
        of_bilm.update(map(id, layer))
    others = []
    for parameter in model.parameters():
        if parameter.requires_grad and id(parameter) not in of_bilm:
            others.append(parameter)
    # Schedules multiply the `initial_lr` of each group. Layers that are still frozen are included, because optimizers
    # skip parameters without a gradient.
    groups: list[dict[str, Any]] = [{"params": others, "initial_lr": learning_rate}]
    if layers:
        assert config is not None
        rate = config.learning_rate
        if rate is None:
            rate = DEFAULT_RATIO * learning_rate
        for depth, parameters in enumerate(reversed(layers)):
            groups.append({"params": parameters, "initial_lr": rate * config.layer_decay**depth})
    return groups


def parameters_of_layers(bilm: BiLM) -> list[list[Parameter]]:
    """Return the parameters of each layer, starting with the token layer."""
    layers = []
    for layer in range(bilm.config.n_layers + 1):
        parameters: list[Parameter] = []
        for module in bilm.modules_of_layer(layer):
            parameters += module.parameters()
        layers.append(parameters)
    return layers


def trained_layers(config: ElmoConfig, n_layers: int, epoch: int) -> tuple[int, ...]:
    """Return the layers to train in an epoch, counted from 0 (gradual unfreezing, Howard and Ruder 2018)."""
    if epoch < config.freeze_epochs:
        return ()
    n_trained = n_layers
    if config.unfreeze_every is not None:
        n_trained = min(n_layers, 1 + (epoch - config.freeze_epochs) // config.unfreeze_every)
    return tuple(range(n_layers - n_trained, n_layers))


def unfreeze(inputs: InputLayer, config: ElmoConfig, epoch: int) -> tuple[int, ...]:
    """Freeze or unfreeze the biLM's layers for an epoch, and return the layers to train."""
    assert inputs.elmo is not None
    bilm = inputs.elmo.bilm
    trained = trained_layers(config, bilm.config.n_layers + 1, epoch)
    for layer, parameters in enumerate(parameters_of_layers(bilm)):
        for parameter in parameters:
            parameter.requires_grad_(layer in trained)
    return trained


def finetune_for_task(
    model: str | None,
    sentences: Sentences,
    config: FinetuneConfig,
    folder: Path,
    device: torch.device,
    progress: ProgressCallback | None = None,
) -> None:
    """Fine-tune a biLM on a task's distinct sentences, and write the best model to a directory.

    The training is a run of its own next to the directory, which is resumed after an interruption.
    """

    def report(message: TrainingReport) -> None:
        if progress is not None and isinstance(message, TrainingProgress) and message.fraction:
            progress("fine-tune", message.n_predictions, round(message.n_predictions / message.fraction))

    training = [sentence for index, sentence in enumerate(sentences) if index % HELD_OUT_EVERY != 0]
    if not training:
        raise TextError(f"{len(sentences)} sentence is not enough to fine-tune a biLM (elmo.finetune).")
    text = folder.with_name(f"{folder.name}-text.txt")
    held_out = folder.with_name(f"{folder.name}-held-out.txt")
    _write_sentences(text, training)
    _write_sentences(held_out, sentences[::HELD_OUT_EVERY])
    n_predictions = sum(len(sentence) + 1 for sentence in training)
    batch_size = min(MAX_BATCH_SIZE, len(training))
    settings: dict[str, Any] = {}
    if config.learning_rate is not None:
        settings["learning_rate"] = config.learning_rate
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


def _write_sentences(path: Path, sentences: Sentences) -> None:
    lines = [" ".join(tokens) + "\n" for tokens in sentences]
    with atomic_write(path, overwrite=True) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8", newline="\n")
