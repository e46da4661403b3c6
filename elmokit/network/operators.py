"""The LSTM layer as registered PyTorch operators, which PyTorch's transformations treat like its own.

Each operator receives the current tensors and keeps nothing between calls except scratch memory. It has an
implementation in C, for float32 on a CPU; one in PyTorch operations, for other dtypes and devices and for systems
without the library; the shapes of its results, for ``torch.compile`` and ``torch.export``; and a gradient, if it is
differentiable.

They are registered with ``torch.library.define``, because ``custom_op`` imports ``torch._dynamo``, which takes seconds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit.engine.architecture import FORGET_OFFSET
from elmokit.engine.library import Library
from elmokit.engine.precision import PLAIN_KERNEL, LayerKernel, native_kernel, requested_backend
from elmokit.engine.threads import n_threads
from elmokit.network import backends, native_training
from elmokit.network.lstm_training import (
    Buffers,
    Recurrence,
    StepFunctions,
    gradients_of_steps,
    reorder,
    run_steps,
    training_step,
    training_step_backward,
)
from elmokit.network.tensors import has_memory

STEPS_AT_ONCE = 64  # steps whose input products are computed together; bounds the memory for long texts
GATES = 4


class LSTMWeights(NamedTuple):
    """The weights and clipping bounds of a layer in one direction. The formulas are in ``lstm_module``."""

    weight: Tensor  # (4 * hidden_dim, input_dim + projection_dim), blocks i, g, f, o
    bias: Tensor  # (4 * hidden_dim,), without the offset of the forget gate
    projection: Tensor | None  # (projection_dim, hidden_dim)
    cell_clip: float | None
    projection_clip: float | None

    def parts(self, input_dim: int) -> LSTMParts:
        """Split the weight into its input and state columns, without copying."""
        halves = _halves(self.weight, input_dim)
        return LSTMParts(*halves, self.bias, self.projection, self.cell_clip, self.projection_clip, False)


class LSTMParts(NamedTuple):
    """The weights of a layer in one direction, with separate matrices for inputs and state."""

    input_weight: Tensor  # (4 * hidden_dim, input_dim), blocks i, g, f, o, or i, f, g, o with `swaps_gates`
    state_weight: Tensor  # (4 * hidden_dim, projection_dim)
    bias: Tensor  # (4 * hidden_dim,), blocks i, g, f, o, without the offset of the forget gate
    projection: Tensor | None  # (projection_dim, hidden_dim)
    cell_clip: float | None
    projection_clip: float | None
    swaps_gates: bool

    def joined(self) -> LSTMWeights:
        """Return a copy with both matrices joined."""
        weight = torch.cat([self.input_weight, self.state_weight], dim=1)
        if self.swaps_gates:
            first, second, third, fourth = weight.chunk(GATES)
            weight = torch.cat([first, third, second, fourth])
        return LSTMWeights(weight, self.bias, self.projection, self.cell_clip, self.projection_clip)


def are_hidden(*tensors: Tensor | None) -> bool:
    """Check whether PyTorch transforms the computation in a way that the operators do not support.

    Forward-mode derivatives and ``torch.func`` use the plain formulas instead. ``torch.compile`` supports operators.
    """
    if torch.compiler.is_compiling():
        return False
    return not all(has_memory(tensor) for tensor in tensors if tensor is not None)


def is_traced() -> bool:
    """Check whether the computation is being traced, so it must not depend on the current values."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Check whether a computation with these tensors needs a gradient."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def computes_rows(*tensors: Tensor | None) -> bool:
    """Check whether an operator can compute with these tensors: float32 on a CPU, no gradients, no autocast."""
    for tensor in tensors:
        if tensor is not None and (not tensor.is_cpu or tensor.dtype != torch.float32):
            return False
    return not torch.is_autocast_enabled("cpu") and not are_hidden(*tensors)


def takes_tiles(*tensors: Tensor | None) -> bool:
    """Check whether autocast requests products in bfloat16, and the C functions support them (AMX, AVX-512 BF16).

    A compiled function cannot query the processor, so it always calls the operators, which then choose themselves.
    """
    if not torch.is_autocast_enabled("cpu") or torch.get_autocast_dtype("cpu") != torch.bfloat16:
        return False
    if torch.compiler.is_compiling():
        return all(tensor is None or (tensor.is_cpu and tensor.dtype == torch.float32) for tensor in tensors)
    return tile_library(*tensors) is not None and not are_hidden(*tensors)


