"""The precision in which a training step computes."""

from __future__ import annotations

import torch

from elmokit.network.backends import multiplies_bfloat16
from elmokit.training.config import TrainingConfig


def uses_bfloat16(config: TrainingConfig, device: torch.device) -> bool:
    """Check whether products are computed in bfloat16: if the config asks for it, and it is faster on the device."""
    # A CPU that cannot multiply such numbers would widen the rounded ones again: float32 is exact and at least as fast.
    return config.precision == "bfloat16" and (device.type != "cpu" or multiplies_bfloat16())


def step_autocast(config: TrainingConfig, device: torch.device) -> torch.autocast:
    """Return the context in which the losses of a step are computed."""
    return torch.autocast(device.type, torch.bfloat16, enabled=uses_bfloat16(config, device))
