"""Run a stack of LSTM layers without gradients in PyTorch, for GPUs and for systems without C functions.

Only real tokens are computed.

As in PyTorch's ``PackedSequence``, the rows of a batch are sorted by falling length and the tokens by step. The rows
that are still active at a step are then the first rows of the step before, and the tokens of a step are one block of
memory. A backward LSTM starts each row at its own last token: the same order with other positions.

The products with a layer's inputs do not depend on the state, so those of several steps are one product. What remains
of a step is the product with the hidden state, an elementwise part, and the projection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit.engine.precision import Backend

# Rows whose input products are computed together: enough for the products' full speed, and few enough for the gate
# sums to stay in the cache until the steps need them.
MAX_CHUNK_ROWS = 64
# On a GPU, one large product for many steps is faster than many small ones. The bound is for memory: 256 MiB of gate
# sums in the original sizes.
MAX_CHUNK_ROWS_ON_GPU = 4096


Product = Callable[[Tensor], Tensor]
"""Maps ``(rows, inputs)`` in float32 to a new tensor ``(rows, outputs)`` in float32."""


def fixed_product(backend: Backend, weight: Tensor, bias: Tensor | None = None) -> Product:
    """Return ``inputs @ weight.T + bias`` as a function, for the backend "torch" or "torch-bfloat16"."""
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    if backend == "torch":
        return lambda inputs: F.linear(inputs, weight, bias)
    half = weight.to(torch.bfloat16)

    def product(inputs: Tensor) -> Tensor:
        outputs = F.linear(inputs.bfloat16(), half).float()
        return outputs if bias is None else outputs.add_(bias)  # in float32, so that the sum is rounded only once

    return product


class LayerWeights(NamedTuple):
    """The weights of one LSTM layer in one direction, as ``ProjectedLSTM`` holds them."""

    weight: Tensor  # (4 * hidden_dim, input_dim + projection_dim), blocks i, g, f, o
    bias: Tensor  # (4 * hidden_dim,), the forget offset included
    projection: Tensor | None  # (projection_dim, hidden_dim)
    cell_clip: float  # infinite for no bound
    projection_clip: float  # infinite for no bound


class TorchLayer(NamedTuple):
    """A layer as three products, for a ``torch...`` backend."""

    from_input: Product  # with the bias
    from_state: Product
    project: Product | None
    cell_clip: float
    projection_clip: float


def prepare_layer(backend: Backend, layer: LayerWeights, input_dim: int) -> TorchLayer:
    """Prepare the weights of a layer for a ``torch...`` backend: views of them, or bfloat16 copies for one batch."""
    return TorchLayer(
        from_input=fixed_product(backend, layer.weight[:, :input_dim], layer.bias),
        from_state=fixed_product(backend, layer.weight[:, input_dim:]),
        project=None if layer.projection is None else fixed_product(backend, layer.projection),
        cell_clip=layer.cell_clip,
        projection_clip=layer.projection_clip,
    )


class TokenOrder(NamedTuple):
    """The order in which the real tokens of a batch are computed."""

    batch_sizes: list[int]  # for each step, how many rows are active: never rising, at least 1
    positions: Tensor  # (tokens,) in the flattened batch: those of step 0, then those of step 1, ...
    rows: Tensor  # (batch,) the rows of the batch, longest first
    last: Tensor  # (rows with a token,) the index in ``positions`` of each row's last token


def token_order(mask: Tensor, reverse: bool) -> TokenOrder:
    """Return the order for a mask ``(batch, time)``, which may have holes anywhere."""
    # In NumPy: on arrays of this size, a call of PyTorch takes several times as long. For a single sentence in a small
    # model, that was a fifth of the time.
    real = mask.cpu().numpy()
    n_positions = real.shape[1]
    lengths = real.sum(axis=1)
    # Stable, so that rows of equal length stay in the order of the batch.
    rows = (-lengths).argsort(kind="stable")
    lengths = lengths[rows]
    # Sorting the mask stably brings the positions of real tokens to the front and keeps their order.
    positions = (~real[rows]).argsort(axis=1, kind="stable")
    steps = np.arange(n_positions)
    if reverse:
        # Row r reads its real positions from the last to the first. Entries beyond its length are clamped here and
        # dropped by `active` below.
        positions = np.take_along_axis(positions, (lengths[:, None] - 1 - steps).clip(min=0), axis=1)
    active = steps[:, None] < lengths  # (time, batch)
    batch_sizes = [n for n in active.sum(axis=1).tolist() if n]
    flat_positions = (rows * n_positions + positions.T)[active]
    # A row of length n has its last token at step n - 1. Within a step, row r is token r, because the longest rows come
    # first.
    starts = np.cumsum([0, *batch_sizes[:-1]])
    nonempty = lengths[: batch_sizes[0]] if batch_sizes else lengths[:0]
    last = starts[nonempty - 1] + np.arange(len(nonempty))
    return TokenOrder(batch_sizes, *(torch.from_numpy(part).to(mask.device) for part in (flat_positions, rows, last)))


def run_stack(
    layers: Sequence[TorchLayer],
    inputs: Tensor,  # (batch, time, dim)
    hidden: Sequence[Tensor],  # of each layer, (batch, projection_dim)
    cell: Sequence[Tensor],  # of each layer, (batch, hidden_dim)
    mask: Tensor,  # (batch, time), bool
    reverse: bool,
    skip_connections: bool,
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Run all layers of one direction; the counterpart of ``LSTMStack.forward`` without dropout and gradients.

    Return each layer's outputs ``(batch, time, dim)``, zero where the mask is False; the new hidden states; the cells.
    """
    order = token_order(mask, reverse)
    # From here on no padding is stored or computed; the same order serves every layer.
    tokens = inputs.flatten(0, 1)[order.positions]  # (tokens, dim)
    outputs: list[Tensor] = []
    new_hidden: list[Tensor] = []
    new_cell: list[Tensor] = []
    for index, (layer, old_hidden, old_cell) in enumerate(zip(layers, hidden, cell, strict=True)):
        # Indexing with a tensor copies, so the caller's states are not overwritten.
        last_hidden, last_cell = old_hidden[order.rows], old_cell[order.rows]
        padded = inputs.new_zeros(*inputs.shape[:2], old_hidden.shape[1])
        if order.batch_sizes:
            layer_outputs = run_layer_torch(layer, order.batch_sizes, tokens, last_hidden, last_cell)
            # The state is what the layer itself put out: the skip connection comes after it.
            last_hidden[: len(order.last)] = layer_outputs[order.last]
            tokens = layer_outputs + tokens if skip_connections and index > 0 else layer_outputs
            padded.flatten(0, 1).index_copy_(0, order.positions, tokens)
        outputs.append(padded)
        # Back to the order of the batch. Rows without a token come last in `order.rows` and keep their old state.
        new_hidden.append(torch.empty_like(last_hidden).index_copy_(0, order.rows, last_hidden))
        new_cell.append(torch.empty_like(last_cell).index_copy_(0, order.rows, last_cell))
    return outputs, new_hidden, new_cell