def tile_library(*tensors: Tensor | None) -> Library | None:
    """Return the C functions if they can multiply these tensors in bfloat16."""
    library = c_library(*tensors)
    return library if library is not None and library.has_bfloat16() else None


def c_library(*tensors: Tensor | None) -> Library | None:
    """Return the C functions if they can compute with these tensors."""
    for tensor in tensors:
        if tensor is not None and (not tensor.is_cpu or tensor.dtype != torch.float32):
            return None
    return None if requested_backend() == "reference" else backends.native_library()


def kernel_for(weight: Tensor) -> LayerKernel:
    """Describe how a layer with this weight is computed when no gradient is needed."""
    library = c_library(weight)
    return PLAIN_KERNEL if library is None else native_kernel(library.instructions, "float32")


Function = TypeVar("Function", bound=Callable[..., Any])


def computes(operator: str) -> Callable[[Function], Function]:
    """Register the decorated function as an operator's implementation, on all devices and without autograd."""
    # Not `custom_op`, which imports `torch._dynamo`.
    return torch.library.impl(operator, "CompositeExplicitAutograd")  # type: ignore[return-value]


def has_results_like(operator: str) -> Callable[[Function], Function]:
    """Register the decorated function, which returns empty tensors shaped like an operator's results."""
    return torch.library.register_fake(operator)  # type: ignore[no-any-return]


def differentiable_once(name: str) -> None:
    """Register an operator that computes gradients as not differentiable itself."""

    def refuse(ctx: Any, *upstream: Tensor) -> None:
        raise RuntimeError(f"{name} computes gradients, which cannot be differentiated again.")

    torch.library.register_autograd(name, refuse)


# One LSTM layer without gradients

torch.library.define(
    "elmokit::lstm_layer",
    "(Tensor inputs, Tensor hidden, Tensor cell, Tensor input_weight, Tensor state_weight, Tensor bias, "
    "Tensor? projection, Tensor? mask, float? cell_clip, float? projection_clip, bool swaps_gates, bool reverse, "
    "bool adds_inputs) -> (Tensor, Tensor, Tensor)",
)


