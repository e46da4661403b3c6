"""Fast paths for the layers, each equal to its plain twin; ``ProjectedLSTM.forward`` chooses.

``read_window`` is the training path: a full window (no mask) of one LSTM layer with its gradient written
out. Against autograd over the plain loop it forms each weight gradient as one product over all steps
and keeps what the backward pass needs in one buffer per quantity. Where autocast is on, matrix products are in its
number type and all else, sums over time above all, stays in the parameters' own. The elementwise part of each step
is compiled, in float32 on a CPU, unless autocast is on or ``plain`` is asked for; else it is PyTorch's own operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from elmokit.nn.kernels.backends import compiled_for
from elmokit.nn.kernels.native import Library


def read_window(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor,
    projection: Tensor | None,
    hidden: Tensor,
    cell: Tensor,
    cell_clip: float | None,
    projection_clip: float | None,
) -> tuple[Tensor, Tensor]:
    """Read a window of real tokens from its first step to its last; the twin of the loop in ``nn.lstm``.

    Args:
        inputs: ``(batch, time, input_dim)``.
        weight: ``(4 * hidden_dim, input_dim + projection_dim)``, blocks i, g, f, o.
        bias: ``(4 * hidden_dim,)``, the forget offset included.
        projection: ``(projection_dim, hidden_dim)`` or None.
        hidden, cell: the state to start from; no gradient flows into it (windows are cut, as in TBPTT).

    Returns:
        outputs ``(batch, time, projection_dim)``, and the last cell ``(batch, hidden_dim)`` without gradient.
    """
    device = inputs.device.type
    lower = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    with torch.autocast(device, enabled=False):
        outputs: tuple[Tensor, Tensor] = _Window.apply(  # type: ignore[no-untyped-call]
            inputs.to(weight.dtype).transpose(0, 1).contiguous(),
            weight,
            bias,
            projection,
            hidden,
            cell,
            cell_clip,
            projection_clip,
            lower,
        )
    return outputs[0].transpose(0, 1), outputs[1]


def _product(left: Tensor, right: Tensor, lower: torch.dtype | None) -> Tensor:
    """A matrix product, in a lower precision if one is given; the result is in the precision of ``left``."""
    if lower is None:
        return torch.mm(left, right)
    return torch.mm(left.to(lower), right.to(lower)).to(left.dtype)


def _add_product(total: Tensor, left: Tensor, right: Tensor, lower: torch.dtype | None) -> Tensor:
    """``total`` with a product added to it in place."""
    return total.addmm_(left, right) if lower is None else total.add_(_product(left, right, lower))


class _Window(torch.autograd.Function):
    """Time stands first in here: ``(time, batch, ...)``, so that a step is one contiguous block."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        projection: Tensor | None,
        hidden: Tensor,
        cell: Tensor,
        cell_clip: float | None,
        projection_clip: float | None,
        lower: torch.dtype | None,
    ) -> tuple[Tensor, Tensor]:
        n_steps, n_rows, input_dim = inputs.shape
        hidden_dim = len(bias) // 4  # a state of another size is refused where it is copied
        recurrent_weight = weight[:, input_dim:].t().contiguous()  # (projection_dim, 4 * hidden_dim)
        if lower is None:
            gates = F.linear(inputs, weight[:, :input_dim], bias)  # becomes the four activations in place
        else:
            gates = F.linear(inputs.to(lower), weight[:, :input_dim].to(lower)).to(inputs.dtype).add_(bias)
            recurrent_weight = recurrent_weight.to(lower)
        cells = inputs.new_empty(n_steps + 1, n_rows, hidden_dim)
        squashed = inputs.new_empty(n_steps, n_rows, hidden_dim)  # tanh of the cell
        before_projection = inputs.new_empty(n_steps, n_rows, hidden_dim)
        outputs = inputs.new_empty(n_steps + 1, n_rows, weight.shape[1] - input_dim)
        cells[0], outputs[0] = cell, hidden
        library = compiled_for(inputs) if lower is None else None
        for step in range(n_steps):
            here = _add_product(gates[step], outputs[step], recurrent_weight, lower)
            parts = (here, cells[step], cells[step + 1], squashed[step], before_projection[step])
            if library is None:
                _step(*parts, cell_clip)
            else:
                library.window_step(*parts, cell_clip)
            if projection is None:
                outputs[step + 1] = before_projection[step]
            else:
                if lower is None:
                    torch.mm(before_projection[step], projection.t(), out=outputs[step + 1])
                else:
                    outputs[step + 1] = _product(before_projection[step], projection.t(), lower)
                if projection_clip is not None:
                    outputs[step + 1].clamp_(-projection_clip, projection_clip)
        ctx.save_for_backward(inputs, weight, projection, gates, cells, squashed, before_projection, outputs)
        ctx.clips, ctx.lower, ctx.library = (cell_clip, projection_clip), lower, library
        last_cell = cells[-1].clone()
        ctx.mark_non_differentiable(last_cell)
        return outputs[1:], last_cell

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(upstream[0].device.type, enabled=False):
            return _window_gradients(ctx, upstream[0])