def run_layer_torch(
    layer: TorchLayer,
    batch_sizes: Sequence[int],  # as in `TokenOrder`
    inputs: Tensor,  # (tokens, input_dim), in the order of the steps
    hidden: Tensor,  # (batch, projection_dim), the state before the first step
    cell: Tensor,  # (batch, hidden_dim), replaced by the cell after each row's last step
) -> Tensor:
    """Run one layer over all steps, to ``(tokens, projection_dim)``."""
    outputs = inputs.new_empty(len(inputs), hidden.shape[1])
    unprojected = torch.empty_like(cell)
    max_rows = MAX_CHUNK_ROWS if inputs.device.type == "cpu" else MAX_CHUNK_ROWS_ON_GPU
    token = step = 0
    while step < len(batch_sizes):
        first, n_rows = step, 0
        # A chunk has at least one step, even if that step alone has more rows.
        while step < len(batch_sizes) and (step == first or n_rows + batch_sizes[step] <= max_rows):
            n_rows, step = n_rows + batch_sizes[step], step + 1
        chunk_from_input = layer.from_input(inputs[token : token + n_rows])
        offset = 0
        for n in batch_sizes[first:step]:
            from_input, from_state = chunk_from_input[offset : offset + n], layer.from_state(hidden[:n])
            inference_step(from_input, from_state, cell[:n], unprojected[:n], layer.cell_clip)
            # Rows that have ended drop out of `hidden` here; the next step has the first rows of this one.
            hidden = unprojected[:n] if layer.project is None else layer.project(unprojected[:n])
            if layer.project is not None and layer.projection_clip < float("inf"):
                hidden.clamp_(-layer.projection_clip, layer.projection_clip)
            outputs[token : token + n] = hidden
            token, offset = token + n, offset + n
    return outputs


def inference_step(
    from_input: Tensor,  # (rows, 4 * hidden_dim), the inputs' part of the gates i, g, f, o, with the bias
    from_state: Tensor,  # the recurrent part
    cell: Tensor,  # (rows, hidden_dim), replaced by the new cell
    unprojected: Tensor,  # (rows, hidden_dim), replaced by sigmoid(o) * tanh(cell)
    cell_clip: float,  # infinite for no bound
) -> None:
    """Compute the elementwise part of one step, in place."""
    # In place: `from_input` is a slice of the chunk's product, which is not read again.
    gates = from_input.add_(from_state)
    i, g, f, o = gates.chunk(4, dim=1)
    g.tanh_()
    i.sigmoid_()
    gates[:, 2 * cell.shape[1] :].sigmoid_()  # f and o, which are neighbors
    cell.mul_(f).addcmul_(i, g)
    if cell_clip < float("inf"):
        cell.clamp_(-cell_clip, cell_clip)
    torch.tanh(cell, out=unprojected).mul_(o)
