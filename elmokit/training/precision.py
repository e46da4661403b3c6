"""The precision in which a training step computes."""

from __future__ import annotations

import torch

from elmokit.nn.kernels.backends import multiplies_tiles
from elmokit.training.config import TrainingConfig


def uses_bfloat16(config: TrainingConfig, device: torch.device) -> bool:
    """Return whether products are computed in bfloat16: if the config asks for it, and it is faster on the device."""
    # On a CPU without tiles, rounding costs more than narrow numbers save: float32 is exact and at least as fast.
    return config.precision == "bfloat16" and (device.type != "cpu" or multiplies_tiles())


def step_autocast(config: TrainingConfig, device: torch.device) -> torch.autocast:
    """Return the context in which the losses of a step are computed."""
    return torch.autocast(device.type, torch.bfloat16, enabled=uses_bfloat16(config, device))
