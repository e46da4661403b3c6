"""The optimizers of a training."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn import Parameter

from elmokit.training.config import TrainingConfig

_SLOTS = {"adam": 2, "adamw": 2, "adagrad": 1}


def build_optimizer(config: TrainingConfig, parameters: Iterable[Parameter]) -> torch.optim.Optimizer:
    """The optimizer of a config; Adagrad is bilm-tf's: sums begin at 1, and nothing is added to the divisor."""
    if config.optimizer == "adagrad":
        return torch.optim.Adagrad(parameters, lr=config.learning_rate, initial_accumulator_value=1.0, eps=0.0)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay, fused=True)
    return torch.optim.Adam(parameters, lr=config.learning_rate, fused=True)


def n_slots(config: TrainingConfig) -> int:
    """Numbers that the optimizer keeps for each weight."""
    return _SLOTS[config.optimizer]
