"""What a training will take, told before it starts."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from elmokit.bilm import BiLMConfig, BiLMState
from elmokit.nn.fast.choose import compiled_for
from elmokit.nn.softmax import ROWS_AT_ONCE, AdaptiveSoftmax
from elmokit.text.stream import Window
from elmokit.train.config import TrainConfig
from elmokit.train.losses import WindowLosses
from elmokit.train.optimizers import n_slots

N_TIMED = 2


@dataclass(frozen=True)
class Plan:
    """The size and the length of a training."""

    n_parameters: int
    """Of the biLM."""
    n_softmax_parameters: int
    """Of the softmax alone; none of its own weights where it is tied."""
    memory_bytes: int
    """About what one process will hold: weights, gradients, optimizer, one window's activations."""
    n_predictions: int
    """Per direction, of all processes."""
    n_steps: int
    seconds: float
    """Estimated from a few windows, without the looks at the held-out text."""


def seconds_per_step(
    config: TrainConfig, losses: WindowLosses, window: Window, state: BiLMState, n_timed: int = N_TIMED
) -> float:
    """The time of one optimizer step: forward and backward over a window, without changing a weight or a random state.

    The first window, slower than the rest, is not counted.
    """
    parts = [torch.from_numpy(part).to(state.hidden.device) for part in (window.tokens, window.inputs, window.targets)]
    on_gpu = [state.hidden.device] if state.hidden.device.type == "cuda" else []
    with torch.random.fork_rng(on_gpu):
        for index in range(n_timed + 1):
            if index == 1:
                started = time.perf_counter()
            with torch.autocast(state.hidden.device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
                loss, *_ = losses(*parts, *state)
            loss.mean().backward()
            if on_gpu:
                torch.cuda.synchronize()
    for parameter in losses.parameters():
        parameter.grad = None
    return (time.perf_counter() - started) / n_timed * config.accumulate


def make_plan(config: TrainConfig, losses: WindowLosses, n_predictions: int, n_processes: int, seconds: float) -> Plan:
    """The plan of a training of ``n_predictions`` in all, at ``seconds`` a step."""
    n_steps = -(-n_predictions // (config.n_positions * n_processes))
    of_bilm = sum(parameter.numel() for parameter in losses.bilm.parameters())
    of_softmax = sum(parameter.numel() for parameter in losses.softmax.parameters())
    trained = sum(parameter.numel() for parameter in losses.parameters() if parameter.requires_grad)
    weights = of_bilm + of_softmax + trained * (1 + n_slots(config))
    memory = 4 * (weights + _activations(config, losses))
    return Plan(of_bilm, of_softmax, memory, n_predictions, n_steps, n_steps * seconds)


def _activations(config: TrainConfig, losses: WindowLosses) -> int:
    """Numbers that one window's backward pass needs; the token layer's as if every token were distinct."""
    n_positions, model = config.batch_size * config.n_steps, config.model
    per_layer = 4 * model.hidden_dim * 2 + 3 * model.hidden_dim + 6 * model.projection_dim
    is_compiled = config.precision == "float32" and compiled_for(next(losses.parameters())) is not None
    n_token = _token_numbers(model, is_compiled)
    n_numbers = n_positions * (model.n_directions * model.n_layers * per_layer + n_token)
    softmax = losses.softmax
    if config.n_samples:
        return n_numbers + model.n_directions * n_positions * config.n_samples * 4
    n_words = softmax.stages.cutoffs[0] if isinstance(softmax, AdaptiveSoftmax) else len(softmax.bias)
    rows = n_positions * 3 if isinstance(softmax, AdaptiveSoftmax) else ROWS_AT_ONCE * 2
    return n_numbers + rows * n_words + sum(parameter.numel() for parameter in softmax.parameters())


def _token_numbers(model: BiLMConfig, is_compiled: bool) -> int:
    """Of one token; where convolutions are compiled, neither windows nor what each of them gives are kept."""
    cnn = model.char_cnn
    if cnn is None:
        return model.projection_dim
    n_positions = min(cnn.max_chars, 24)  # most tokens are short, and idle columns are left out
    if is_compiled:
        convolved = 2 * (n_positions * cnn.char_dim + cnn.n_features)
    else:
        convolved = sum(n_positions * (width * cnn.char_dim + 2 * count) for width, count in cnn.filters)
    return convolved + cnn.n_features * (4 * cnn.n_highway + 2)
