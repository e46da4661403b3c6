"""Reverse the rows of a padded batch, each at its own length, so that a backward LSTM reads from the first step on."""

from __future__ import annotations

import torch
from torch import Tensor


def reversed_positions(mask: Tensor) -> Tensor:
    """Return the positions ``(batch, time)`` of each row's tokens in reverse order; padding stays in place."""
    steps = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    return torch.where(mask, mask.sum(dim=1, keepdim=True) - 1 - steps, steps)


def reorder(values: Tensor, positions: Tensor) -> Tensor:
    """Return the steps of ``(batch, time, dim)`` in another order. Reversed twice, they are in their first order."""
    return values.gather(1, positions[..., None].expand(-1, -1, values.shape[-1]))
