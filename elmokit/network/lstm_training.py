"""Train an LSTM layer on a window of text, with the gradient written out.

The loop over steps is that of ``network/recurrence.py``. On a CPU in float32 the elementwise part of a step is a C
function, unless ``reference`` was requested.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmokit.engine.library import Library
from elmokit.network import native_training
from elmokit.network.backends import native_library_for, tile_library_for
from elmokit.network.recurrence import (
    StepFunctions,
    run_recurrence,
    sigmoid_backward_,
    tanh_backward_,
    zero_where_clipped,
)


def run_window(
    inputs: Tensor,  # (batch, time, input_dim)
    weight: Tensor,  # (4 * hidden_dim, input_dim + projection_dim), blocks i, g, f, o
    bias: Tensor,  # (4 * hidden_dim,), the forget offset included
    projection: Tensor | None,  # (projection_dim, hidden_dim)
    hidden: Tensor,  # (batch, projection_dim)
    cell: Tensor,  # (batch, hidden_dim)
    cell_clip: float | None,
    projection_clip: float | None,
    lengths: Tensor | None = None,  # (batch,), the number of steps of each row of a padded batch
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer over a window from its first step to its last, also over padding: outputs, last hidden, last cell.

    The counterpart of ``ProjectedLSTM._run_reference``. No gradient flows into or out of the states: truncated
    backpropagation through time cuts it between windows.
    """
    inputs = inputs.to(weight.dtype)
    is_autocast = torch.is_autocast_enabled(inputs.device.type)
    if is_autocast and projection is not None and lengths is None:
        tensors = (inputs, weight, bias, projection, hidden.detach(), cell.detach())
        if (tiles := tile_library_for(inputs)) is not None and _sizes_match(*tensors):
            return _TileWindow.apply(tiles, cell_clip, projection_clip, *tensors)  # type: ignore[no-any-return, no-untyped-call]
    library = None if is_autocast else native_library_for(inputs)
    inputs = inputs.transpose(0, 1).contiguous()
    n_inputs = inputs.shape[-1]
    input_weight, state_weight = torch.split(weight, [n_inputs, weight.shape[1] - n_inputs], dim=1)
    if library is None:
        step = partial(_training_step, cell_clip=cell_clip)
        step_backward = partial(_training_step_backward, cell_clip=cell_clip)
    else:
        step = partial(native_training.training_step, library, cell_clip=cell_clip)
        step_backward = partial(native_training.training_step_backward, library, cell_clip=cell_clip)
    outputs, last_hidden, last_cell = run_recurrence(
        StepFunctions(4, step, step_backward),
        inputs,
        input_weight,
        bias,
        state_weight,
        hidden.detach(),
        cell.detach(),
        projection=projection,
        projection_clip=projection_clip,
        lengths=lengths,
    )
    return outputs.transpose(0, 1), last_hidden, last_cell


class _TileWindow(torch.autograd.Function):
    """``native_training.window_forward`` and its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        library: Library,
        cell_clip: float | None,
        projection_clip: float | None,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        inputs, weight, bias, projection, hidden, cell = (tensor.contiguous() for tensor in tensors)
        outputs, cell, kept = native_training.window_forward(
            library, inputs, weight, bias, projection, hidden, cell, cell_clip, projection_clip
        )
        ctx.save_for_backward(inputs, hidden, outputs, kept)
        ctx.library, ctx.clips, ctx.hidden_dim = library, (cell_clip, projection_clip), cell.shape[1]
        last = outputs[:, -1].clone()  # not a view, which would keep the outputs of all steps in memory
        ctx.mark_non_differentiable(last, cell)
        return outputs, last, cell

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs, hidden, outputs, kept = ctx.saved_tensors
        gradients = native_training.window_backward(
            ctx.library, upstream[0].contiguous(), inputs, hidden, outputs, kept, ctx.hidden_dim, *ctx.clips
        )
        return None, None, None, *gradients, None, None


def _sizes_match(
    inputs: Tensor, weight: Tensor, bias: Tensor, projection: Tensor, hidden: Tensor, cell: Tensor
) -> bool:
    """Check whether all sizes and types fit together: C would read foreign memory where they do not."""
    n_rows, _, input_dim = inputs.shape
    dim, hidden_dim = projection.shape
    shapes = [(4 * hidden_dim, input_dim + dim), (4 * hidden_dim,), (n_rows, dim), (n_rows, hidden_dim)]
    return [tensor.shape for tensor in (weight, bias, hidden, cell)] == shapes and all(
        tensor.dtype == torch.float32 and tensor.device == inputs.device and len(tensor)
        for tensor in (inputs, weight, bias, projection, hidden, cell)
    )


def _training_step(
    gates: Tensor, cell_before: Tensor, cell_after: Tensor, tanh_cell: Tensor, outputs: Tensor, cell_clip: float | None
) -> None:
    """Compute the elementwise part of one step; arguments as in ``native_training.training_step``."""
    i, g, f, o = gates.chunk(4, dim=1)
    torch.sigmoid_(i)
    torch.tanh_(g)
    torch.sigmoid_(f)
    torch.sigmoid_(o)
    torch.mul(f, cell_before, out=cell_after).addcmul_(i, g)
    if cell_clip is not None:
        cell_after.clamp_(-cell_clip, cell_clip)
    torch.tanh(cell_after, out=tanh_cell)
    torch.mul(o, tanh_cell, out=outputs)


def _training_step_backward(
    gradient: Tensor,
    gates: Tensor,
    cell_before: Tensor,
    cell_after: Tensor,
    tanh_cell: Tensor,
    cell_gradient: Tensor,
    gate_gradient: Tensor,
    cell_clip: float | None,
) -> None:
    """Compute the gradient of ``_training_step``; arguments as in ``native_training.training_step_backward``."""
    i, g, f, o = gates.chunk(4, dim=1)
    i_gradient, g_gradient, f_gradient, o_gradient = gate_gradient.chunk(4, dim=1)
    torch.mul(gradient, tanh_cell, out=o_gradient)
    # The cell receives gradient from its tanh in this step and from the next step's cell.
    total = torch.ops.aten.tanh_backward(gradient * o, tanh_cell).add_(cell_gradient)
    if cell_clip is not None:
        zero_where_clipped(total, cell_after, cell_clip)
    torch.mul(total, g, out=i_gradient)
    torch.mul(total, i, out=g_gradient)
    torch.mul(total, cell_before, out=f_gradient)
    torch.mul(total, f, out=cell_gradient)
    for activation_gradient, activation in ((i_gradient, i), (f_gradient, f), (o_gradient, o)):
        sigmoid_backward_(activation_gradient, activation)
    tanh_backward_(g_gradient, g)
