"""Train a recurrent layer on a window of text or a padded batch, with the gradient written out.

Autograd over a loop of steps is slow for two reasons. It records some 20 small operations per step, each with tensors
to keep; and it computes each weight's gradient as a sum of one small product per step. Here each quantity that the
backward pass needs has one buffer for all steps, and each weight gradient is one product over all steps at the end.

The loop is the same for every kind of LSTM. What differs is the elementwise part of a step (:class:`StepFunctions`): on
a CPU in float32, that of ours is a C function, unless ``reference`` was requested.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmokit.engine.library import Library
from elmokit.network import native_training
from elmokit.network.backends import native_library_for, tile_library_for


class StepFunctions(NamedTuple):
    """The elementwise part of a step, and its gradient. Both write into the tensors that they are given.

    Attributes:
        n_blocks: Number of blocks of size ``hidden_dim`` in the gates.
        forward: Called with the gate sums, which it replaces by what ``backward`` needs; the cell before the step; and
            three tensors to write: the new cell, its tanh, and the output.
        backward: Called with the gradient of the output; the gates, the cell before the step, the cell after it and
            its tanh, as ``forward`` left them; the gradient of the cell from later steps, which it replaces by that of
            the cell before the step; and the gradient of the gate sums, which it writes.
    """

    n_blocks: int
    forward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    backward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], None]


def run_recurrence(
    functions: StepFunctions,
    inputs: Tensor,
    input_weight: Tensor,
    bias: Tensor,
    state_weight: Tensor,
    hidden: Tensor,
    cell: Tensor,
    drop: Tensor | None = None,
    projection: Tensor | None = None,
    projection_clip: float | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer from its first step to its last, also over padding.

    Under autocast, matrix products run in autocast's dtype. Everything else stays in the dtype of ``inputs``, above all
    the sums over time, which lose digits otherwise.

    Without a projection, ``dim`` is ``hidden_dim``. To run several directions together, give all weights and states
    one more axis in front, and ``inputs`` one after the time.

    Args:
        functions: The elementwise part of a step.
        inputs: ``(time, batch, input_dim)``. Time comes first, so that a step is one block of memory.
        input_weight: ``(gates, input_dim)``.
        bias: ``(gates,)``.
        state_weight: ``(gates, dim)``, or fewer rows if the last gates depend on the input alone.
        hidden: The output before the first step, ``(batch, dim)``.
        cell: The cell before the first step, ``(batch, hidden_dim)``.
        drop: The dropout mask that multiplies what a step reads of the output before it, ``(batch, dim)``. It is the
            same for all steps (Gal and Ghahramani 2016): a new mask per step would erase the memory of long sequences.
        projection: ``(dim, hidden_dim)``, applied to the output of ``functions``.
        projection_clip: Bound on the magnitude of the projected output.
        lengths: ``(batch,)``, the number of steps of each row, for a batch that is padded on the right. Only the last
            state depends on it: the caller must ignore the outputs on padding, where no gradient may come from. None if
            every row has all steps.

    Returns:
        The outputs ``(time, batch, dim)``; and, without gradient, the state after each row's last step: the output
        ``(batch, dim)`` and the cell ``(batch, hidden_dim)``.
    """
    device = inputs.device.type
    # Every cast inside the function is explicit, because only products may be rounded. So the dtype of autocast is read
    # here, and autocast is switched off.
    low_dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    with torch.autocast(device, enabled=False):
        results: tuple[Tensor, Tensor, Tensor] = _Recurrence.apply(  # type: ignore[no-untyped-call]
            *(functions, inputs, input_weight, bias, state_weight, hidden, cell),
            *(drop, projection, projection_clip, lengths, low_dtype),
        )
    return results


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        functions: StepFunctions,
        inputs: Tensor,
        input_weight: Tensor,
        bias: Tensor,
        state_weight: Tensor,
        hidden: Tensor,
        cell: Tensor,
        drop: Tensor | None,
        projection: Tensor | None,
        projection_clip: float | None,
        lengths: Tensor | None,
        low_dtype: torch.dtype | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        n_steps, *batch, _ = inputs.shape
        n_sums, dim = state_weight.shape[-2:]
        # The gate sums of all steps, first from the inputs alone. Each step adds the recurrent product and then
        # replaces the sums by the activations, in place: the backward pass needs only these.
        rows = _join_steps(inputs)
        gates = bias.unsqueeze(-2).expand(*rows.shape[:-1], -1).clone()
        gates = _split_steps(_add_product(gates, rows, input_weight.mT, low_dtype), n_steps, batch[-1])
        transposed = state_weight.mT.contiguous().to(low_dtype or state_weight.dtype)
        # Index t + 1 of cells and outputs is the state after step t; index 0 is the initial state. Copying it in also
        # raises an error if a state of another size was passed, which a C function would not notice.
        cells = inputs.new_empty(n_steps + 1, *batch, gates.shape[-1] // functions.n_blocks)
        outputs = inputs.new_empty(n_steps + 1, *batch, dim)
        cells[0], outputs[0] = cell, hidden
        tanh_cells = torch.empty_like(cells[1:])  # tanh of the cell
        unprojected = outputs[1:] if projection is None else torch.empty_like(tanh_cells)
        # What the products of the steps read: their weight's gradient needs it after dropout.
        read = outputs[:-1] if drop is None else torch.empty_like(outputs[:-1])
        # Views of each step, made once: indexing a tensor takes longer than a small step computes.
        at_gates, at_cells, at_outputs, at_read = gates.unbind(), cells.unbind(), outputs.unbind(), read.unbind()
        at_tanh_cells, at_unprojected = tanh_cells.unbind(), unprojected.unbind()
        from_state = gates[..., :n_sums].unbind()  # the gates that read the output of the step before
        for step in range(n_steps):
            if drop is not None:
                torch.mul(at_outputs[step], drop, out=at_read[step])
            _add_product(from_state[step], at_read[step], transposed, low_dtype)
            functions.forward(
                at_gates[step], at_cells[step], at_cells[step + 1], at_tanh_cells[step], at_unprojected[step]
            )
            if projection is not None:
                _product(at_unprojected[step], projection.t(), low_dtype, out=at_outputs[step + 1])
                if projection_clip is not None:
                    at_outputs[step + 1].clamp_(-projection_clip, projection_clip)
        ctx.save_for_backward(
            *(inputs, input_weight, state_weight, drop, projection),
            *(gates, cells, tanh_cells, unprojected, outputs, read),
        )
        ctx.functions, ctx.projection_clip, ctx.low_dtype = functions, projection_clip, low_dtype
        # Copies (as indexing with a tensor makes), because views would keep the states of all steps in memory for as
        # long as the caller keeps the last one. A row of length n ends at index n, an empty one at index 0.
        if lengths is None:
            last_hidden, last_cell = outputs[-1].clone(), cells[-1].clone()
        else:
            rows = torch.arange(len(lengths), device=lengths.device)
            last_hidden, last_cell = outputs[lengths, rows], cells[lengths, rows]
        ctx.mark_non_differentiable(last_hidden, last_cell)
        return outputs[1:], last_hidden, last_cell

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        # The caller may run the backward pass inside autocast, which would lower the precision of every product.
        with torch.autocast(upstream[0].device.type, enabled=False):
            return _gradients(ctx, upstream[0])


def _gradients(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    inputs, input_weight, state_weight, drop, projection, *buffers = ctx.saved_tensors
    gates, cells, tanh_cells, unprojected, outputs, read = buffers
    clip, low_dtype = ctx.projection_clip, ctx.low_dtype
    gate_gradients = torch.empty_like(gates)
    from_state = gate_gradients[..., : state_weight.shape[-2]]  # of the gates that read the output of the step before
    # A copy, because each step adds the gradient that arrives from the step after it, and autograd may still use
    # `upstream`. The additional first entry is the gradient of the initial state.
    output_gradients = torch.cat([torch.zeros_like(outputs[:1]), upstream])
    cell_gradient = torch.zeros_like(cells[0])  # from later steps; each step replaces it
    at_gates, at_cells, at_tanh_cells, at_outputs = (
        gates.unbind(),
        cells.unbind(),
        tanh_cells.unbind(),
        outputs.unbind(),
    )
    at_gate_gradients, at_from_state = gate_gradients.unbind(), from_state.unbind()
    at_output_gradients = output_gradients.unbind()
    for step in reversed(range(len(gates))):
        gradient = at_output_gradients[step + 1]
        if projection is not None:
            if clip is not None:
                # In place on purpose: the weight gradient of the projection below needs the masked gradient as well.
                zero_where_clipped(gradient, at_outputs[step + 1], clip)
            gradient = _product(gradient, projection, low_dtype)
        ctx.functions.backward(
            gradient,
            at_gates[step],
            at_cells[step],
            at_cells[step + 1],
            at_tanh_cells[step],
            cell_gradient,
            at_gate_gradients[step],
        )
        # An output has two readers: the layer above (`upstream`) and the gates of the next step.
        if drop is not None:
            at_output_gradients[step].addcmul_(_product(at_from_state[step], state_weight, low_dtype), drop)
        elif step or ctx.needs_input_grad[5]:
            _add_product(at_output_gradients[step], at_from_state[step], state_weight, low_dtype)
    projection_gradient = None
    if projection is not None:
        projection_gradient = _product(_join_steps(output_gradients[1:]).mT, _join_steps(unprojected), low_dtype)
    # One product over all steps and rows for each weight. The order is that of the arguments of `forward`.
    flat = _join_steps(gate_gradients)
    return (
        None,
        _split_steps(_product(flat, input_weight, low_dtype), len(inputs), inputs.shape[-2]),
        _product(flat.mT, _join_steps(inputs), low_dtype),
        flat.sum(dim=-2),
        _product(_join_steps(from_state).mT, _join_steps(read), low_dtype),
        output_gradients[0],
        cell_gradient,
        *(None, projection_gradient, None, None, None),
    )


def _product(left: Tensor, right: Tensor, low_dtype: torch.dtype | None, out: Tensor | None = None) -> Tensor:
    """Return a matrix product, computed in ``low_dtype`` if there is one; the result has the dtype of ``left``."""
    multiply = torch.mm if left.ndim == 2 else torch.bmm
    if low_dtype is None:
        return multiply(left, right, out=out)
    result = multiply(left.to(low_dtype), right.to(low_dtype))
    return result.to(left.dtype) if out is None else out.copy_(result)


def _add_product(total: Tensor, left: Tensor, right: Tensor, low_dtype: torch.dtype | None) -> Tensor:
    """Add a matrix product to ``total``, in place, and return ``total``."""
    if low_dtype is not None:
        return total.add_(_product(left, right, low_dtype))
    return total.addmm_(left, right) if total.ndim == 2 else total.baddbmm_(left, right)


def _join_steps(values: Tensor) -> Tensor:
    """Join time and batch to one axis of rows, and put the axis of directions, if there is one, first."""
    return values.flatten(0, 1) if values.ndim == 3 else values.transpose(0, 1).flatten(1, 2)


def _split_steps(rows: Tensor, n_steps: int, n_rows: int) -> Tensor:
    """Undo ``_join_steps``."""
    values = rows.view(*rows.shape[:-2], n_steps, n_rows, rows.shape[-1])
    return values if values.ndim == 3 else values.transpose(0, 1).contiguous()


def zero_where_clipped(gradient: Tensor, clipped: Tensor, clip: float) -> None:
    """Zero the gradient, in place, of values that reached their bound."""
    gradient.mul_(clipped.abs() < clip)


def sigmoid_backward_(gradient: Tensor, activation: Tensor) -> None:
    """Replace the gradient of a sigmoid by that of its input."""
    torch.ops.aten.sigmoid_backward.grad_input(gradient, activation, grad_input=gradient)


def tanh_backward_(gradient: Tensor, activation: Tensor) -> None:
    """Replace the gradient of a tanh by that of its input."""
    torch.ops.aten.tanh_backward.grad_input(gradient, activation, grad_input=gradient)


def reversed_positions(mask: Tensor) -> Tensor:
    """Return the positions ``(batch, time)`` of each row's tokens in reverse order; padding stays in place.

    In this order, a backward LSTM reads every row from the first step on, each at its own length.
    """
    steps = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    return torch.where(mask, mask.sum(dim=1, keepdim=True) - 1 - steps, steps)


def reorder(values: Tensor, positions: Tensor) -> Tensor:
    """Return the steps of ``(batch, time, dim)`` in another order. Reversed twice, they are in their first order."""
    return values.gather(1, positions[..., None].expand(-1, -1, values.shape[-1]))


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
