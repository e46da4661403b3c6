"""An exponential moving average of the weights of a module."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


def moving_average(module: nn.Module, decay: float) -> AveragedModel:
    """Return a copy of a module that holds an exponential moving average of its weights during training.

    At a high learning rate, steps move the weights back and forth around a better point, and their average is closer to
    that point. It costs a second copy of the weights, and does not affect training.
    """

    def update(averaged: Any, current: Any, n_steps: Tensor | int) -> None:
        for mean, weight in zip(averaged, current, strict=True):
            mean.lerp_(weight, 1 - decay_at(decay, int(n_steps)))

    average = AveragedModel(module, multi_avg_fn=update)
    average.n_averaged.fill_(1)  # counts the initial weights, as AllenNLP does; with 0, step 1 would replace them
    return average


def decay_at(decay: float, n_steps: int) -> float:
    """Return the decay of a moving average at a step, counted from 1.

    As in TensorFlow and AllenNLP, the decay is lower at first, so the average soon forgets the initial weights.
    """
    return min(decay, (1 + n_steps) / (10 + n_steps))
