"""Layers that train with products of bfloat16 tiles (AMX, AVX-512 BF16): linear layers, highways, dropout, the loss.

Under ``torch.autocast`` to bfloat16 on a CPU, PyTorch rounds the factors of products, calls oneDNN, and returns rounded
sums. These functions round the same factors, but keep sums and everything elementwise in float32, and save most of the
memory traffic. ``backends.tile_library_for`` decides where they are used; elsewhere autocast does what it always does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.network import native_training
from elmokit.network.backends import has_memory, tile_library_for
from elmokit.network.operators import computes, differentiable_once, has_results_like, loaded_library


class TileLinear(nn.Linear):
    """``nn.Linear`` that trains with bfloat16 tiles, under autocast on a CPU that has them."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``(rows, in_features)`` to ``(rows, out_features)``."""
        tensors = (inputs, self.weight, self.bias)
        needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        library = tile_library_for(inputs) if needs_gradient and fits_tiles(inputs, self) else None
        return super().forward(inputs) if library is None else tile_linear(*tensors)


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


# A linear layer

torch.library.define("elmokit::tile_linear", "(Tensor inputs, Tensor weight, Tensor bias) -> Tensor")
torch.library.define(
    "elmokit::tile_linear_backward",
    "(Tensor upstream, Tensor inputs, Tensor weight, bool needs_inputs) -> (Tensor, Tensor, Tensor)",
)


def tile_linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``F.linear(inputs, weight, bias)`` for ``(rows, n_inputs)``."""
    outputs: Tensor = torch.ops.elmokit.tile_linear.default(inputs, weight, bias)
    return outputs


@computes("elmokit::tile_linear")
def _linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return native_training.linear_forward(loaded_library(), inputs.contiguous(), weight.contiguous(), bias.contiguous())


@computes("elmokit::tile_linear_backward")
def _linear_backward(
    upstream: Tensor, inputs: Tensor, weight: Tensor, needs_inputs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    inputs, weight = inputs.contiguous(), weight.contiguous()
    of_inputs = torch.empty_like(inputs) if needs_inputs else None
    of_weight, of_bias = native_training.linear_backward(
        loaded_library(), inputs, weight, upstream.contiguous(), of_inputs
    )
    return inputs.new_empty(0) if of_inputs is None else of_inputs, of_weight, of_bias


@has_results_like("elmokit::tile_linear")
def _fake_linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return inputs.new_empty(inputs.shape[0], weight.shape[0])


@has_results_like("elmokit::tile_linear_backward")
def _fake_linear_backward(
    upstream: Tensor, inputs: Tensor, weight: Tensor, needs_inputs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    of_inputs = inputs.new_empty(inputs.shape if needs_inputs else 0)
    return of_inputs, weight.new_empty(weight.shape), weight.new_empty(weight.shape[0])


def _keep_linear(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _differentiate_linear(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    needs_inputs = ctx.needs_input_grad[0]
    of_inputs, of_weight, of_bias = torch.ops.elmokit.tile_linear_backward.default(
        upstream, *ctx.saved_tensors, needs_inputs
    )
    return of_inputs if needs_inputs else None, of_weight, of_bias


torch.library.register_autograd("elmokit::tile_linear", _differentiate_linear, setup_context=_keep_linear)
differentiable_once("elmokit::tile_linear_backward")


# A highway layer

torch.library.define(
    "elmokit::tile_highway",
    "(Tensor inputs, Tensor transform, Tensor transform_bias, Tensor gate, Tensor gate_bias) -> "
    "(Tensor, Tensor, Tensor)",
)
torch.library.define(
    "elmokit::tile_highway_backward",
    "(Tensor upstream, Tensor inputs, Tensor transform, Tensor gate, Tensor transformed, Tensor opened) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def tile_highway(inputs: Tensor, transform: tuple[Tensor, Tensor], gate: tuple[Tensor, Tensor]) -> Tensor:
    """Compute a highway layer (``char_cnn.Highway``) on ``(rows, dim)``; both branches are a weight and a bias."""
    outputs: Tensor = torch.ops.elmokit.tile_highway.default(inputs, *transform, *gate)[0]
    return outputs


@computes("elmokit::tile_highway")
def _highway(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    inputs, transform, transform_bias, gate, gate_bias = (tensor.contiguous() for tensor in tensors)
    library = loaded_library()
    transformed = native_training.linear_forward(library, inputs, transform, transform_bias)
    opened = native_training.linear_forward(library, inputs, gate, gate_bias)
    outputs = native_training.highway_forward(library, inputs, transformed, opened)
    return outputs, transformed, opened


@computes("elmokit::tile_highway_backward")
def _highway_backward(*tensors: Tensor) -> tuple[Tensor, ...]:
    upstream, inputs, transform, gate, transformed, opened = (tensor.contiguous() for tensor in tensors)
    library = loaded_library()
    of_sum, of_gate_sum, gradient = native_training.highway_backward(library, upstream, inputs, transformed, opened)
    of_transform = native_training.linear_backward(library, inputs, transform, of_sum, gradient, adds=True)
    of_gate = native_training.linear_backward(library, inputs, gate, of_gate_sum, gradient, adds=True)
    return gradient, *of_transform, *of_gate


@has_results_like("elmokit::tile_highway")
def _fake_highway(inputs: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    return tuple(inputs.new_empty(inputs.shape) for _ in range(3))


@has_results_like("elmokit::tile_highway_backward")
def _fake_highway_backward(
    upstream: Tensor, inputs: Tensor, transform: Tensor, gate: Tensor, *kept: Tensor
) -> tuple[Tensor, ...]:
    of_weights = [weight.new_empty(shape) for weight in (transform, gate) for shape in (weight.shape, weight.shape[:1])]
    return inputs.new_empty(inputs.shape), *of_weights


def _keep_highway(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    of_layer, transform, _, gate, _ = inputs
    ctx.save_for_backward(of_layer, transform, gate, *output[1:])
    ctx.set_materialize_grads(False)


def _differentiate_highway(ctx: Any, upstream: Tensor | None, *others: None) -> tuple[Tensor | None, ...]:
    if upstream is None:
        return (None,) * 5
    gradients: tuple[Tensor, ...] = torch.ops.elmokit.tile_highway_backward.default(upstream, *ctx.saved_tensors)
    return gradients


torch.library.register_autograd("elmokit::tile_highway", _differentiate_highway, setup_context=_keep_highway)
differentiable_once("elmokit::tile_highway_backward")


# The loss

torch.library.define(
    "elmokit::tile_cross_entropy",
    "(Tensor hidden, Tensor weight, Tensor offsets, Tensor own_scores, Tensor skipped) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def tile_cross_entropy(hidden: Tensor, weight: Tensor, offsets: Tensor, own_scores: Tensor, skipped: Tensor) -> Tensor:
    """Return the summed cross-entropy of all rows; see ``native_training.softmax_loss``."""
    loss: Tensor = torch.ops.elmokit.tile_cross_entropy.default(hidden, weight, offsets, own_scores, skipped)[0]
    return loss


@computes("elmokit::tile_cross_entropy")
def _cross_entropy(*tensors: Tensor) -> tuple[Tensor, ...]:
    losses, gradients = native_training.softmax_loss(loaded_library(), *(tensor.contiguous() for tensor in tensors))
    return losses.sum(), *gradients


@has_results_like("elmokit::tile_cross_entropy")
def _fake_cross_entropy(hidden: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    return hidden.new_empty(()), *(tensor.new_empty(tensor.shape) for tensor in (hidden, *others[:3]))


def _keep_cross_entropy(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.set_materialize_grads(False)


def _differentiate_cross_entropy(ctx: Any, upstream: Tensor | None, *others: None) -> tuple[Tensor | None, ...]:
    if upstream is None:
        return (None,) * 5
    # The loss is a scalar, so the chain rule is one multiplication.
    return *(gradient * upstream for gradient in ctx.saved_tensors), None


torch.library.register_autograd(
    "elmokit::tile_cross_entropy", _differentiate_cross_entropy, setup_context=_keep_cross_entropy
)


# Dropout

torch.library.define("elmokit::seeded_dropout", "(Tensor inputs, Tensor seed, float probability) -> Tensor")


def tile_dropout(inputs: Tensor, probability: float) -> Tensor:
    """Return ``F.dropout(inputs, probability)``, with a seed from PyTorch's default generator."""
    outputs: Tensor = torch.ops.elmokit.seeded_dropout.default(inputs, torch.randint(2**63 - 1, ()), probability)
    return outputs


