"""Dropout, with random numbers of its own where training computes in bfloat16."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.network.kernels.backends import tile_library_for
from elmokit.network.kernels.tile_products import tile_dropout


def dropout(inputs: Tensor, probability: float, training: bool) -> Tensor:
    """Return ``F.dropout(inputs, probability, training)``.

    In bfloat16 with tiles, a compiled function chooses the zeros, from a seed that PyTorch's generator draws: the other
    parts of a step have become so fast that PyTorch's draws took a twentieth of it.
    """
    if training and 0 < probability < 1 and torch.is_grad_enabled():
        library = tile_library_for(inputs)
        if library is not None and inputs.numel():
            return tile_dropout(library, inputs, probability)
    return F.dropout(inputs, probability, training)


class Dropout(nn.Dropout):
    """``nn.Dropout`` with :func:`dropout`."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Map a tensor to one of the same size."""
        return dropout(inputs, self.p, self.training)
