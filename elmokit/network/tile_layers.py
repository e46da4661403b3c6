"""Layers that train with products of bfloat16 tiles (AMX, AVX-512 BF16): linear layers, highways, dropout, the loss.

Under ``torch.autocast`` to bfloat16 on a CPU, PyTorch rounds the factors of products, calls oneDNN, and returns rounded
sums. These functions round the same factors, but keep sums and everything elementwise in float32, and save most of the
memory traffic. ``backends.tile_library_for`` decides where they are used; elsewhere autocast does what it always does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from elmokit.engine.library import Library
from elmokit.network import native_training
from elmokit.network.backends import has_memory, tile_library_for


class TileLinear(nn.Linear):
    """``nn.Linear`` that trains with bfloat16 tiles, under autocast on a CPU that has them."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``(rows, in_features)`` to ``(rows, out_features)``."""
        tensors = (inputs, self.weight, self.bias)
        needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        library = tile_library_for(inputs) if needs_gradient and fits_tiles(inputs, self) else None
        return super().forward(inputs) if library is None else tile_linear(library, *tensors)


def fits_tiles(inputs: Tensor, *layers: nn.Linear) -> bool:
    """Check whether C functions can compute layers on these inputs: they would read foreign memory for other sizes."""
    return (
        inputs.ndim == 2
        and len(inputs) > 0
        and inputs.dtype == torch.float32
        and all(
            layer.bias is not None
            and layer.weight.shape[1] == inputs.shape[1]
            and layer.weight.dtype == layer.bias.dtype == torch.float32
            and layer.weight.device == inputs.device
            and has_memory(layer.weight)
            and has_memory(layer.bias)
            for layer in layers
        )
    )


def tile_linear(library: Library, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``F.linear(inputs, weight, bias)`` for ``(rows, n_inputs)``."""
    outputs: Tensor = _Linear.apply(library, inputs, weight, bias)  # type: ignore[no-untyped-call]
    return outputs


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, library: Library, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        inputs, weight = inputs.contiguous(), weight.contiguous()
        ctx.save_for_backward(inputs, weight)
        ctx.library = library
        return native_training.linear_forward(library, inputs, weight, bias.contiguous())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        input_gradient = torch.empty_like(inputs) if ctx.needs_input_grad[1] else None
        gradients = native_training.linear_backward(
            ctx.library, inputs, weight, upstream[0].contiguous(), input_gradient
        )
        return None, input_gradient, *gradients


def tile_highway(
    library: Library, inputs: Tensor, transform: tuple[Tensor, Tensor], gate: tuple[Tensor, Tensor]
) -> Tensor:
    """Compute a highway layer (``char_cnn.Highway``) on ``(rows, dim)``; both branches are a weight and a bias."""
    outputs: Tensor = _Highway.apply(library, inputs, *transform, *gate)  # type: ignore[no-untyped-call]
    return outputs


class _Highway(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, library: Library, *tensors: Tensor) -> Tensor:
        inputs, transform, transform_bias, gate, gate_bias = (tensor.contiguous() for tensor in tensors)
        transformed = native_training.linear_forward(library, inputs, transform, transform_bias)
        opened = native_training.linear_forward(library, inputs, gate, gate_bias)
        outputs = native_training.highway_forward(library, inputs, transformed, opened)
        ctx.save_for_backward(inputs, transform, gate, transformed, opened)
        ctx.library = library
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs, transform, gate, transformed, opened = ctx.saved_tensors
        of_sum, of_gate_sum, gradient = native_training.highway_backward(
            ctx.library, upstream[0].contiguous(), inputs, transformed, opened
        )
        of_transform = native_training.linear_backward(ctx.library, inputs, transform, of_sum, gradient, adds=True)
        of_gate = native_training.linear_backward(ctx.library, inputs, gate, of_gate_sum, gradient, adds=True)
        return None, gradient, *of_transform, *of_gate


def tile_cross_entropy(
    library: Library, hidden: Tensor, weight: Tensor, offsets: Tensor, own_scores: Tensor, skipped: Tensor
) -> Tensor:
    """Return the summed cross-entropy of all rows; see ``native_training.softmax_loss``."""
    loss: Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        library, hidden, weight, offsets, own_scores, skipped
    )
    return loss


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, library: Library, *tensors: Tensor) -> Tensor:
        losses, gradients = native_training.softmax_loss(library, *(tensor.contiguous() for tensor in tensors))
        ctx.save_for_backward(*gradients)
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        # The loss is a scalar, so the chain rule is one multiplication.
        return None, *(gradient * upstream[0] for gradient in ctx.saved_tensors), None


def tile_dropout(library: Library, inputs: Tensor, probability: float) -> Tensor:
    """Return ``F.dropout(inputs, probability)``, with a seed from PyTorch's default generator."""
    seed = int(torch.randint(2**63 - 1, ()))
    outputs: Tensor = _Dropout.apply(library, inputs, probability, seed)  # type: ignore[no-untyped-call]
    return outputs


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, library: Library, inputs: Tensor, probability: float, seed: int) -> Tensor:
        ctx.library, ctx.probability, ctx.seed = library, probability, seed
        return native_training.seeded_dropout(library, inputs.contiguous(), probability, seed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        # The same choice again, instead of a mask in memory.
        gradient = native_training.seeded_dropout(ctx.library, upstream[0].contiguous(), ctx.probability, ctx.seed)
        return None, gradient, None, None


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