@computes("elmokit::seeded_dropout")
def _seeded_dropout(inputs: Tensor, seed: Tensor, probability: float) -> Tensor:
    return native_training.seeded_dropout(loaded_library(), inputs.contiguous(), probability, int(seed))


@has_results_like("elmokit::seeded_dropout")
def _fake_dropout(inputs: Tensor, seed: Tensor, probability: float) -> Tensor:
    return inputs.new_empty(inputs.shape)


def _keep_seed(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, seed, ctx.probability = inputs
    ctx.save_for_backward(seed)


def _differentiate_dropout(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    # The same choice again, instead of a mask in memory.
    (seed,) = ctx.saved_tensors
    return torch.ops.elmokit.seeded_dropout.default(upstream, seed, ctx.probability), None, None


torch.library.register_autograd("elmokit::seeded_dropout", _differentiate_dropout, setup_context=_keep_seed)


def dropout(inputs: Tensor, probability: float, training: bool) -> Tensor:
    """Return ``F.dropout(inputs, probability, training)``.

    In bfloat16 with tiles, a compiled function chooses the zeros, from a seed that PyTorch's generator draws: the other
    parts of a step have become so fast that PyTorch's draws took a twentieth of it.
    """
    if training and 0 < probability < 1 and torch.is_grad_enabled():
        library = tile_library_for(inputs)
        if library is not None and inputs.numel():
            return tile_dropout(inputs, probability)
    return F.dropout(inputs, probability, training)


class Dropout(nn.Dropout):
    """``nn.Dropout`` with :func:`dropout`."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Map a tensor to one of the same size."""
        return dropout(inputs, self.p, self.training)
