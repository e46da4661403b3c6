"""Elementwise functions of which a row's result does not depend on the other rows, to the last bit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 64
"""A multiple of the numbers that PyTorch computes at a time on a CPU: up to 32 with AVX-512."""


def apply_by_row(function: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """Apply ``torch.sigmoid`` or ``torch.tanh`` so that each row's result depends on that row alone.

    On a CPU, PyTorch computes blocks of consecutive numbers with vector instructions, and the last few numbers of a
    tensor, which fill no block, one by one, with other rounding. If the row size is not a multiple of the block, it
    depends on a row's position in the batch which of its numbers these are. Here every row is padded to whole blocks.

    Where a gradient is needed, the function is applied as it is: in training a batch is never compared with another.

    Args:
        function: The elementwise function.
        inputs: ``(..., dim)``.

    Returns:
        ``(..., dim)``.
    """
    n_missing = -inputs.shape[-1] % BLOCK
    if not n_missing or inputs.device.type != "cpu" or (inputs.requires_grad and torch.is_grad_enabled()):
        return function(inputs)
    return function(F.pad(inputs, (0, n_missing)))[..., : inputs.shape[-1]]
