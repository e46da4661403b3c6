"""Train an LSTM layer on a window of text: the forward pass and its gradient, written out.

Autograd over a loop of steps is slow for two reasons. It records some 20 small operations per step, each with tensors
to keep; and it computes each weight's gradient as a sum of one small product per step. Here each quantity that the
backward pass needs has one buffer for all steps, and each weight gradient is one product over all steps at the end.

Under autocast, matrix products run in autocast's dtype. Everything else stays in the parameters' own dtype, above all
the sums over time, which lose digits otherwise. On a CPU in float32 the elementwise part of a step is a C function,
unless ``reference`` was requested.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from elmokit.nn.kernels.backends import native_library_for
from elmokit.nn.kernels.native import NativeLibrary


def run_window(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor,
    projection: Tensor | None,
    hidden: Tensor,
    cell: Tensor,
    cell_clip: float | None,
    projection_clip: float | None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer over a window from its first step to its last, also over padding.

    The counterpart of ``ProjectedLSTM._run_reference``.

    Args:
        inputs: ``(batch, time, input_dim)``.
        weight: ``(4 * hidden_dim, input_dim + projection_dim)``, blocks i, g, f, o.
        bias: ``(4 * hidden_dim,)``, the forget offset included.
        projection: ``(projection_dim, hidden_dim)`` or None.
        hidden: ``(batch, projection_dim)``. No gradient flows into the initial state: truncated backpropagation through
            time cuts it between windows.
        cell: ``(batch, hidden_dim)``.
        cell_clip: Bound on the cell's magnitude, or None.
        projection_clip: Bound on the output's magnitude, or None.
        lengths: ``(batch,)``, the number of steps of each row, for a batch that is padded on the right. Only the state
            depends on it: the caller must ignore the outputs on padding, where no gradient may come from. None if
            every row has all steps.

    Returns:
        The outputs ``(batch, time, projection_dim)``; and, without gradient, the state after each row's last step: the
        hidden state ``(batch, projection_dim)`` and the cell ``(batch, hidden_dim)``.
    """
    device = inputs.device.type
    # Every cast inside the function is explicit, because only products may be rounded. So the dtype of autocast is read
    # here, and autocast is switched off.
    low_dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    with torch.autocast(device, enabled=False):
        outputs: tuple[Tensor, Tensor, Tensor] = _WindowLSTM.apply(  # type: ignore[no-untyped-call]
            inputs.to(weight.dtype).transpose(0, 1).contiguous(),
            weight,
            bias,
            projection,
            hidden,
            cell,
            cell_clip,
            projection_clip,
            low_dtype,
            lengths,
        )
    return outputs[0].transpose(0, 1), *outputs[1:]


def _product(left: Tensor, right: Tensor, low_dtype: torch.dtype | None) -> Tensor:
    """Return a matrix product, computed in ``low_dtype`` if there is one; the result has the dtype of ``left``."""
    if low_dtype is None:
        return torch.mm(left, right)
    return torch.mm(left.to(low_dtype), right.to(low_dtype)).to(left.dtype)


def _add_product(total: Tensor, left: Tensor, right: Tensor, low_dtype: torch.dtype | None) -> Tensor:
    """Add a matrix product to ``total``, in place."""
    return total.addmm_(left, right) if low_dtype is None else total.add_(_product(left, right, low_dtype))


class _WindowLSTM(torch.autograd.Function):
    """The layer over all steps. Time comes first, ``(time, batch, ...)``, so that a step is one block of memory."""

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
        low_dtype: torch.dtype | None,
        lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        n_steps, n_rows, input_dim = inputs.shape
        hidden_dim = len(bias) // 4
        recurrent_weight = weight[:, input_dim:].t().contiguous()  # (projection_dim, 4 * hidden_dim)
        # The gate sums of all steps, first from the inputs alone. Each step adds the recurrent product and then
        # replaces the sums by the activations, in place: the backward pass needs only these.
        if low_dtype is None:
            gates = F.linear(inputs, weight[:, :input_dim], bias)
        else:
            # The bias is added after the conversion back, in full precision.
            gates = F.linear(inputs.to(low_dtype), weight[:, :input_dim].to(low_dtype)).to(inputs.dtype).add_(bias)
            recurrent_weight = recurrent_weight.to(low_dtype)
        # Index t + 1 of cells and outputs is the state after step t; index 0 is the initial state. Copying it in also
        # raises an error if a state of another size was passed, which the C function would not notice.
        cells = inputs.new_empty(n_steps + 1, n_rows, hidden_dim)
        outputs = inputs.new_empty(n_steps + 1, n_rows, weight.shape[1] - input_dim)
        cells[0], outputs[0] = cell, hidden
        squashed = inputs.new_empty(n_steps, n_rows, hidden_dim)  # tanh of the cell
        before_projection = inputs.new_empty(n_steps, n_rows, hidden_dim)
        library = native_library_for(inputs) if low_dtype is None else None
        training_step = _training_step if library is None else library.training_step
        for step in range(n_steps):
            step_gates = _add_product(gates[step], outputs[step], recurrent_weight, low_dtype)
            training_step(step_gates, cells[step], cells[step + 1], squashed[step], before_projection[step], cell_clip)
            if projection is None:
                outputs[step + 1] = before_projection[step]
            else:
                if low_dtype is None:
                    torch.mm(before_projection[step], projection.t(), out=outputs[step + 1])
                else:
                    outputs[step + 1] = _product(before_projection[step], projection.t(), low_dtype)
                if projection_clip is not None:
                    outputs[step + 1].clamp_(-projection_clip, projection_clip)
        ctx.save_for_backward(inputs, weight, projection, gates, cells, squashed, before_projection, outputs)
        ctx.clips, ctx.low_dtype, ctx.library = (cell_clip, projection_clip), low_dtype, library
        # Copies (as indexing with a tensor makes), because views would keep the states of all steps in memory for as
        # long as the caller keeps the last one. A row of length n ends at index n, an empty one at index 0.
        if lengths is None:
            last_hidden, last_cell = outputs[-1].clone(), cells[-1].clone()
        else:
            rows = torch.arange(n_rows, device=lengths.device)
            last_hidden, last_cell = outputs[lengths, rows], cells[lengths, rows]
        # Truncated backpropagation: the state that the next window starts from carries no gradient.
        ctx.mark_non_differentiable(last_hidden, last_cell)
        return outputs[1:], last_hidden, last_cell

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        # The caller may run the backward pass inside autocast, which would lower the precision of every product.
        with torch.autocast(upstream[0].device.type, enabled=False):
            return _window_gradients(ctx, upstream[0])


