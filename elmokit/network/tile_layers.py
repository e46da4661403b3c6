"""Layers implemented by operators: linear layers, highways, dropout, the loss.

Without gradients, a row has the same bits in any batch. Under ``torch.autocast`` to bfloat16 on a CPU, training uses
products of bfloat16 tiles (AMX, AVX-512 BF16). PyTorch rounds the factors of products, calls oneDNN, and returns
rounded sums. These functions round the same factors, but keep sums and all elementwise operations in float32, and avoid
most of the memory traffic. ``operators.takes_tiles`` decides when to use them; otherwise, autocast works as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.network import native_training
from elmokit.network.operators import (
    c_library,
    computes,
    computes_rows,
    differentiable_once,
    has_results_like,
    needs_gradient,
    takes_tiles,
    tile_library,
)

BLOCK = 64
"""A multiple of the numbers that PyTorch computes at a time on a CPU: up to 32 with AVX-512."""

# A linear layer


class TileLinear(nn.Linear):
    """``nn.Linear``, computed by :func:`linear`."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``(..., in_features)`` to ``(..., out_features)``."""
        return linear(inputs, self.weight, self.bias)


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute ``F.linear(inputs, weight, bias)``, with an operator in float32 on a CPU."""
    tensors = (inputs, weight, bias)
    if needs_gradient(*tensors):
        if bias is not None and inputs.ndim == 2 and len(inputs) and takes_tiles(*tensors):
            return tile_linear(inputs, weight, bias)
        return F.linear(inputs, weight, bias)
    if not computes_rows(*tensors):
        return F.linear(inputs, weight, bias)
    outputs: Tensor = torch.ops.elmokit.linear.default(inputs, weight, bias)
    return outputs


torch.library.define("elmokit::linear", "(Tensor inputs, Tensor weight, Tensor? bias) -> Tensor")


@computes("elmokit::linear")
def _linear_rows(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    library = c_library(inputs, weight, bias)
    fits = inputs.shape[-1:] == weight.shape[1:] and (bias is None or bias.shape == weight.shape[:1])
    if library is None or not fits:  # PyTorch reports mismatched sizes
        return F.linear(inputs, weight, bias)
    rows = inputs.reshape(-1, inputs.shape[-1]).contiguous()
    bias = None if bias is None else bias.contiguous()
    outputs = native_training.linear_rows(library, rows, weight.contiguous(), bias)
    return outputs.view(*inputs.shape[:-1], len(weight))


@has_results_like("elmokit::linear")
def _fake_linear_rows(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return inputs.new_empty(*inputs.shape[:-1], weight.shape[0])


# A linear layer with its gradient, using tiles

torch.library.define("elmokit::tile_linear", "(Tensor inputs, Tensor weight, Tensor bias) -> Tensor")
torch.library.define(
    "elmokit::tile_linear_backward",
    "(Tensor upstream, Tensor inputs, Tensor weight, bool needs_inputs) -> (Tensor, Tensor, Tensor)",
)


def tile_linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute ``F.linear(inputs, weight, bias)`` for ``(rows, n_inputs)``."""
    outputs: Tensor = torch.ops.elmokit.tile_linear.default(inputs, weight, bias)
    return outputs


@computes("elmokit::tile_linear")
def _linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if inputs.ndim != 2 or inputs.shape[1:] != weight.shape[1:] or bias.shape != weight.shape[:1]:
        raise RuntimeError("The sizes of inputs, weight and bias do not match.")  # C would read out of bounds
    library = tile_library(inputs, weight, bias)
    if library is None:
        return _rounded_product(inputs, weight.T) + bias
    return native_training.linear_forward(library, inputs.contiguous(), weight.contiguous(), bias.contiguous())


def _rounded_product(first: Tensor, second: Tensor) -> Tensor:
    """Round two matrices to bfloat16 and compute their product in their own dtype."""
    return (first.bfloat16() @ second.bfloat16()).to(first.dtype)


