"""Build what a training consists of: the model, its loss, the optimizer, and the stream of text."""

from __future__ import annotations

import torch

from elmokit.embedding.start_state import stored_or_zero_state
from elmokit.errors import TrainingError
from elmokit.formats.model import PretrainedBiLM
from elmokit.network.bilm import BiLM, BiLMState
from elmokit.network.softmax import build_softmax, softmax_config
from elmokit.text.batching import TokenEncoder
from elmokit.text.windows import WindowStream
from elmokit.training.config import TrainingConfig
from elmokit.training.corpus import TrainingCorpus
from elmokit.training.distillation import DistillationLosses, Teacher, check_predictions
from elmokit.training.distributed import World
from elmokit.training.losses import WindowLosses
from elmokit.training.muon import Muon, matrix_blocks
from elmokit.training.optimizers import build_optimizer
from elmokit.training.state import TrainingState
from elmokit.training.weight_average import WeightAverage


def new_model(config: TrainingConfig, corpus: TrainingCorpus) -> PretrainedBiLM:
    """Build a model of random weights, with a softmax over the words of a corpus."""
    bilm = BiLM(config.model)
    bilm.reset_parameters()
    softmax = build_softmax(config.softmax, len(corpus.vocabulary), bilm.config.projection_dim, bilm.token_layer)
    softmax.reset_parameters()
    return PretrainedBiLM(bilm, "elmokit", softmax=softmax, vocabulary=corpus.vocabulary)


def build_state(
    config: TrainingConfig,
    corpus: TrainingCorpus,
    model: PretrainedBiLM,
    teacher: PretrainedBiLM | None,
    encode: TokenEncoder,
    world: World,
    device: torch.device,
) -> TrainingState:
    """Build the state that training starts from, on a device.

    Args:
        config: The settings.
        corpus: The text.
        model: The model to train, with a softmax over the words of the corpus.
        teacher: The model to learn from, if the config has a ``distillation``.
        encode: Encodes the tokens of windows, from :func:`~elmokit.training.distillation.window_encoder`.
        world: The processes that train together.
        device: Where to train.

    Raises:
        TrainingError: The model does not fit the corpus or the settings.
        ConfigError: The student cannot learn from the teacher in this way.
    """
    softmax, vocabulary = model.softmax_module, model.vocabulary
    if softmax is None or vocabulary is None or vocabulary.words != corpus.vocabulary.words:
        raise TrainingError("The initial model needs a softmax over the words of the corpus's vocabulary.")
    if (model.config, softmax_config(softmax)) != (config.model, config.softmax):
        raise TrainingError("The initial model and the settings differ in size. Resume with the run's own settings.")
    model.bilm.to(device)
    softmax.to(device)
    n_samples, teacher_state = min(config.n_samples, len(vocabulary)), None
    if config.distillation is None or teacher is None:
        losses = WindowLosses(model.bilm, softmax, n_samples)
    else:
        check_predictions(config, teacher, corpus.vocabulary)
        reader = Teacher(teacher, model, device)
        losses = DistillationLosses(model.bilm, softmax, n_samples, reader, config.distillation).to(device)
        teacher_state = _start_state(teacher, config, device)
    _freeze(config, losses)
    optimizer = config_optimizer(config, losses, world)
    lstm_state = _start_state(model, config, device)
    average = WeightAverage(model, config.ema_decay) if config.ema_decay else None
    stream = window_stream(config, corpus, encode, world)
    return TrainingState(model, losses, optimizer, lstm_state, stream, average, teacher_state)


def window_stream(config: TrainingConfig, corpus: TrainingCorpus, encode: TokenEncoder, world: World) -> WindowStream:
    """Return the windows that one process reads, from the start of the text."""
    return WindowStream(
        corpus.shards,
        corpus.vocabulary,
        encode,
        config.batch_size,
        config.window_length,
        config.model.read_backward,
        config.seed,
        config.shuffle,
        config.same_order,
        world.rank,
        world.size,
    )


def config_optimizer(
    config: TrainingConfig,
    losses: WindowLosses,
    world: World = World(),  # noqa: B008 (immutable)
) -> torch.optim.Optimizer:
    """Build the optimizer of a config for the parameters that are trained, by one process or several."""
    parameters = [parameter for parameter in losses.parameters() if parameter.requires_grad]
    if config.optimizer == "muon":
        blocks = matrix_blocks(losses.bilm)
        return Muon(parameters, blocks, config.learning_rate, config.matrix_learning_rate, fused=True, world=world)
    return build_optimizer(
        config.optimizer, parameters, config.learning_rate, weight_decay=config.weight_decay, fused=True
    )


def _start_state(model: PretrainedBiLM, config: TrainingConfig, device: torch.device) -> BiLMState:
    """Return the LSTM state at the start of the text."""
    return BiLMState.from_numpy(stored_or_zero_state(model, config.batch_size)).to(device)


def _freeze(config: TrainingConfig, losses: WindowLosses) -> None:
    # First everything: the initial model may come with its gradients switched off.
    losses.requires_grad_(True)
    for layer in config.frozen_layers:
        for module in losses.bilm.modules_of_layer(layer):
            module.requires_grad_(False)
    if config.freeze_softmax:
        losses.softmax.requires_grad_(False)
