"""Maxout layers."""

from __future__ import annotations

from torch import Tensor, nn


class Maxout(nn.Module):
    """A layer whose units are the maximum of several linear maps (Goodfellow et al. 2013)."""

    def __init__(self, input_dim: int, output_dim: int, pool: int) -> None:
        super().__init__()
        self.linear = nn.Linear(input_dim, output_dim * pool)
        self.pool = pool

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the layer: ``(..., input_dim)`` to ``(..., output_dim)``."""
        candidates: Tensor = self.linear(inputs).unflatten(-1, (-1, self.pool))  # (..., output_dim, pool)
        return candidates.amax(dim=-1)