@computes("elmokit::tile_linear_backward")
def _linear_backward(
    upstream: Tensor, inputs: Tensor, weight: Tensor, needs_inputs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    library = tile_library(upstream, inputs, weight)
    if library is None:
        low_inputs = _rounded_product(upstream, weight) if needs_inputs else inputs.new_empty(0)
        return low_inputs, _rounded_product(upstream.T, inputs), upstream.sum(dim=0)
    inputs, weight = inputs.contiguous(), weight.contiguous()
    of_inputs = torch.empty_like(inputs) if needs_inputs else None
    of_weight, of_bias = native_training.linear_backward(library, inputs, weight, upstream.contiguous(), of_inputs)
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


# The elementwise part of a highway layer

torch.library.define("elmokit::highway", "(Tensor inputs, Tensor transformed, Tensor gate) -> (Tensor, Tensor)")
torch.library.define(
    "elmokit::highway_backward",
    "(Tensor upstream, Tensor inputs, Tensor transformed, Tensor opened) -> (Tensor, Tensor, Tensor)",
)


def highway(inputs: Tensor, transformed: Tensor, gate: Tensor) -> Tensor:
    """Compute ``g * relu(transformed) + (1 - g) * inputs``, ``g = sigmoid(gate)``, for tensors of the same shape."""
    tensors = (inputs, transformed, gate)
    if takes_tiles(*tensors) if needs_gradient(*tensors) else computes_rows(*tensors):
        outputs: Tensor = torch.ops.elmokit.highway.default(inputs, transformed, gate)[0]
        return outputs
    return _highway_formula(inputs, transformed, gate)[0]


def _highway_formula(inputs: Tensor, transformed: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    opened = apply_by_row(torch.sigmoid, gate)
    return opened * F.relu(transformed) + (1 - opened) * inputs, opened


def apply_by_row(function: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """Apply ``torch.sigmoid`` or ``torch.tanh`` so that each row's result depends only on that row.

    On a CPU, PyTorch computes blocks of consecutive numbers with vector instructions. The last numbers of a tensor,
    which do not fill a block, are computed one by one and rounded differently. If the row size is not a multiple of the
    block, a row's position in the batch decides which of its numbers these are. So every row is padded to whole blocks,
    unless a gradient is needed: training never compares a batch with another.
    """
    n_missing = -inputs.shape[-1] % BLOCK
    if not n_missing or inputs.device.type != "cpu" or (inputs.requires_grad and torch.is_grad_enabled()):
        return function(inputs)
    return function(F.pad(inputs, (0, n_missing)))[..., : inputs.shape[-1]]


@computes("elmokit::highway")
def _highway(inputs: Tensor, transformed: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the outputs and the sigmoid of the gate."""
    if not inputs.shape == transformed.shape == gate.shape:
        raise RuntimeError("The inputs, the transformed inputs and the gate must have the same shape.")
    library = c_library(inputs, transformed, gate)
    if library is None:
        return _highway_formula(inputs, transformed, gate)
    opened = gate.clone(memory_format=torch.contiguous_format)  # C overwrites the sums
    outputs = native_training.highway_forward(library, inputs.contiguous(), transformed.contiguous(), opened)
    return outputs, opened


@computes("elmokit::highway_backward")
def _highway_backward(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    upstream, inputs, transformed, opened = (tensor.contiguous() for tensor in tensors)
    library = c_library(*tensors)
    if library is None:
        through = upstream * opened
        of_gate = through * (1 - opened) * (F.relu(transformed) - inputs)
        return upstream * (1 - opened), through * (transformed > 0), of_gate
    of_transformed, of_gate, of_inputs = native_training.highway_backward(
        library, upstream, inputs, transformed, opened
    )
    return of_inputs, of_transformed, of_gate


@has_results_like("elmokit::highway")
def _fake_highway(inputs: Tensor, transformed: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    return inputs.new_empty(inputs.shape), inputs.new_empty(inputs.shape)


@has_results_like("elmokit::highway_backward")
def _fake_highway_backward(upstream: Tensor, inputs: Tensor, *kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return inputs.new_empty(inputs.shape), inputs.new_empty(inputs.shape), inputs.new_empty(inputs.shape)


def _keep_highway(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    of_layer, transformed, _ = inputs
    ctx.save_for_backward(of_layer, transformed, output[1])


def _differentiate_highway(ctx: Any, upstream: Tensor, of_opened: None) -> tuple[Tensor, ...]:
    gradients: tuple[Tensor, ...] = torch.ops.elmokit.highway_backward.default(upstream, *ctx.saved_tensors)
    return gradients


torch.library.register_autograd("elmokit::highway", _differentiate_highway, setup_context=_keep_highway)
differentiable_once("elmokit::highway_backward")


# The loss

torch.library.define(
    "elmokit::tile_cross_entropy",
    "(Tensor hidden, Tensor weight, Tensor offsets, Tensor own_scores, Tensor skipped) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def tile_cross_entropy(hidden: Tensor, weight: Tensor, offsets: Tensor, own_scores: Tensor, skipped: Tensor) -> Tensor:
    """Compute the summed cross-entropy of all rows; see ``native_training.softmax_loss``."""
    loss: Tensor = torch.ops.elmokit.tile_cross_entropy.default(hidden, weight, offsets, own_scores, skipped)[0]
    return loss


@computes("elmokit::tile_cross_entropy")
def _cross_entropy(*tensors: Tensor) -> tuple[Tensor, ...]:
    library = tile_library(*tensors[:4])
    if library is None:
        return _cross_entropy_formula(*tensors)
    losses, gradients = native_training.softmax_loss(library, *(tensor.contiguous() for tensor in tensors))
    return losses.sum(), *gradients


def _cross_entropy_formula(
    hidden: Tensor, weight: Tensor, offsets: Tensor, own_scores: Tensor, skipped: Tensor
) -> tuple[Tensor, ...]:
    scores = _rounded_product(hidden, weight.T) + offsets
    scores = scores.masked_fill(torch.arange(len(weight)) == skipped[:, None], float("-inf"))
    every = torch.cat([own_scores[:, None], scores], dim=1)
    probabilities = every.softmax(dim=1)
    of_own, of_scores = probabilities[:, 0] - 1, probabilities[:, 1:]
    loss = (every.logsumexp(dim=1) - own_scores).sum()
    of_hidden, of_weight = _rounded_product(of_scores, weight), _rounded_product(of_scores.T, hidden)
    return loss, of_hidden, of_weight, of_scores.sum(dim=0), of_own


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
    """Compute ``F.dropout(inputs, probability)`` with a seed from PyTorch's default generator."""
    outputs: Tensor = torch.ops.elmokit.seeded_dropout.default(inputs, torch.randint(2**63 - 1, ()), probability)
    return outputs


@computes("elmokit::seeded_dropout")
def _seeded_dropout(inputs: Tensor, seed: Tensor, probability: float) -> Tensor:
    library = c_library(inputs)
    if library is None:
        kept = torch.rand(inputs.shape, generator=torch.Generator().manual_seed(int(seed))) >= probability
        return inputs * kept / (1 - probability)
    return native_training.seeded_dropout(library, inputs.contiguous(), probability, int(seed))


@has_results_like("elmokit::seeded_dropout")
def _fake_dropout(inputs: Tensor, seed: Tensor, probability: float) -> Tensor:
    return inputs.new_empty(inputs.shape)


def _keep_seed(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, seed, ctx.probability = inputs
    ctx.save_for_backward(seed)


def _differentiate_dropout(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    # Make the same choice again, instead of keeping a mask in memory.
    (seed,) = ctx.saved_tensors
    return torch.ops.elmokit.seeded_dropout.default(upstream, seed, ctx.probability), None, None


torch.library.register_autograd("elmokit::seeded_dropout", _differentiate_dropout, setup_context=_keep_seed)


def dropout(inputs: Tensor, probability: float, training: bool) -> Tensor:
    """Compute ``F.dropout(inputs, probability, training)``.

    In bfloat16 with tiles, a compiled function chooses the zeros, with a seed from PyTorch's generator. The other parts
    of a step are so fast that PyTorch's own dropout took a twentieth of the time.
    """
    if training and 0 < probability < 1 and torch.is_grad_enabled() and inputs.numel() and takes_tiles(inputs):
        return tile_dropout(inputs, probability)
    return F.dropout(inputs, probability, training)


class Dropout(nn.Dropout):
    """``nn.Dropout`` with :func:`dropout`."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Map a tensor to one of the same shape."""
        return dropout(inputs, self.p, self.training)
