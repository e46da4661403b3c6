"""Train a recurrent layer on a window of text or a padded batch, with an explicit gradient.

Autograd over a loop of steps is slow for two reasons. It records some 20 small operations per step, each with tensors
to keep, and it computes each weight's gradient as a sum of many small products, one per step. Here, each quantity
needed by the backward pass has one buffer for all steps, and each weight gradient is one product over all steps at the
end.

The loop is the same for every kind of LSTM. Only the elementwise part of a step differs (:class:`StepFunctions`). For
our own LSTM, on a CPU in float32, it is a C function unless ``reference`` was requested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class StepFunctions(NamedTuple):
    """The elementwise part of a step, and its gradient. Both write their results into given tensors.

    Attributes:
        n_blocks: Number of blocks of size ``hidden_dim`` in the gates.
        forward: Called with the gate sums, which it replaces with what ``backward`` needs; the cell before the step;
            and three output tensors: the new cell, its tanh, and the output.
        backward: Called with the gradient of the output; the gates, the cell before the step, the cell after it and its
            tanh, as ``forward`` left them; the gradient of the cell from later steps, which it replaces with the
            gradient of the cell before the step; and a tensor for the gradient of the gate sums.
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
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer from its first step to its last, including padding.

    Under autocast, matrix products run in autocast's dtype. Everything else stays in the dtype of ``inputs``; sums over
    time, in particular, would lose digits.

    Without a projection, ``dim`` is ``hidden_dim``. To run several directions together, give all weights and states an
    additional first axis, and ``inputs`` an additional axis after time.

    Args:
        functions: The elementwise part of a step.
        inputs: ``(time, batch, input_dim)``. Time comes first, so each step is one block of memory.
        input_weight: ``(gates, input_dim)``.
        bias: ``(gates,)``.
        state_weight: ``(gates, dim)``, or fewer rows if the last gates depend only on the input.
        hidden: The output before the first step, ``(batch, dim)``.
        cell: The cell before the first step, ``(batch, hidden_dim)``.
        drop: A dropout mask ``(batch, dim)`` for the previous output that each step reads. It is the same for all steps
            (Gal and Ghahramani 2016): a new mask per step would erase the memory of long sequences.
        projection: ``(dim, hidden_dim)``, applied to the output of ``functions``.
        projection_clip: Maximum magnitude of the projected output.

    Returns:
        The outputs ``(time, batch, dim)``; and, without gradients, the state after the last step: the output
        ``(batch, dim)`` and the cell ``(batch, hidden_dim)``.
    """
    device = inputs.device.type
    # Every cast inside the function is explicit, because only products may be rounded. So autocast is switched off
    # there, and its dtype is read here.
    low_dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    with torch.autocast(device, enabled=False):
        results: tuple[Tensor, Tensor, Tensor] = _Recurrence.apply(  # type: ignore[no-untyped-call]
            functions,
            (projection_clip, low_dtype),
            inputs,
            bias,
            hidden,
            cell,
            input_weight,
            state_weight,
            drop,
            projection,
        )
    return results


class Recurrence(NamedTuple):
    """What stays the same for all steps of a layer; ``run_recurrence`` has the shapes."""

    functions: StepFunctions
    input_weight: Tensor
    state_weight: Tensor
    drop: Tensor | None
    projection: Tensor | None
    projection_clip: float | None
    low_dtype: torch.dtype | None  # of products, if it differs from the tensors' dtype


class Buffers(NamedTuple):
    """The results of all steps, in one tensor each. Index t + 1 of a state is the state after step t."""

    gates: Tensor  # (time, batch, gates), as the elementwise part left them
    cells: Tensor  # (time + 1, batch, hidden_dim)
    tanh_cells: Tensor  # (time, batch, hidden_dim)
    unprojected: Tensor  # the outputs before the projection, (time, batch, hidden_dim)
    outputs: Tensor  # (time + 1, batch, dim)
    read: Tensor  # the input of each step's product: the previous output, after dropout


def run_steps(layer: Recurrence, inputs: Tensor, bias: Tensor, hidden: Tensor, cell: Tensor) -> Buffers:
    """Compute all steps without autograd; arguments as in ``run_recurrence``."""
    functions, input_weight, state_weight, drop, projection, projection_clip, low_dtype = layer
    n_steps, *batch, _ = inputs.shape
    n_sums, dim = state_weight.shape[-2:]
    # The gate sums of all steps, at first from the inputs alone. Each step adds the recurrent product and then replaces
    # the sums with the activations, in place, because the backward pass needs only the activations.
    rows = _join_steps(inputs)
    gates = bias.unsqueeze(-2).expand(*rows.shape[:-1], -1).clone()
    gates = _split_steps(_add_product(gates, rows, input_weight.mT, low_dtype), n_steps, batch[-1])
    transposed = state_weight.mT.contiguous().to(low_dtype or state_weight.dtype)
    # Index 0 is the initial state. Copying it also raises an error if the state has the wrong size, which a C function
    # would not notice.
    cells = inputs.new_empty(n_steps + 1, *batch, gates.shape[-1] // functions.n_blocks)
    outputs = inputs.new_empty(n_steps + 1, *batch, dim)
    cells[0], outputs[0] = cell, hidden
    tanh_cells = torch.empty_like(cells[1:])
    unprojected = outputs[1:] if projection is None else torch.empty_like(tanh_cells)
    # The weight's gradient needs the outputs after dropout.
    read = outputs[:-1] if drop is None else torch.empty_like(outputs[:-1])
    # Views of each step, created once, because indexing a tensor takes longer than computing a small step.
    at_gates, at_cells, at_outputs, at_read = gates.unbind(), cells.unbind(), outputs.unbind(), read.unbind()
    at_tanh_cells, at_unprojected = tanh_cells.unbind(), unprojected.unbind()
    from_state = gates[..., :n_sums].unbind()  # gates that read the previous step's output
    for step in range(n_steps):
        if drop is not None:
            torch.mul(at_outputs[step], drop, out=at_read[step])
        _add_product(from_state[step], at_read[step], transposed, low_dtype)
        functions.forward(at_gates[step], at_cells[step], at_cells[step + 1], at_tanh_cells[step], at_unprojected[step])
        if projection is not None:
            _product(at_unprojected[step], projection.t(), low_dtype, out=at_outputs[step + 1])
            if projection_clip is not None:
                at_outputs[step + 1].clamp_(-projection_clip, projection_clip)
    return Buffers(gates, cells, tanh_cells, unprojected, outputs, read)


class Gradients(NamedTuple):
    """The gradients of a recurrence."""

    inputs: Tensor
    input_weight: Tensor
    bias: Tensor
    state_weight: Tensor
    hidden: Tensor  # of the initial state; arbitrary if not needed
    cell: Tensor
    projection: Tensor | None


def gradients_of_steps(
    layer: Recurrence,
    inputs: Tensor,
    buffers: Buffers,
    output_gradients: Tensor,  # (time + 1, batch, dim), of `Buffers.outputs`; changed
    cell_gradients: Tensor | None = None,  # of `Buffers.cells`
    needs_state: bool = True,  # whether the gradient of the initial state is needed
) -> Gradients:
    """Compute the gradients of ``run_steps``."""
    functions, input_weight, state_weight, drop, projection, projection_clip, low_dtype = layer
    gates, cells, tanh_cells, unprojected, outputs, read = buffers
    gate_gradients = torch.empty_like(gates)
    from_state = gate_gradients[..., : state_weight.shape[-2]]  # gates that read the previous step's output
    cell_gradient = torch.zeros_like(cells[0])  # from later steps; updated by each step
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
        if cell_gradients is not None:
            cell_gradient += cell_gradients[step + 1]
        if projection is not None:
            if projection_clip is not None:
                # In place on purpose: the gradient of the projection's weight, below, also needs the masked gradient.
                zero_where_clipped(gradient, at_outputs[step + 1], projection_clip)
            gradient = _product(gradient, projection, low_dtype)
        functions.backward(
            gradient,
            at_gates[step],
            at_cells[step],
            at_cells[step + 1],
            at_tanh_cells[step],
            cell_gradient,
            at_gate_gradients[step],
        )
        # An output is read by the layer above and by the gates of the next step.
        if drop is not None:
            at_output_gradients[step].addcmul_(_product(at_from_state[step], state_weight, low_dtype), drop)
        elif step or needs_state:
            _add_product(at_output_gradients[step], at_from_state[step], state_weight, low_dtype)
    if cell_gradients is not None:
        cell_gradient += cell_gradients[0]
    projection_gradient = None
    if projection is not None:
        projection_gradient = _product(_join_steps(output_gradients[1:]).mT, _join_steps(unprojected), low_dtype)
    # One product over all steps and rows for each weight.
    flat = _join_steps(gate_gradients)
    return Gradients(
        _split_steps(_product(flat, input_weight, low_dtype), len(inputs), inputs.shape[-2]),
        _product(flat.mT, _join_steps(inputs), low_dtype),
        flat.sum(dim=-2),
        _product(_join_steps(from_state).mT, _join_steps(read), low_dtype),
        output_gradients[0],
        cell_gradient,
        projection_gradient,
    )


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        functions: StepFunctions,
        bounds: tuple[float | None, torch.dtype | None],
        inputs: Tensor,
        bias: Tensor,
        hidden: Tensor,
        cell: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        input_weight, state_weight, drop, projection = weights
        layer = Recurrence(functions, input_weight, state_weight, drop, projection, *bounds)
        buffers = run_steps(layer, inputs, bias, hidden, cell)
        ctx.save_for_backward(inputs, *weights, *buffers)
        ctx.functions, ctx.bounds = functions, bounds
        # Copies, because views would keep the states of all steps in memory as long as the caller keeps the last state.
        last_hidden, last_cell = buffers.outputs[-1].clone(), buffers.cells[-1].clone()
        ctx.mark_non_differentiable(last_hidden, last_cell)
        return buffers.outputs[1:], last_hidden, last_cell

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs, *others = ctx.saved_tensors
        layer, buffers = Recurrence(ctx.functions, *others[:4], *ctx.bounds), Buffers(*others[4:])
        # The caller may run the backward pass inside autocast, which would lower the precision of every product.
        with torch.autocast(upstream[0].device.type, enabled=False):
            # A copy, because each step adds the gradient from the step after it, and autograd may still use `upstream`.
            # The additional first entry is the gradient of the initial state.
            output_gradients = torch.cat([torch.zeros_like(upstream[0][:1]), upstream[0]])
            of = gradients_of_steps(layer, inputs, buffers, output_gradients, needs_state=ctx.needs_input_grad[4])
        return None, None, of.inputs, of.bias, of.hidden, of.cell, of.input_weight, of.state_weight, None, of.projection


def _product(left: Tensor, right: Tensor, low_dtype: torch.dtype | None, out: Tensor | None = None) -> Tensor:
    """Return a matrix product in the dtype of ``left``, computed in ``low_dtype`` if given."""
    multiply = torch.mm if left.ndim == 2 else torch.bmm
    if low_dtype is None:
        return multiply(left, right, out=out)
    result = multiply(left.to(low_dtype), right.to(low_dtype))
    return result.to(left.dtype) if out is None else out.copy_(result)


def _add_product(total: Tensor, left: Tensor, right: Tensor, low_dtype: torch.dtype | None) -> Tensor:
    """Add a matrix product to ``total`` in place, and return ``total``."""
    if low_dtype is not None:
        return total.add_(_product(left, right, low_dtype))
    return total.addmm_(left, right) if total.ndim == 2 else total.baddbmm_(left, right)


def _join_steps(values: Tensor) -> Tensor:
    """Join time and batch into one axis of rows, after the axis of directions if there is one."""
    return values.flatten(0, 1) if values.ndim == 3 else values.transpose(0, 1).flatten(1, 2)


def _split_steps(rows: Tensor, n_steps: int, n_rows: int) -> Tensor:
    """Undo ``_join_steps``."""
    values = rows.view(*rows.shape[:-2], n_steps, n_rows, rows.shape[-1])
    return values if values.ndim == 3 else values.transpose(0, 1).contiguous()


def zero_where_clipped(gradient: Tensor, clipped: Tensor, clip: float) -> None:
    """Set the gradient of clipped values to zero, in place."""
    gradient.mul_(clipped.abs() < clip)


def sigmoid_backward_(gradient: Tensor, activation: Tensor) -> None:
    """Replace the gradient of a sigmoid with the gradient of its input."""
    torch.ops.aten.sigmoid_backward.grad_input(gradient, activation, grad_input=gradient)


def tanh_backward_(gradient: Tensor, activation: Tensor) -> None:
    """Replace the gradient of a tanh with the gradient of its input."""
    torch.ops.aten.tanh_backward.grad_input(gradient, activation, grad_input=gradient)


def reversed_positions(mask: Tensor) -> Tensor:
    """Return the positions ``(batch, time)`` of each row's tokens in reverse order. Padding stays in place.

    In this order, a backward LSTM reads every row from the first step, whatever the row's length.
    """
    steps = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    return torch.where(mask, mask.sum(dim=1, keepdim=True) - 1 - steps, steps)


def reorder(values: Tensor, positions: Tensor) -> Tensor:
    """Reorder the steps of ``(batch, time, dim)``. Reversing twice restores the original order."""
    return values.gather(1, positions[..., None].expand(-1, -1, values.shape[-1]))


def training_step(
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


def training_step_backward(
    gradient: Tensor,
    gates: Tensor,
    cell_before: Tensor,
    cell_after: Tensor,
    tanh_cell: Tensor,
    cell_gradient: Tensor,
    gate_gradient: Tensor,
    cell_clip: float | None,
) -> None:
    """Compute the gradient of ``training_step``; arguments as in ``native_training.training_step_backward``."""
    i, g, f, o = gates.chunk(4, dim=1)
    i_gradient, g_gradient, f_gradient, o_gradient = gate_gradient.chunk(4, dim=1)
    torch.mul(gradient, tanh_cell, out=o_gradient)
    # The cell's gradient comes from its tanh in this step and from the next step's cell.
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