def _window_gradients(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    inputs, weight, projection, gates, cells, squashed, before_projection, outputs = ctx.saved_tensors
    (cell_clip, projection_clip), low_dtype = ctx.clips, ctx.low_dtype
    library: NativeLibrary | None = ctx.library
    training_step_backward = _training_step_backward if library is None else library.training_step_backward
    n_steps, _, input_dim = inputs.shape
    recurrent_weight = weight[:, input_dim:]
    gate_gradients = torch.empty_like(gates)
    # A copy, because each step adds the gradient that arrives from the step after it, and autograd may still use
    # `upstream`.
    output_gradients = upstream.clone(memory_format=torch.contiguous_format)
    cell_gradient = torch.zeros_like(cells[0])  # from later steps; each step replaces it
    for step in reversed(range(n_steps)):
        output_gradient = output_gradients[step]
        # An output has two readers: the layer above (`upstream`) and the gates of the next step. The last step of the
        # window has no next step.
        if step < n_steps - 1:
            _add_product(output_gradient, gate_gradients[step + 1], recurrent_weight, low_dtype)
        if projection is None:
            gradient = output_gradient
        else:
            if projection_clip is not None:
                # In place on purpose: the weight gradient of the projection below needs the masked gradient as well.
                _zero_where_clipped(output_gradient, outputs[step + 1], projection_clip)
            gradient = _product(output_gradient, projection, low_dtype)
        training_step_backward(
            gradient,
            gates[step],
            cells[step],
            cells[step + 1],
            squashed[step],
            cell_gradient,
            gate_gradients[step],
            cell_clip,
        )
    # One product over all steps and rows for each weight.
    flat_gates = gate_gradients.flatten(0, 1)
    weight_gradient = torch.empty_like(weight)
    weight_gradient[:, :input_dim] = _product(flat_gates.t(), inputs.flatten(0, 1), low_dtype)
    weight_gradient[:, input_dim:] = _product(flat_gates.t(), outputs[:-1].flatten(0, 1), low_dtype)
    projection_gradient = None
    if projection is not None:
        projection_gradient = _product(output_gradients.flatten(0, 1).t(), before_projection.flatten(0, 1), low_dtype)
    input_gradient = _product(flat_gates, weight[:, :input_dim], low_dtype).view_as(inputs)
    # None for the states (truncated), the two bounds, the dtype and the lengths.
    return input_gradient, weight_gradient, flat_gates.sum(dim=0), projection_gradient, *[None] * 6


def _zero_where_clipped(gradient: Tensor, clipped: Tensor, clip: float) -> None:
    """Zero the gradient, in place, of values that reached their bound."""
    gradient.mul_(clipped.abs() < clip)


def _training_step(
    gates: Tensor, cell_before: Tensor, cell_after: Tensor, squashed: Tensor, outputs: Tensor, cell_clip: float | None
) -> None:
    """Compute the elementwise part of one step; arguments as in ``NativeLibrary.training_step``."""
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


def _training_step_backward(
    gradient: Tensor,
    gates: Tensor,
    cell_before: Tensor,
    cell_after: Tensor,
    squashed: Tensor,
    cell_gradient: Tensor,
    gate_gradient: Tensor,
    cell_clip: float | None,
) -> None:
    """Compute the gradient of ``_training_step``; arguments as in ``NativeLibrary.training_step_backward``."""
    i, g, f, o = gates.chunk(4, dim=1)
    i_gradient, g_gradient, f_gradient, o_gradient = gate_gradient.chunk(4, dim=1)
    torch.mul(gradient, squashed, out=o_gradient)
    # The cell receives gradient from its tanh in this step and from the next step's cell.
    total = torch.ops.aten.tanh_backward(gradient * o, squashed).add_(cell_gradient)
    if cell_clip is not None:
        _zero_where_clipped(total, cell_after, cell_clip)
    torch.mul(total, g, out=i_gradient)
    torch.mul(total, i, out=g_gradient)
    torch.mul(total, cell_before, out=f_gradient)
    torch.mul(total, f, out=cell_gradient)
    for activation_gradient, activation in ((i_gradient, i), (f_gradient, f), (o_gradient, o)):
        torch.ops.aten.sigmoid_backward.grad_input(activation_gradient, activation, grad_input=activation_gradient)
    torch.ops.aten.tanh_backward.grad_input(g_gradient, g, grad_input=g_gradient)
