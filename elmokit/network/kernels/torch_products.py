"""Multiply by a fixed matrix with PyTorch, in float32 or bfloat16, on any device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Product = Callable[[Tensor], Tensor]
"""Maps ``(rows, inputs)`` in float32 to a new tensor ``(rows, outputs)`` in float32."""


def pack(backend: str, weight: Tensor, bias: Tensor | None = None) -> Product:
    """Return ``inputs @ weight.T + bias`` as a function.

    Args:
        backend: "torch" or "torch-bfloat16".
        weight: ``(outputs, inputs)``.
        bias: ``(outputs,)`` or None.
    """
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    if backend == "torch":
        return lambda inputs: F.linear(inputs, weight, bias)
    half = weight.to(torch.bfloat16)

    def product(inputs: Tensor) -> Tensor:
        outputs = F.linear(inputs.bfloat16(), half).float()
        return outputs if bias is None else outputs.add_(bias)  # in float32, so that the sum is rounded only once

    return product
