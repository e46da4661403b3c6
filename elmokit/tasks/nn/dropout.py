"""Dropout with one mask per sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class VariationalDropout(nn.Module):
    """Variational dropout: drop a feature at every step of a sequence or at none (Gal and Ghahramani 2016)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop features of ``(batch, time, dim)``; in training the kept features are scaled by ``1 / (1 - p)``."""
        if not self.training or self.p == 0:
            return inputs
        kept = torch.empty_like(inputs[:, :1]).bernoulli_(1 - self.p)
        return inputs * kept / (1 - self.p)
