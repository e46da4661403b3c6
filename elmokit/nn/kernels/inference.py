"""The fast reading of a batch: real tokens only, step by step, rows dropped as they end.

Rows stand in the order of falling length and time stands first, so that the rows still active at a step are the first
ones of the step before. A backward LSTM reads each row from its own last token: the same order with other places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from elmokit.nn.kernels import compiler as compiled
from elmokit.nn.kernels.native import GATES
from elmokit.nn.kernels.packed import CompiledLayer, TorchLayer

ROWS_AT_ONCE = 64  # of input products: enough for their best rate, few enough for the gate sums to stay in the cache


class ReadingOrder(NamedTuple):
    """Which tokens of a batch are read when."""

    n_active: list[int]  # of each step, how many rows are still being read; never rising, at least 1
    places: Tensor  # (tokens,) where step 0's tokens stand in the flattened batch, then step 1's, ...
    rows: Tensor  # (batch,) the batch rows, longest first
    last: Tensor  # (rows with a token,) where each row's last token stands in ``places``


def reading_order(mask: Tensor, reverse: bool) -> ReadingOrder:
    """The order for a mask ``(batch, time)`` of any form: what is masked is passed over, wherever it stands."""
    n_positions = mask.shape[1]
    lengths = mask.sum(dim=1)
    lengths, rows = lengths.sort(descending=True, stable=True)
    positions = mask[rows].byte().argsort(dim=1, descending=True, stable=True)  # real ones first, in their order
    steps = torch.arange(n_positions, device=mask.device)
    if reverse:
        positions = positions.gather(1, (lengths[:, None] - 1 - steps).clamp(min=0))
    active = steps[:, None] < lengths  # (time, batch)
    n_active = [n for n in active.sum(dim=1).tolist() if n]
    places = (rows * n_positions + positions.t())[active]
    starts = torch.tensor([0, *n_active[:-1]], device=mask.device).cumsum(0)
    real = lengths[: n_active[0]] if n_active else lengths[:0]
    last = starts[real - 1] + torch.arange(len(real), device=mask.device) if len(real) else real
    return ReadingOrder(n_active, places, rows, last)


def read_stack(
    layers: Sequence[TorchLayer | CompiledLayer],
    inputs: Tensor,
    hidden: Sequence[Tensor],
    cell: Sequence[Tensor],
    mask: Tensor,
    reverse: bool,
    skip_connections: bool,
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """All layers of one direction; the twin of ``nn.lstm.LSTMStack.forward`` without dropout and gradients.

    Args:
        inputs: ``(batch, time, dim)``.
        hidden, cell: each layer's state, ``(batch, dim)``.
        mask: ``(batch, time)`` bool.

    Returns:
        each layer's outputs ``(batch, time, dim)``, zero where the mask is False; its new hidden state; its new cell.
    """
    order = reading_order(mask, reverse)
    steps = torch.tensor(order.n_active, dtype=torch.int64)
    read = inputs.flatten(0, 1)[order.places]  # (tokens, dim)
    outputs: list[Tensor] = []
    new_hidden: list[Tensor] = []
    new_cell: list[Tensor] = []
    for index, (layer, old_hidden, old_cell) in enumerate(zip(layers, hidden, cell, strict=True)):
        last_hidden, last_cell = old_hidden[order.rows], old_cell[order.rows]
        written = inputs.new_zeros(inputs.shape[0] * inputs.shape[1], old_hidden.shape[1])
        if order.n_active:
            if isinstance(layer, CompiledLayer):
                here, last_cell = _read_compiled(layer, steps, read, last_hidden, last_cell)
            else:
                here = read_in_torch(layer, order.n_active, read, last_hidden, last_cell)
            last_hidden[: len(order.last)] = here[order.last]
            read = here + read if skip_connections and index > 0 else here
            written[order.places] = read
        outputs.append(written.view(*inputs.shape[:2], written.shape[1]))
        new_hidden.append(torch.empty_like(last_hidden).index_copy_(0, order.rows, last_hidden))
        new_cell.append(torch.empty_like(last_cell).index_copy_(0, order.rows, last_cell))
    return outputs, new_hidden, new_cell


def _read_compiled(
    layer: CompiledLayer, n_active: Tensor, inputs: Tensor, hidden: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor]:
    library = compiled.library()
    assert library is not None
    missing = len(layer.bias) // GATES - layer.hidden_dim
    cell = torch.nn.functional.pad(cell, (0, missing)) if missing else cell
    outputs = library.read_layer(
        n_active,
        inputs,
        layer.input_panels,
        layer.bias,
        layer.recurrent_panels,
        layer.projection_panels,
        hidden,
        cell,
        layer.cell_clip,
        layer.projection_clip,
    )
    return outputs, cell[:, : layer.hidden_dim]


def read_in_torch(layer: TorchLayer, n_active: Sequence[int], inputs: Tensor, hidden: Tensor, cell: Tensor) -> Tensor:
    """One layer over all steps, by packed products and one elementwise step; ``cell`` is written.

    Args:
        n_active: as in ``ReadingOrder``.
        inputs: ``(tokens, input_dim)`` in reading order.
        hidden, cell: ``(batch, dim)``, the state before; ``cell`` becomes that after each row's last step.

    Returns:
        ``(tokens, projection_dim)``
    """
    outputs = inputs.new_empty(len(inputs), hidden.shape[1])
    squashed = torch.empty_like(cell)
    library = compiled.library() if inputs.device.type == "cpu" else None
    weights = layer.weights
    token = step = 0
    while step < len(n_active):
        first, n_rows = step, 0  # input products of several steps are one product
        while step < len(n_active) and (step == first or n_rows + n_active[step] <= ROWS_AT_ONCE):
            n_rows, step = n_rows + n_active[step], step + 1
        from_input = layer.from_input(inputs[token : token + n_rows])
        inside = 0
        for n in n_active[first:step]:
            here, from_state = from_input[inside : inside + n], layer.from_state(hidden[:n])
            if library is not None:
                library.step(here, from_state.contiguous(), cell[:n], squashed[:n], weights.cell_clip)
            else:
                step_in_torch(here, from_state, cell[:n], squashed[:n], weights.cell_clip)
            hidden = squashed[:n] if layer.project is None else layer.project(squashed[:n])
            if layer.project is not None and weights.projection_clip < float("inf"):
                hidden.clamp_(-weights.projection_clip, weights.projection_clip)
            outputs[token : token + n] = hidden
            token, inside = token + n, inside + n
    return outputs


def step_in_torch(from_input: Tensor, from_state: Tensor, cell: Tensor, squashed: Tensor, cell_clip: float) -> None:
    """The elementwise part of one step, in place; arguments as in ``Library.step``."""
    gates = from_input.add_(from_state)
    i, g, f, o = gates.chunk(4, dim=1)
    g.tanh_()
    i.sigmoid_()
    gates[:, 2 * cell.shape[1] :].sigmoid_()
    cell.mul_(f).addcmul_(i, g)
    if cell_clip < float("inf"):
        cell.clamp_(-cell_clip, cell_clip)
    torch.tanh(cell, out=squashed).mul_(o)