def _window_gradients(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    inputs, weight, projection, gates, cells, squashed, before_projection, outputs = ctx.saved_tensors
    (cell_clip, projection_clip), lower = ctx.clips, ctx.lower
    library: Library | None = ctx.library
    n_steps, _, input_dim = inputs.shape
    recurrent_weight = weight[:, input_dim:]
    gate_gradients = torch.empty_like(gates)
    output_gradients = upstream.clone(memory_format=torch.contiguous_format)
    later_cell = torch.zeros_like(cells[0])
    for step in reversed(range(n_steps)):
        output_gradient = output_gradients[step]
        if step < n_steps - 1:
            _add_product(output_gradient, gate_gradients[step + 1], recurrent_weight, lower)
        if projection is None:
            hidden_gradient = output_gradient
        else:
            if projection_clip is not None:
                _zero_where_clipped(output_gradient, outputs[step + 1], projection_clip)
            hidden_gradient = _product(output_gradient, projection, lower)
        of_step = (gates[step], cells[step], cells[step + 1], squashed[step])
        if library is None:
            _step_back(hidden_gradient, *of_step, later_cell, gate_gradients[step], cell_clip)
        else:
            library.window_step_back(hidden_gradient, *of_step, later_cell, gate_gradients[step], cell_clip)
    flat_gates = gate_gradients.flatten(0, 1)
    weight_gradient = torch.empty_like(weight)
    weight_gradient[:, :input_dim] = _product(flat_gates.t(), inputs.flatten(0, 1), lower)
    weight_gradient[:, input_dim:] = _product(flat_gates.t(), outputs[:-1].flatten(0, 1), lower)
    projection_gradient = None
    if projection is not None:
        projection_gradient = _product(output_gradients.flatten(0, 1).t(), before_projection.flatten(0, 1), lower)
    input_gradient = _product(flat_gates, weight[:, :input_dim], lower).view_as(inputs)
    return input_gradient, weight_gradient, flat_gates.sum(dim=0), projection_gradient, *[None] * 5


def _zero_where_clipped(gradient: Tensor, clipped: Tensor, clip: float) -> None:
    """A value at its bound passes no gradient on."""
    gradient.mul_(clipped.abs() < clip)


def _step(
    gates: Tensor, cell_before: Tensor, cell_after: Tensor, squashed: Tensor, outputs: Tensor, cell_clip: float | None
) -> None:
    """The twin of ``Library.window_step``."""
    i, g, f, o = gates.chunk(4, dim=1)
    torch.sigmoid_(i)
    torch.tanh_(g)
    torch.sigmoid_(f)
    torch.sigmoid_(o)
    torch.mul(f, cell_before, out=cell_after).addcmul_(i, g)
    if cell_clip is not None:
        cell_after.clamp_(-cell_clip, cell_clip)
    torch.tanh(cell_after, out=squashed)
    torch.mul(o, squashed, out=outputs)


def _step_back(
    gradient: Tensor,
    gates: Tensor,
    cell_before: Tensor,
    cell_after: Tensor,
    squashed: Tensor,
    later_cell: Tensor,
    to_gates: Tensor,
    cell_clip: float | None,
) -> None:
    """The twin of ``Library.window_step_back``."""
    i, g, f, o = gates.chunk(4, dim=1)
    to_i, to_g, to_f, to_o = to_gates.chunk(4, dim=1)
    torch.mul(gradient, squashed, out=to_o)
    cell_gradient = torch.ops.aten.tanh_backward(gradient * o, squashed).add_(later_cell)
    if cell_clip is not None:
        _zero_where_clipped(cell_gradient, cell_after, cell_clip)
    torch.mul(cell_gradient, g, out=to_i)
    torch.mul(cell_gradient, i, out=to_g)
    torch.mul(cell_gradient, cell_before, out=to_f)
    torch.mul(cell_gradient, f, out=later_cell)
    for of_gate, activation in ((to_i, i), (to_f, f), (to_o, o)):
        torch.ops.aten.sigmoid_backward.grad_input(of_gate, activation, grad_input=of_gate)
    torch.ops.aten.tanh_backward.grad_input(to_g, g, grad_input=to_g)