def lstm_layer(
    inputs: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weights: LSTMParts,
    mask: Tensor | None,
    reverse: bool,
    adds_inputs: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer without gradients. Arguments and results as in ``run_lstm``."""
    results: tuple[Tensor, Tensor, Tensor] = torch.ops.elmokit.lstm_layer.default(
        *(inputs, hidden, cell, weights.input_weight, weights.state_weight, weights.bias, weights.projection, mask),
        *(weights.cell_clip, weights.projection_clip, weights.swaps_gates, reverse, adds_inputs),
    )
    return results


@has_results_like("elmokit::lstm_layer")
def _fake_lstm_layer(inputs: Tensor, hidden: Tensor, cell: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    outputs = inputs.new_empty(*inputs.shape[:2], hidden.shape[1])
    return outputs, hidden.new_empty(hidden.shape), cell.new_empty(cell.shape)


@computes("elmokit::lstm_layer")
def _lstm_layer(
    inputs: Tensor,
    hidden: Tensor,
    cell: Tensor,
    input_weight: Tensor,
    state_weight: Tensor,
    bias: Tensor,
    projection: Tensor | None,
    mask: Tensor | None,
    cell_clip: float | None,
    projection_clip: float | None,
    swaps_gates: bool,
    reverse: bool,
    adds_inputs: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    _check_sizes(inputs, hidden, cell, input_weight, state_weight, bias, projection, mask)
    library = c_library(inputs, hidden, cell, input_weight, state_weight, bias, projection)
    if library is None or not len(inputs):
        parts = LSTMParts(input_weight, state_weight, bias, projection, cell_clip, projection_clip, swaps_gates)
        outputs, hidden, cell = lstm_formulas(inputs, hidden, cell, parts.joined(), mask, reverse)
        return _completed(outputs, inputs, mask, adds_inputs), hidden.clone(), cell.clone()
    inputs, hidden, cell = inputs.contiguous(), hidden.contiguous(), cell.contiguous()
    input_weight, state_weight = _with_whole_rows(input_weight), _with_whole_rows(state_weight)
    bias = bias.contiguous()
    projection = None if projection is None else projection.contiguous()
    mask = None if mask is None else mask.contiguous()
    outputs = inputs.new_empty(*inputs.shape[:2], hidden.shape[1])
    hidden_after, cell_after = torch.empty_like(hidden), torch.empty_like(cell)
    call = library.structs["layer_call"](
        *inputs.shape,
        cell.shape[1],
        hidden.shape[1],
        reverse,
        adds_inputs,
        input_weight.stride(0),
        state_weight.stride(0),
        swaps_gates,
        float("inf") if cell_clip is None else cell_clip,
        float("inf") if projection is None or projection_clip is None else projection_clip,
        inputs.data_ptr(),
        None if mask is None else mask.data_ptr(),
        hidden.data_ptr(),
        cell.data_ptr(),
        input_weight.data_ptr(),
        state_weight.data_ptr(),
        bias.data_ptr(),
        None if projection is None else projection.data_ptr(),
        outputs.data_ptr(),
        hidden_after.data_ptr(),
        cell_after.data_ptr(),
    )
    at = ctypes.byref(call)
    with native_training.scratch(library, library.layer_bytes(at)) as memory:
        library.run_layer(n_threads(), at, memory)
    return outputs, hidden_after, cell_after


def _completed(outputs: Tensor, inputs: Tensor, mask: Tensor | None, adds_inputs: bool) -> Tensor:
    """Add a layer's inputs to its outputs if ``adds_inputs``, and set padding to 0."""
    if adds_inputs:
        outputs = outputs + inputs
    return outputs if mask is None else torch.where(mask[..., None], outputs, 0.0)


def _halves(weight: Tensor, input_dim: int) -> tuple[Tensor, Tensor]:
    return weight[:, :input_dim], weight[:, input_dim:]


def _with_whole_rows(weight: Tensor) -> Tensor:
    """Return a matrix whose rows are each contiguous, although the matrix may not be."""
    return weight if weight.stride(1) == 1 else weight.contiguous()


def _check_sizes(
    inputs: Tensor,
    hidden: Tensor,
    cell: Tensor,
    input_weight: Tensor,
    state_weight: Tensor,
    bias: Tensor,
    projection: Tensor | None,
    mask: Tensor | None,
) -> None:
    """Reject sizes that do not match, with which C would access memory out of bounds."""
    n_rows, n_steps, input_dim = inputs.shape
    dim, hidden_dim = hidden.shape[-1], cell.shape[-1]
    expected = [
        ("hidden", hidden, (n_rows, dim)),
        ("cell", cell, (n_rows, hidden_dim)),
        ("input_weight", input_weight, (GATES * hidden_dim, input_dim)),
        ("state_weight", state_weight, (GATES * hidden_dim, dim)),
        ("bias", bias, (GATES * hidden_dim,)),
        ("projection", projection, (dim, hidden_dim)),
        ("mask", mask, (n_rows, n_steps)),
    ]
    for name, tensor, shape in expected:
        if tensor is not None and tuple(tensor.shape) != shape:
            raise RuntimeError(f"{name} must be of size {shape}, but is of size {tuple(tensor.shape)}.")
    if projection is None and dim != hidden_dim:
        raise RuntimeError(f"Without a projection, outputs of size {dim} need as many units, not {hidden_dim}.")


def lstm_formulas(
    inputs: Tensor, hidden: Tensor, cell: Tensor, weights: LSTMWeights, mask: Tensor | None, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a layer step by step with PyTorch operations. All other implementations are tested against this one."""
    n_steps, input_dim = inputs.shape[1:]
    input_weight, recurrent_weight = weights.weight[:, :input_dim], weights.weight[:, input_dim:]
    bias = with_offset(weights.bias)
    outputs: list[Tensor] = []
    starts = range(0, n_steps, STEPS_AT_ONCE)
    for start in reversed(starts) if reverse else starts:
        stop = min(start + STEPS_AT_ONCE, n_steps)
        # Inputs do not depend on the state, so their products need no loop: one large product replaces many small ones.
        from_input = F.linear(inputs[:, start:stop], input_weight, bias).unbind(1)
        for step in reversed(range(start, stop)) if reverse else range(start, stop):
            gates = from_input[step - start] + F.linear(hidden, recurrent_weight)
            new_hidden, new_cell = _lstm_step(gates, cell, weights)
            if mask is None:
                hidden, cell = new_hidden, new_cell
                outputs.append(hidden)
            else:
                # Padding does not change the state. In either direction, a row's final state is therefore the one after
                # its last real token, whatever the length of the other rows.
                real = mask[:, step, None]
                hidden = torch.where(real, new_hidden, hidden)
                cell = torch.where(real, new_cell, cell)
                outputs.append(torch.where(real, new_hidden, torch.zeros_like(new_hidden)))
    if reverse:
        outputs.reverse()
    stacked = torch.stack(outputs, dim=1) if outputs else inputs.new_zeros(len(inputs), 0, hidden.shape[1])
    return stacked, hidden, cell


def with_offset(bias: Tensor) -> Tensor:
    """Add the forget gate's offset to a bias."""
    # A new tensor, not an in-place addition, because the parameter must keep the file's value.
    offset = torch.zeros_like(bias)
    hidden_dim = len(bias) // GATES
    offset[2 * hidden_dim : 3 * hidden_dim] = FORGET_OFFSET
    return bias + offset


def _lstm_step(gates: Tensor, cell: Tensor, weights: LSTMWeights) -> tuple[Tensor, Tensor]:
    """Compute the new hidden state and cell from the gate sums ``(batch, 4 * hidden_dim)`` and the old cell."""
    i, g, f, o = gates.chunk(4, dim=-1)
    # The cell is clipped before the output gate reads it, as in TensorFlow's `LSTMCell`, and the clipped value is
    # passed to the next step.
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    if weights.cell_clip is not None:
        cell = cell.clamp(-weights.cell_clip, weights.cell_clip)
    hidden = torch.sigmoid(o) * torch.tanh(cell)
    if weights.projection is not None:
        hidden = F.linear(hidden, weights.projection)
        if weights.projection_clip is not None:
            hidden = hidden.clamp(-weights.projection_clip, weights.projection_clip)
    return hidden, cell


# The layers of all directions side by side

torch.library.define("elmokit::join_directions", "(Tensor[] halves, Tensor mask, int n_directions) -> Tensor")


def join_directions(layers: list[list[Tensor]], mask: Tensor) -> Tensor:
    """Concatenate each direction's layers ``(batch, time, dim)`` as ``(layers, batch, time, directions * dim)``.

    Padding, where the mask ``(batch, time)`` is False, is 0.
    """
    halves = [half for of_layer in zip(*layers, strict=True) for half in of_layer]
    if needs_gradient(*halves) or are_hidden(mask, *halves):
        return _join_in_pytorch(halves, mask, len(layers))
    result: Tensor = torch.ops.elmokit.join_directions.default(halves, mask, len(layers))
    return result


def _join_in_pytorch(halves: list[Tensor], mask: Tensor, n_directions: int) -> Tensor:
    starts = range(0, len(halves), n_directions)
    joined = torch.stack([torch.cat(halves[start : start + n_directions], dim=-1) for start in starts])
    return torch.where(mask[..., None], joined, 0.0)


@has_results_like("elmokit::join_directions")
def _fake_join(halves: list[Tensor], mask: Tensor, n_directions: int) -> Tensor:
    n_rows, n_steps, dim = halves[0].shape
    return halves[0].new_empty(len(halves) // n_directions, n_rows, n_steps, n_directions * dim)


def _join(halves: list[Tensor], mask: Tensor, n_directions: int) -> Tensor:
    if c_library(*halves) is None:
        return _join_in_pytorch(halves, mask, n_directions)
    # NumPy, because PyTorch would copy with its own threads, which would then occupy the operators' cores.
    n_rows, n_steps, dim = halves[0].shape
    n_layers = len(halves) // n_directions
    joined = np.empty((n_layers, n_rows, n_steps, n_directions, dim), np.float32)
    for number, half in enumerate(halves):
        joined[number // n_directions, :, :, number % n_directions] = half.detach().numpy()
    joined[:, ~mask.numpy()] = 0
    return torch.from_numpy(joined.reshape(n_layers, n_rows, n_steps, n_directions * dim))


computes("elmokit::join_directions")(_join)


# Rows of a table

torch.library.define("elmokit::take_rows", "(Tensor table, Tensor index) -> Tensor")


def take_rows(table: Tensor, index: Tensor) -> Tensor:
    """Select rows of a table by non-negative index; others raise an IndexError."""
    if needs_gradient(table):
        return table[index]
    if not computes_rows(table) or are_hidden(index):
        return _select_rows(table, index)
    rows: Tensor = torch.ops.elmokit.take_rows.default(table, index)
    return rows


def _select_rows(table: Tensor, index: Tensor) -> Tensor:
    return table.index_select(0, index.flatten()).view(*index.shape, *table.shape[1:])


@computes("elmokit::take_rows")
def _take_rows(table: Tensor, index: Tensor) -> Tensor:
    if not table.is_cpu or table.dtype != torch.float32:
        return _select_rows(table, index)
    places = index.numpy()
    if places.size and not 0 <= places.min() <= places.max() < len(table):  # NumPy allows negative indices
        raise IndexError("index out of range")  # as F.embedding says
    return torch.from_numpy(table.detach().numpy().take(places, axis=0))  # by NumPy, as above


@has_results_like("elmokit::take_rows")
def _fake_take_rows(table: Tensor, index: Tensor) -> Tensor:
    return table.new_empty(*index.shape, *table.shape[1:])


# A sum

torch.library.define("elmokit::add", "(Tensor first, Tensor second) -> Tensor")


def add(first: Tensor, second: Tensor) -> Tensor:
    """Add two tensors of the same shape."""
    if needs_gradient(first, second) or not computes_rows(first, second):
        return first + second
    result: Tensor = torch.ops.elmokit.add.default(first, second)
    return result


@computes("elmokit::add")
def _add(first: Tensor, second: Tensor) -> Tensor:
    if c_library(first, second) is None:
        return first + second
    return torch.from_numpy(first.detach().numpy() + second.detach().numpy())  # by NumPy, as above


@has_results_like("elmokit::add")
def _fake_add(first: Tensor, second: Tensor) -> Tensor:
    return first.new_empty(first.shape)


# A training window of one LSTM layer, with what its gradient needs

torch.library.define(
    "elmokit::lstm_window",
    "(Tensor inputs, Tensor hidden, Tensor cell, Tensor weight, Tensor bias, Tensor? projection, float? cell_clip, "
    "float? projection_clip, ScalarType? low_dtype) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
torch.library.define(
    "elmokit::lstm_window_backward",
    "(Tensor? of_outputs, Tensor? of_cells, Tensor inputs, Tensor weight, Tensor? projection, Tensor outputs, "
    "Tensor cells, Tensor gates, Tensor tanh_cells, Tensor unprojected, float? cell_clip, float? projection_clip, "
    "ScalarType? low_dtype, bool needs_state) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@has_results_like("elmokit::lstm_window")
def _fake_lstm_window(
    inputs: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, bias: Tensor, projection: Tensor | None, *others: Any
) -> tuple[Tensor, ...]:
    n_steps, n_rows, _ = inputs.shape
    hidden_dim = cell.shape[1]
    return (
        inputs.new_empty(n_steps + 1, n_rows, hidden.shape[1]),
        inputs.new_empty(n_steps + 1, n_rows, hidden_dim),
        inputs.new_empty(n_steps, n_rows, GATES * hidden_dim),
        inputs.new_empty(n_steps, n_rows, hidden_dim),
        inputs.new_empty(0) if projection is None else inputs.new_empty(n_steps, n_rows, hidden_dim),
    )


def _lstm_window(
    inputs: Tensor,  # (time, batch, input_dim)
    hidden: Tensor,
    cell: Tensor,
    weight: Tensor,
    bias: Tensor,
    projection: Tensor | None,
    cell_clip: float | None,
    projection_clip: float | None,
    low_dtype: torch.dtype | None,
) -> tuple[Tensor, ...]:
    input_dim = inputs.shape[2]
    _check_sizes(inputs.transpose(0, 1), hidden, cell, *_halves(weight, input_dim), bias, projection, None)
    with torch.autocast(inputs.device.type, enabled=False):
        layer = _recurrence(input_dim, weight, projection, cell_clip, projection_clip, low_dtype)
        buffers = run_steps(layer, inputs, with_offset(bias), hidden, cell)
    unprojected = inputs.new_empty(0) if projection is None else buffers.unprojected
    return buffers.outputs, buffers.cells, buffers.gates, buffers.tanh_cells, unprojected


def _recurrence(
    input_dim: int,
    weight: Tensor,
    projection: Tensor | None,
    cell_clip: float | None,
    projection_clip: float | None,
    low_dtype: torch.dtype | None,
) -> Recurrence:
    library = c_library(weight) if low_dtype is None else None
    if library is None:
        steps = partial(training_step, cell_clip=cell_clip), partial(training_step_backward, cell_clip=cell_clip)
    else:
        steps = (
            partial(native_training.training_step, library, cell_clip=cell_clip),
            partial(native_training.training_step_backward, library, cell_clip=cell_clip),
        )
    functions = StepFunctions(GATES, *steps)
    input_weight, state_weight = weight[:, :input_dim], weight[:, input_dim:]
    return Recurrence(functions, input_weight, state_weight, None, projection, projection_clip, low_dtype)


@has_results_like("elmokit::lstm_window_backward")
def _fake_lstm_window_backward(
    of_outputs: Tensor | None,
    of_cells: Tensor | None,
    inputs: Tensor,
    weight: Tensor,
    projection: Tensor | None,
    outputs: Tensor,
    cells: Tensor,
    *others: Any,
) -> tuple[Tensor, ...]:
    return (
        torch.empty_like(inputs, memory_format=torch.contiguous_format),
        outputs.new_empty(outputs.shape[1:]),
        cells.new_empty(cells.shape[1:]),
        weight.new_empty(weight.shape),
        weight.new_empty(weight.shape[0]),
        weight.new_empty(0 if projection is None else projection.shape),
    )


def _lstm_window_backward(
    of_outputs: Tensor | None,
    of_cells: Tensor | None,
    inputs: Tensor,
    weight: Tensor,
    projection: Tensor | None,
    outputs: Tensor,
    cells: Tensor,
    gates: Tensor,
    tanh_cells: Tensor,
    unprojected: Tensor,
    cell_clip: float | None,
    projection_clip: float | None,
    low_dtype: torch.dtype | None,
    needs_state: bool,
) -> tuple[Tensor, ...]:
    unprojected = outputs[1:] if projection is None else unprojected
    if of_outputs is None:
        of_outputs = torch.zeros_like(outputs)
    else:  # a copy, because it is modified
        of_outputs = of_outputs.clone(memory_format=torch.contiguous_format)
    # The caller may run the backward pass inside autocast, which would lower the precision of every product.
    with torch.autocast(inputs.device.type, enabled=False):
        layer = _recurrence(inputs.shape[2], weight, projection, cell_clip, projection_clip, low_dtype)
        buffers = Buffers(gates, cells, tanh_cells, unprojected, outputs, outputs[:-1])
        gradients = gradients_of_steps(layer, inputs, buffers, of_outputs, of_cells, needs_state)
    return (
        gradients.inputs,
        gradients.hidden.clone(),
        gradients.cell,
        torch.cat([gradients.input_weight, gradients.state_weight], dim=1),
        gradients.bias,
        weight.new_empty(0) if gradients.projection is None else gradients.projection,
    )


def _keep_window(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    of_layer, _, _, weight, _, projection, *ctx.bounds = inputs
    ctx.save_for_backward(of_layer, weight, projection, *output)
    ctx.set_materialize_grads(False)


def _differentiate_window(
    ctx: Any, of_outputs: Tensor | None, of_cells: Tensor | None, *others: Tensor | None
) -> tuple[Tensor | None, ...]:
    if of_outputs is None and of_cells is None:
        return (None,) * 9
    needs_state = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    tensors = ctx.saved_tensors  # accessed once, because checkpointing provides them only once
    *gradients, of_projection = torch.ops.elmokit.lstm_window_backward.default(
        of_outputs, of_cells, *tensors, *ctx.bounds, needs_state
    )
    return *gradients, None if tensors[2] is None else of_projection, None, None, None


computes("elmokit::lstm_window")(_lstm_window)
computes("elmokit::lstm_window_backward")(_lstm_window_backward)
differentiable_once("elmokit::lstm_window_backward")
torch.library.register_autograd("elmokit::lstm_window", _differentiate_window, setup_context=_keep_window)


# The same window with products of bfloat16 tiles

torch.library.define(
    "elmokit::lstm_tile_window",
    "(Tensor inputs, Tensor hidden, Tensor cell, Tensor weight, Tensor bias, Tensor projection, float? cell_clip, "
    "float? projection_clip) -> (Tensor, Tensor, Tensor)",
)
torch.library.define(
    "elmokit::lstm_tile_window_backward",
    "(Tensor of_outputs, Tensor inputs, Tensor hidden, Tensor cell, Tensor weight, Tensor bias, Tensor projection, "
    "Tensor outputs, Tensor kept, float? cell_clip, float? projection_clip) -> (Tensor, Tensor, Tensor, Tensor)",
)


@has_results_like("elmokit::lstm_tile_window")
def _fake_tile_window(inputs: Tensor, hidden: Tensor, cell: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    library, n_bytes = tile_library(), 0
    if library is not None:
        sizes = [int(size) for size in (*inputs.shape, cell.shape[1], hidden.shape[1])]
        n_bytes = native_training.kept_bytes(library, sizes)
    outputs = inputs.new_empty(*inputs.shape[:2], hidden.shape[1])
    return outputs, cell.new_empty(cell.shape), inputs.new_empty(n_bytes, dtype=torch.uint8)


@has_results_like("elmokit::lstm_tile_window_backward")
def _fake_tile_window_backward(
    of_outputs: Tensor,
    inputs: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weight: Tensor,
    bias: Tensor,
    projection: Tensor,
    *others: Any,
) -> tuple[Tensor, ...]:
    return tuple(tensor.new_empty(tensor.shape) for tensor in (inputs, weight, bias, projection))


def _tile_window(
    inputs: Tensor,  # (batch, time, input_dim)
    hidden: Tensor,
    cell: Tensor,
    weight: Tensor,
    bias: Tensor,
    projection: Tensor,
    cell_clip: float | None,
    projection_clip: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    _check_sizes(inputs, hidden, cell, *_halves(weight, inputs.shape[2]), bias, projection, None)
    library = tile_library(inputs, hidden, cell, weight, bias, projection)
    if library is None:
        tensors = (inputs.transpose(0, 1), hidden, cell, weight, bias, projection)
        outputs, cells, *_ = _lstm_window(*tensors, cell_clip, projection_clip, torch.bfloat16)
        return outputs[1:].transpose(0, 1).contiguous(), cells[-1].clone(), inputs.new_empty(0, dtype=torch.uint8)
    return native_training.window_forward(
        library,
        inputs.contiguous(),
        weight.contiguous(),
        with_offset(bias),
        projection.contiguous(),
        hidden.contiguous(),
        cell.contiguous(),
        cell_clip,
        projection_clip,
    )


def _tile_window_backward(
    of_outputs: Tensor,
    inputs: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weight: Tensor,
    bias: Tensor,
    projection: Tensor,
    outputs: Tensor,
    kept: Tensor,  # empty if there are no tiles
    cell_clip: float | None,
    projection_clip: float | None,
) -> tuple[Tensor, ...]:
    library = tile_library(of_outputs, inputs, hidden)
    if library is not None and len(kept):
        inputs, hidden, of_outputs = inputs.contiguous(), hidden.contiguous(), of_outputs.contiguous()
        return native_training.window_backward(
            library, of_outputs, inputs, hidden, outputs, kept, cell.shape[1], cell_clip, projection_clip
        )
    steps = inputs.transpose(0, 1)
    buffers = _lstm_window(  # again, since nothing was kept
        steps, hidden, cell, weight, bias, projection, cell_clip, projection_clip, torch.bfloat16
    )
    of_steps = torch.cat([torch.zeros_like(hidden)[None], of_outputs.transpose(0, 1)])
    of_inputs, _, _, *of_weights = torch.ops.elmokit.lstm_window_backward.default(
        *(of_steps, None, steps, weight, projection, *buffers, cell_clip, projection_clip, torch.bfloat16, False)
    )
    return of_inputs.transpose(0, 1).contiguous(), *of_weights


def loaded_library() -> Library:
    """Return the C functions, in a place where they are known to exist."""
    library = backends.native_library()
    assert library is not None
    return library


def _keep_tile_window(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, cell_clip, projection_clip = inputs
    outputs, _, kept = output
    ctx.save_for_backward(*tensors, outputs, kept)
    ctx.bounds = cell_clip, projection_clip
    ctx.set_materialize_grads(False)


def _differentiate_tile_window(
    ctx: Any, of_outputs: Tensor | None, *others: Tensor | None
) -> tuple[Tensor | None, ...]:
    if of_outputs is None:
        return (None,) * 8
    of_inputs, *of_weights = torch.ops.elmokit.lstm_tile_window_backward.default(
        of_outputs, *ctx.saved_tensors, *ctx.bounds
    )
    # None for the states, because backpropagation is truncated at windows.
    return of_inputs, None, None, *of_weights, None, None


computes("elmokit::lstm_tile_window")(_tile_window)
computes("elmokit::lstm_tile_window_backward")(_tile_window_backward)
differentiable_once("elmokit::lstm_tile_window_backward")
torch.library.register_autograd(
    "elmokit::lstm_tile_window", _differentiate_tile_window, setup_context=_keep_tile_window
)


def run_lstm(
    inputs: Tensor,  # (batch, time, input_dim)
    hidden: Tensor,  # (batch, projection_dim)
    cell: Tensor,  # (batch, hidden_dim)
    weights: LSTMWeights,
    mask: Tensor | None,  # (batch, time), bool: False gives 0 and keeps the state
    reverse: bool,  # read from the last step to the first
    adds_inputs: bool,  # add the inputs to the outputs
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer in one direction. Return outputs ``(batch, time, projection_dim)`` and the final state."""
    tensors = (inputs, hidden, cell, weights.weight, weights.bias, weights.projection)
    if are_hidden(*tensors, mask):
        outputs, hidden, cell = lstm_formulas(inputs, hidden, cell, weights, mask, reverse)
        return _completed(outputs, inputs, mask, adds_inputs), hidden, cell
    if not needs_gradient(*tensors):
        return lstm_layer(inputs, hidden, cell, weights.parts(inputs.shape[2]), mask, reverse, adds_inputs)
    outputs, hidden, cell = _run_with_gradient(inputs, hidden, cell, weights, mask, reverse)
    return _completed(outputs, inputs, mask, adds_inputs), hidden, cell


def _run_with_gradient(
    inputs: Tensor, hidden: Tensor, cell: Tensor, weights: LSTMWeights, mask: Tensor | None, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer with a gradient, reading every row from the first step. Outputs on padding are arbitrary."""
    if mask is not None:
        order, places = reading_order(mask, reverse)
        outputs, hidden, cell = _run_window(reorder(inputs, order), hidden, cell, weights, mask.sum(dim=1))
        return reorder(outputs, places), hidden, cell
    if reverse:
        outputs, hidden, cell = _run_window(inputs.flip(1), hidden, cell, weights, None)
        return outputs.flip(1), hidden, cell
    return _run_window(inputs, hidden, cell, weights, None)


def _run_window(
    inputs: Tensor, hidden: Tensor, cell: Tensor, weights: LSTMWeights, lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer from the first step to the last, with a gradient. Each row's state is the one after its length."""
    weight, bias, projection, *clips = weights
    device = inputs.device.type
    low_dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    inputs = inputs.to(weight.dtype)
    # Tiles compute no gradient of the state, which training windows do not need.
    is_cut = not hidden.requires_grad and not cell.requires_grad and lengths is None
    is_rounded = low_dtype == torch.bfloat16 and projection is not None and is_cut and inputs.numel() > 0
    if is_rounded and takes_tiles(inputs, hidden, cell, weight, bias, projection):
        outputs, after, _ = torch.ops.elmokit.lstm_tile_window.default(
            inputs, hidden, cell, weight, bias, projection, *clips
        )
        return outputs, outputs[:, -1].detach().clone(), after.detach()
    outputs, cells, *_ = torch.ops.elmokit.lstm_window.default(
        inputs.transpose(0, 1).contiguous(), hidden, cell, weight, bias, projection, *clips, low_dtype
    )
    # Copies (indexing with a tensor also copies), because views would keep the states of all steps in memory as long as
    # the caller keeps the last state.
    if lengths is None:
        return outputs[1:].transpose(0, 1), outputs[-1].clone(), cells[-1].clone()
    rows = torch.arange(len(lengths), device=lengths.device)
    return outputs[1:].transpose(0, 1), outputs[lengths, rows], cells[lengths, rows]


def reading_order(mask: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    """Return the positions ``(batch, time)`` of each row's tokens in reading order, padding last.

    The second result is the inverse permutation.
    """
    n_tokens = mask.sum(dim=1, keepdim=True)
    rank = mask.cumsum(dim=1) - 1
    read = n_tokens - 1 - rank if reverse else rank
    places = torch.where(mask, read, n_tokens - 1 + (~mask).cumsum(dim=1))
    return places.argsort(dim=1), places
