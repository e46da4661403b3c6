"""What a training will take, told before it starts, and how fast it is."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.nn import Parameter

from elmokit.bilm import BiLMConfig, BiLMState
from elmokit.nn.kernels.backends import native_library_for
from elmokit.nn.softmax import ROWS_AT_ONCE, AdaptiveSoftmax
from elmokit.text.windows import Window
from elmokit.training.config import TrainingConfig
from elmokit.training.losses import WindowLosses
from elmokit.training.optimizers import N_SLOTS, build_optimizer, clip_gradients, set_learning_rate

N_TIMED = 2


@dataclass(frozen=True)
class Sizes:
    """What a training holds in memory."""

    n_parameters: int
    """Of the biLM."""
    n_softmax_parameters: int
    """Of the softmax alone; none of its own weights where it is tied."""
    memory_bytes: int
    """About what one process will hold: weights, gradients, optimizer, one window's activations."""


@dataclass(frozen=True)
class Plan:
    """What is left of a training."""

    n_predictions: int
    """Per direction, of all processes."""
    n_steps: int
    seconds: float
    """Estimated from a few windows, without the looks at the held-out text."""


def optimizer_of(config: TrainingConfig, parameters: Iterable[Parameter]) -> torch.optim.Optimizer:
    """The optimizer of a config."""
    weight_decay, fused = config.weight_decay, config.optimizer in ("adam", "adamw")
    return build_optimizer(config.optimizer, parameters, config.learning_rate, weight_decay=weight_decay, fused=fused)


def seconds_per_step(
    config: TrainingConfig, losses: WindowLosses, window: Window, state: BiLMState, with_update: bool = True
) -> float:
    """The time of one optimizer step, without changing a weight or a random state; averaging over processes apart.

    The first window and the first update, slower than the rest, are not counted.

    Args:
        with_update: time the optimizer too, with one of its own; not where memory already holds another's numbers.
    """
    trained = [parameter for parameter in losses.parameters() if parameter.requires_grad]
    parts = [torch.from_numpy(part).to(state.hidden.device) for part in (window.tokens, window.inputs, window.targets)]
    on_gpu = [state.hidden.device] if state.hidden.device.type == "cuda" else []
    with torch.random.fork_rng(on_gpu):
        for index in range(N_TIMED + 1):
            if index == 1:
                started = time.perf_counter()
            with torch.autocast(state.hidden.device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
                loss, *_ = losses(*parts, *state)
            loss.mean().backward()
            if on_gpu:
                torch.cuda.synchronize(on_gpu[0])
    of_window, of_update = (time.perf_counter() - started) / N_TIMED, 0.0
    if with_update:
        optimizer = optimizer_of(config, trained)
        set_learning_rate(optimizer, 0.0)  # it does its work and changes nothing
        for _ in range(2):
            started = time.perf_counter()
            clip_gradients(trained, config.max_grad_norm)
            optimizer.step()
            if on_gpu:
                torch.cuda.synchronize(on_gpu[0])
            of_update = time.perf_counter() - started
    for parameter in trained:
        parameter.grad = None
    return of_window * config.accumulate + of_update


def make_plan(config: TrainingConfig, n_predictions: int, n_processes: int, seconds: float) -> Plan:
    """The plan of ``n_predictions`` more, at ``seconds`` a step."""
    n_steps = -(-n_predictions // (config.n_positions * n_processes))
    return Plan(n_predictions, n_steps, n_steps * seconds)


def sizes_of(config: TrainingConfig, losses: WindowLosses) -> Sizes:
    """What one process of a training will hold."""
    of_bilm = sum(parameter.numel() for parameter in losses.bilm.parameters())
    of_softmax = sum(parameter.numel() for parameter in losses.softmax.parameters())
    trained = sum(parameter.numel() for parameter in losses.parameters() if parameter.requires_grad)
    weights = of_bilm + of_softmax + trained * (1 + N_SLOTS[config.optimizer])
    return Sizes(of_bilm, of_softmax, 4 * (weights + _activations(config, losses)))


def _activations(config: TrainingConfig, losses: WindowLosses) -> int:
    """Numbers that one window's backward pass needs; the token layer's as if every token were distinct."""
    n_positions, model = config.batch_size * config.n_steps, config.model
    per_layer = 4 * model.hidden_dim * 2 + 3 * model.hidden_dim + 6 * model.projection_dim
    is_native = config.precision == "float32" and native_library_for(next(losses.parameters())) is not None
    n_token = _token_numbers(model, is_native)
    n_numbers = n_positions * (model.n_directions * model.n_layers * per_layer + n_token)
    softmax = losses.softmax
    if config.n_samples:
        return n_numbers + model.n_directions * n_positions * config.n_samples * 4
    n_words = softmax.stages.cutoffs[0] if isinstance(softmax, AdaptiveSoftmax) else len(softmax.bias)
    rows = n_positions * 3 if isinstance(softmax, AdaptiveSoftmax) else ROWS_AT_ONCE * 2
    return n_numbers + rows * n_words + sum(parameter.numel() for parameter in softmax.parameters())


def _token_numbers(model: BiLMConfig, is_native: bool) -> int:
    """Of one token; where convolutions are compiled, neither windows nor what each of them gives are kept."""
    cnn = model.char_cnn
    if cnn is None:
        return model.projection_dim
    n_positions = min(cnn.max_chars, 24)  # most tokens are short, and idle columns are left out
    if is_native:
        convolved = 2 * (n_positions * cnn.char_dim + cnn.n_features)
    else:
        convolved = sum(n_positions * (width * cnn.char_dim + 2 * count) for width, count in cnn.filters)
    return convolved + cnn.n_features * (4 * cnn.n_highway + 2)
