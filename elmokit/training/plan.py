"""Estimate the memory and the time that a training needs, before it starts and while it runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from itertools import chain

import torch

from elmokit.engine.config import BiLMConfig
from elmokit.engine.softmax import ROWS_AT_ONCE
from elmokit.network.backends import native_library_for
from elmokit.network.bilm import BiLMState
from elmokit.network.softmax import AdaptiveSoftmax
from elmokit.storage.timing import seconds_per_unit
from elmokit.text.windows import Window
from elmokit.training.config import TrainingConfig
from elmokit.training.losses import WindowLosses
from elmokit.training.optimizers import SLOTS, clip_gradients, set_learning_rate
from elmokit.training.precision import step_autocast, uses_bfloat16
from elmokit.training.reports import ModelSizes, TrainingPlan
from elmokit.training.state import config_optimizer

N_TIMED = 5
"""Windows and updates that are timed at most."""
TYPICAL_CHARS = 24  # columns of a batch of tokens: most are short, and empty columns are left out


def seconds_per_step(
    config: TrainingConfig, losses: WindowLosses, window: Window, states: Sequence[BiLMState], with_update: bool = True
) -> float:
    """Measure the time of one optimizer step, without changing weights or random states.

    The first window and the first update are slower than the rest (memory is allocated, kernels are chosen) and are not
    counted. Averaging gradients over processes is not included. A resumed training, whose own optimizer already fills
    the memory, is timed without an update.
    """
    trained = [parameter for parameter in losses.parameters() if parameter.requires_grad]
    device = states[0].hidden.device
    tensors = [torch.from_numpy(array).to(device) for array in (window.tokens, window.inputs, window.targets)]

    def wait() -> None:
        if device.type == "cuda":  # kernels run asynchronously
            torch.cuda.synchronize(device)

    def run_window() -> int:
        with step_autocast(config, device):
            loss, *_ = losses(*tensors, *chain.from_iterable(states))
        loss.mean().backward()
        wait()
        return 1

    # Dropout and sampling draw random numbers here. Without the fork, a run that measures would draw others afterwards
    # than one that does not.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        run_window()
        window_seconds, update_seconds = seconds_per_unit([run_window] * N_TIMED), 0.0
    if with_update:
        optimizer = config_optimizer(config, losses)
        set_learning_rate(optimizer, 0.0)  # it does all its work, and changes nothing

        def update() -> int:
            clip_gradients(trained, config.max_grad_norm)
            optimizer.step()
            wait()
            return 1

        update()  # it allocates the optimizer's slots
        update_seconds = seconds_per_unit([update] * N_TIMED)
    for parameter in trained:
        # Not zeroed: the memory is given back before training starts.
        parameter.grad = None
    return window_seconds * config.gradient_accumulation_steps + update_seconds


def training_plan(
    config: TrainingConfig,
    n_predictions: int,
    n_processes: int,
    seconds_per_step: float | None,
    n_steps_done: int = 0,
    seconds_per_evaluation: float = 0.0,
    n_extra_evaluations: int = 0,
) -> TrainingPlan:
    """Return the plan of ``n_predictions`` more predictions; it has no time if the time of a step is not known."""
    n_steps = -(-n_predictions // (config.predictions_per_step * n_processes))
    seconds = None
    if seconds_per_step is not None:
        n_evaluations = n_extra_evaluations + count_evaluations(n_steps_done, n_steps_done + n_steps, config.eval_every)
        seconds = n_steps * seconds_per_step + n_evaluations * seconds_per_evaluation
    return TrainingPlan(n_predictions, n_steps, config.predictions_per_step, seconds, n_steps_done)


def count_evaluations(n_steps_done: int, n_steps: int, eval_every: int) -> int:
    """Return how many evaluations are left: one every ``eval_every`` steps, and one after the last step."""
    return n_steps // eval_every - n_steps_done // eval_every + (n_steps % eval_every > 0)


def model_sizes(config: TrainingConfig, losses: WindowLosses) -> ModelSizes:
    """Count weights, and estimate the memory of one process."""
    n_bilm = sum(parameter.numel() for parameter in losses.bilm.parameters())
    n_softmax = sum(parameter.numel() for parameter in losses.softmax.parameters())
    n_trained = sum(parameter.numel() for parameter in losses.parameters() if parameter.requires_grad)
    n_gradients_and_slots = n_trained * (1 + len(SLOTS[config.optimizer]))
    n_floats = n_bilm + n_softmax + losses.n_other_weights + n_gradients_and_slots + _n_activations(config, losses)
    return ModelSizes(n_bilm, n_softmax, 4 * n_floats)


def _n_activations(config: TrainingConfig, losses: WindowLosses) -> int:
    """Estimate the numbers that the backward pass of one window needs, as if all its tokens were distinct."""
    n_positions, model = config.batch_size * config.window_length, config.model
    # The buffers of `network/recurrence.py`: gates and their gradients; cells, their tanh and the projection's input;
    # the rest is inputs and outputs. In bfloat16, all of them have 16 bits (`lstm_window.c`).
    weight = next(losses.parameters())
    has_bfloat16 = weight.is_cpu and uses_bfloat16(config, weight.device)
    per_unit = 4 * 2 + 3
    per_lstm = (per_unit // 2 if has_bfloat16 else per_unit) * model.hidden_dim + 6 * model.projection_dim
    is_compiled = (config.precision == "float32" or has_bfloat16) and native_library_for(weight) is not None
    per_token = _n_token_layer_activations(model, is_compiled)
    n_numbers = n_positions * (model.n_directions * model.n_layers * per_lstm + per_token)
    softmax = losses.softmax
    if config.n_samples:
        return n_numbers + model.n_directions * n_positions * config.n_samples * 4
    n_words = softmax.stages.cutoffs[0] if isinstance(softmax, AdaptiveSoftmax) else len(softmax.bias)
    # The full softmax holds one block of scores at a time, and its gradients (`network/softmax.py`); PyTorch's adaptive
    # softmax holds the head's scores of all positions.
    rows = n_positions * 3 if isinstance(softmax, AdaptiveSoftmax) else ROWS_AT_ONCE * 2
    return n_numbers + rows * n_words + sum(parameter.numel() for parameter in softmax.parameters())


def _n_token_layer_activations(model: BiLMConfig, is_compiled: bool) -> int:
    """Estimate the activations of one token. The native convolution keeps only the maxima, not all windows."""
    cnn = model.char_cnn
    if cnn is None:
        return model.projection_dim
    n_chars = min(cnn.max_chars, TYPICAL_CHARS)
    if is_compiled:
        convolved = 2 * (n_chars * cnn.char_dim + cnn.n_features)
    else:
        convolved = sum(n_chars * (width * cnn.char_dim + 2 * count) for width, count in cnn.filters)
    return convolved + cnn.n_features * (4 * cnn.n_highway + 2)


class ThroughputMeter:
    """Speed and remaining time of a training, which counts in any unit, such as predictions.

    The first step is left out of the remaining time as soon as there is another one: it allocates memory and compiles.
    """

    def __init__(self, n_done: int, seconds_per_evaluation: float = 0.0) -> None:
        self._started = self._last_time = time.monotonic()
        self._n_at_start = self._n_last = n_done
        self._is_warm = False
        self._seconds_per_evaluation, self._paused_seconds = seconds_per_evaluation, 0.0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time of the block (a checkpoint) out of the speed."""
        started = time.monotonic()
        yield
        seconds = time.monotonic() - started
        self._last_time += seconds
        self._paused_seconds += seconds

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Leave the time of an evaluation out of the speed, and expect later ones to take as long."""
        started = time.monotonic()
        with self.paused():
            yield
        self._seconds_per_evaluation = time.monotonic() - started

    def rate(self, n_done: int) -> float:
        """Return the units per second since the last call."""
        now = time.monotonic()
        rate = (n_done - self._n_last) / max(now - self._last_time, 1e-9)
        self._last_time, self._n_last = now, n_done
        return rate

    def step_done(self, n_done: int, total: int, n_evaluations: int = 0) -> float:
        """Note that a step is done, and estimate the time to ``total`` with this many evaluations."""
        # Evaluations are counted, and not spread over the training: one right after the start would otherwise make the
        # rest seem to take many times as long.
        now = time.monotonic() - self._paused_seconds
        steps = max(0, total - n_done) * (now - self._started) / max(1, n_done - self._n_at_start)
        if not self._is_warm:
            self._is_warm, self._started, self._n_at_start = True, now, n_done
        return steps + n_evaluations * self._seconds_per_evaluation
