"""The C functions for training: forward passes that keep what the gradient needs, and backward passes.

Each takes the library first, and then tensors. ``lstm_training.py``, ``tile_layers.py`` and ``char_convolution.py``
build differentiable functions from them.

Tensors must be contiguous, on the CPU and, unless stated otherwise, float32. The C functions cannot check this, or any
size: a wrong shape would access memory out of bounds, so callers check first.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from elmokit.engine.library import Library
from elmokit.engine.threads import n_threads

GATES = 4
ALIGNMENT = 64  # of tiles, in bytes
_NO_CLIP = float("inf")
_KEPT = threading.local()


class PackedFilters(NamedTuple):
    """The filters of one convolution, packed for :func:`convolve`."""

    panels: Tensor  # (panels, width * dim, wide)
    bias: Tensor  # (panels * wide,)
    n_filters: int


def training_step(
    library: Library,
    gates: Tensor,  # (rows, 4 * hidden_dim), the sums of i, g, f, o; replaced by the activations
    cell_before: Tensor,  # (rows, hidden_dim), like the next three
    cell_after: Tensor,  # written: the new cell
    tanh_cell: Tensor,  # written: tanh of it
    outputs: Tensor,  # written: tanh_cell times the activation of o
    cell_clip: float | None,
) -> None:
    """Compute the elementwise part of one training step."""
    library.training_step(
        *(n_threads(), *cell_before.shape, gates.data_ptr(), cell_before.data_ptr()),
        *(cell_after.data_ptr(), tanh_cell.data_ptr(), outputs.data_ptr()),
        _bound(cell_clip),
    )


def training_step_backward(
    library: Library,
    gradient: Tensor,  # of the outputs
    gates: Tensor,  # this and the next three as `training_step` left them
    cell_before: Tensor,
    cell_after: Tensor,
    tanh_cell: Tensor,
    cell_gradient: Tensor,  # of `cell_after`, from later steps; replaced with the gradient of `cell_before`
    gate_gradient: Tensor,  # written: the gradient of the gate sums
    cell_clip: float | None,
) -> None:
    """Compute the gradient of ``training_step``."""
    library.training_step_backward(
        *(n_threads(), *cell_before.shape, gradient.data_ptr(), gates.data_ptr()),
        *(cell_before.data_ptr(), cell_after.data_ptr(), tanh_cell.data_ptr(), cell_gradient.data_ptr()),
        gate_gradient.data_ptr(),
        _bound(cell_clip),
    )


def window_forward(
    library: Library,
    inputs: Tensor,  # (rows, steps, input_dim)
    weight: Tensor,  # (4 * hidden_dim, input_dim + projection_dim), blocks i, g, f, o
    bias: Tensor,  # (4 * hidden_dim,)
    projection: Tensor,  # (projection_dim, hidden_dim)
    hidden: Tensor,  # (rows, projection_dim), the state before the window
    cell: Tensor,  # (rows, hidden_dim), the same
    cell_clip: float | None,
    projection_clip: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer on a training window. Return outputs, the final cell, and what the backward pass needs."""
    sizes = (*inputs.shape, *reversed(projection.shape))
    kept_bytes, forward_bytes, _ = _window_bytes(library, sizes)
    kept, memory = _empty(library, kept_bytes + ALIGNMENT), _scratch(library, forward_bytes)
    kept[-ALIGNMENT:] = 0  # an operator must write all of its result
    outputs, cell = inputs.new_empty(*inputs.shape[:2], len(projection)), cell.clone()
    library.window_forward(
        *(n_threads(), *sizes, inputs.data_ptr(), weight.data_ptr(), bias.data_ptr()),
        *(projection.data_ptr(), hidden.data_ptr(), cell.data_ptr(), _bound(cell_clip), _bound(projection_clip)),
        *(_aligned(kept), _aligned(memory), outputs.data_ptr()),
    )
    return outputs, cell, kept


def window_backward(
    library: Library,
    upstream: Tensor,  # the gradient of the outputs
    inputs: Tensor,
    hidden: Tensor,
    outputs: Tensor,
    kept: Tensor,  # from `window_forward`, like the outputs
    hidden_dim: int,
    cell_clip: float | None,
    projection_clip: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of inputs, weight, bias and projection of ``window_forward``."""
    sizes = (*inputs.shape, hidden_dim, outputs.shape[2])
    memory = _scratch(library, _window_bytes(library, sizes)[2])
    gradients = (
        torch.empty_like(inputs),
        inputs.new_empty(GATES * hidden_dim, inputs.shape[2] + outputs.shape[2]),
        inputs.new_empty(GATES * hidden_dim),
        inputs.new_empty(outputs.shape[2], hidden_dim),
    )
    library.window_backward(
        *(n_threads(), *sizes, inputs.data_ptr(), hidden.data_ptr(), outputs.data_ptr()),
        *(upstream.data_ptr(), _bound(cell_clip), _bound(projection_clip), _aligned(kept), _aligned(memory)),
        *(gradient.data_ptr() for gradient in gradients),
    )
    return gradients


def kept_bytes(library: Library, sizes: Sequence[int]) -> int:
    """Return how many bytes ``window_forward`` keeps, for the numbers of rows, steps, inputs, units and outputs."""
    return _window_bytes(library, sizes)[0] + ALIGNMENT


def _window_bytes(library: Library, sizes: Sequence[int]) -> list[int]:
    """Return how many bytes a window keeps, and how many its forward and backward passes need."""
    n_bytes = (ctypes.c_int64 * 3)()  # not a tensor: under a fake mode, a tensor has no memory
    library.window_bytes(n_threads(), *sizes, ctypes.addressof(n_bytes))
    return list(n_bytes)


def linear_rows(library: Library, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute ``inputs @ weight.T + bias``. Each row has the same bits in any batch."""
    outputs, threads = inputs.new_empty(len(inputs), len(weight)), n_threads()
    with scratch(library, library.linear_rows_bytes(threads, inputs.shape[1])) as memory:
        library.linear_rows(
            *(threads, *inputs.shape, len(weight), inputs.data_ptr(), weight.data_ptr()),
            *(None if bias is None else bias.data_ptr(), memory, outputs.data_ptr()),
        )
    return outputs


def convolve_rows(
    library: Library,
    ids: Tensor,  # (tokens, columns) int64, rows of `characters`; columns of padding at the end
    characters: Tensor,  # (characters, dim)
    weight: Tensor,  # (filters, dim, width), with width at most the number of columns
    bias: Tensor,  # (filters,)
) -> Tensor | None:
    """Compute each filter's maximum, ``(tokens, filters)``, with the same bits in any batch; None for invalid ids."""
    maxima = characters.new_empty(len(ids), len(weight))
    call = library.structs["convolution_call"](
        *(*ids.shape, *characters.shape, len(weight), weight.shape[2]),
        *(ids.data_ptr(), characters.data_ptr(), weight.data_ptr(), bias.data_ptr(), maxima.data_ptr()),
    )
    at, threads = ctypes.byref(call), n_threads()
    with scratch(library, library.convolution_bytes(threads, at)) as memory:
        has_valid_ids = library.run_convolution(threads, at, memory)
    return maxima if has_valid_ids else None


def linear_forward(
    library: Library,
    inputs: Tensor,  # (rows, n_inputs)
    weight: Tensor,  # (n_outputs, n_inputs)
    bias: Tensor,  # (n_outputs,)
) -> Tensor:
    """Compute ``inputs @ weight.T + bias`` with bfloat16 tiles."""
    sizes = (*inputs.shape, len(weight))
    memory = _scratch(library, library.linear_bytes(*sizes))
    outputs = inputs.new_empty(len(inputs), len(weight))
    library.linear_forward(
        *(n_threads(), *sizes, inputs.data_ptr(), weight.data_ptr(), bias.data_ptr()),
        *(_aligned(memory), outputs.data_ptr()),
    )
    return outputs


def linear_backward(
    library: Library,
    inputs: Tensor,
    weight: Tensor,
    upstream: Tensor,  # the gradient of the outputs
    input_gradient: Tensor | None,  # written; None if it is not needed
    adds: bool = False,  # add to `input_gradient`
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of weight and bias of ``linear_forward``, and write the inputs' gradient."""
    sizes = (*inputs.shape, len(weight))
    memory, weight_gradient = _scratch(library, library.linear_bytes(*sizes)), torch.empty_like(weight)
    bias_gradient = weight.new_empty(len(weight))
    library.linear_backward(
        *(n_threads(), *sizes, inputs.data_ptr(), weight.data_ptr(), upstream.data_ptr()),
        *(_aligned(memory), adds, None if input_gradient is None else input_gradient.data_ptr()),
        *(weight_gradient.data_ptr(), bias_gradient.data_ptr()),
    )
    return weight_gradient, bias_gradient


def highway_forward(library: Library, inputs: Tensor, transformed: Tensor, gate: Tensor) -> Tensor:
    """Compute ``g * relu(transformed) + (1 - g) * inputs`` with ``g = sigmoid(gate)``, which replaces ``gate``."""
    outputs = torch.empty_like(inputs)
    library.highway_forward(
        *(n_threads(), inputs.numel(), inputs.data_ptr(), transformed.data_ptr(), gate.data_ptr()),
        outputs.data_ptr(),
    )
    return outputs


def highway_backward(
    library: Library,
    upstream: Tensor,  # the gradient of the outputs
    inputs: Tensor,
    transformed: Tensor,
    gate: Tensor,  # as `highway_forward` left it
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of ``transformed``, the gate's sums, and the inputs (their direct path only)."""
    gradients = torch.empty_like(inputs), torch.empty_like(inputs), torch.empty_like(inputs)
    library.highway_backward(
        *(n_threads(), inputs.numel(), upstream.data_ptr(), inputs.data_ptr()),
        *(transformed.data_ptr(), gate.data_ptr(), *(gradient.data_ptr() for gradient in gradients)),
    )
    return gradients


def seeded_dropout(library: Library, inputs: Tensor, probability: float, seed: int) -> Tensor:
    """Scale the inputs and set those that the seed selects to zero. The gradient is the same function."""
    outputs = torch.empty_like(inputs)
    library.dropout(*(n_threads(), inputs.numel(), seed, probability, inputs.data_ptr(), outputs.data_ptr()))
    return outputs


def softmax_loss(
    library: Library,
    hidden: Tensor,  # (rows, dim)
    weight: Tensor,  # (words, dim): the words that compete with each row's target
    offsets: Tensor,  # (words,), added to their scores
    own_scores: Tensor,  # (rows,), the scores of the targets
    skipped: Tensor,  # (rows,) int64: a word that does not compete in this row, or a negative number
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Compute cross-entropies ``(rows,)`` and the gradients of hidden, weight, offsets and own scores."""
    sizes = (*hidden.shape, len(weight))
    memory = _scratch(library, library.softmax_bytes(n_threads(), *sizes))
    losses = torch.empty_like(own_scores)
    gradients = tuple(torch.empty_like(tensor) for tensor in (hidden, weight, offsets, own_scores))
    library.softmax_loss(
        *(n_threads(), *sizes, hidden.data_ptr(), weight.data_ptr(), offsets.data_ptr()),
        *(own_scores.data_ptr(), skipped.data_ptr(), _aligned(memory), losses.data_ptr()),
        *(gradient.data_ptr() for gradient in gradients),
    )
    return losses, gradients  # type: ignore[return-value]


def table_convolve(
    library: Library,
    char_ids: Tensor,  # (tokens, chars) int64, rows of the table
    n_windows: Tensor,  # (tokens,) int64: how many windows of each token to consider
    table: Tensor,  # (panels, rows, width, panel): what a character adds to each filter at each place
    bias: Tensor,  # (filters,)
    pooled: Tensor,  # written: the maxima (tokens, filters), as columns of a larger matrix
    winners: Tensor,  # written: the winning windows in int32, likewise
) -> None:
    """Compute each filter's maximum over positions, using a table."""
    library.table_convolve(
        *(n_threads(), len(char_ids), char_ids.data_ptr(), char_ids.shape[1], n_windows.data_ptr()),
        *(table.shape[2], table.data_ptr(), table.shape[1], bias.data_ptr(), len(bias), pooled.stride(0)),
        *(pooled.data_ptr(), winners.data_ptr()),
    )


def table_convolve_backward(
    library: Library, char_ids: Tensor, winners: Tensor, upstream: Tensor, table_gradient: Tensor
) -> None:
    """Add the gradient of the maxima, columns of a matrix shaped like ``winners``, to the table's gradient."""
    _, n_rows, width, _ = table_gradient.shape
    library.table_convolve_backward(
        *(n_threads(), len(char_ids), char_ids.data_ptr(), char_ids.shape[1], width, n_rows),
        *(winners.shape[1], winners.stride(0), winners.data_ptr(), upstream.data_ptr()),
        table_gradient.data_ptr(),
    )


def pack_filters(library: Library, weight: Tensor, bias: Tensor) -> PackedFilters:
    """Pack the weight ``(filters, dim, width)`` and the bias."""
    n_filters, dim, width = weight.shape
    wide = library.panel_width()
    n_panels = -(-n_filters // wide)
    panels, padded_bias = weight.new_empty(n_panels, width * dim, wide), bias.new_empty(n_panels * wide)
    library.pack_filters(
        *(n_filters, dim, width, weight.data_ptr(), bias.data_ptr(), panels.data_ptr(), padded_bias.data_ptr())
    )
    return PackedFilters(panels, padded_bias, n_filters)


def convolve(
    library: Library,
    characters: Tensor,  # (tokens, chars, dim)
    n_windows: Tensor,  # (tokens,) int64: how many windows to consider, 1 to chars - width + 1
    filters: PackedFilters,
) -> tuple[Tensor, Tensor]:
    """Compute each filter's maximum, ``(tokens, filters)``, and its position in int32, for the gradient."""
    n_tokens, n_chars, dim = characters.shape
    panels, bias, n_filters = filters
    pooled = characters.new_empty(n_tokens, n_filters)
    positions = characters.new_empty(n_tokens, n_filters, dtype=torch.int32)
    library.convolve(
        *(n_threads(), n_tokens, characters.data_ptr(), n_chars * dim, dim, n_windows.data_ptr()),
        *(panels.data_ptr(), bias.data_ptr(), panels.shape[1], n_filters, pooled.data_ptr(), positions.data_ptr()),
    )
    return pooled, positions


def convolve_backward(
    library: Library,
    characters: Tensor,
    weight: Tensor,  # (filters, width * dim)
    positions: Tensor,  # of the maxima, from `convolve`
    gradient: Tensor,  # of the maxima, (tokens, filters)
    character_gradient: Tensor,  # added to
) -> Tensor:
    """Compute the gradient of the weight of ``convolve``, and add the characters' gradient."""
    n_tokens, n_chars, dim = characters.shape
    n_filters, n_inputs = weight.shape
    n_copies = n_threads()
    # One copy per thread, summed in a fixed order: atomic additions would give different bits in every run.
    weight_gradient = weight.new_zeros(n_copies, n_filters, n_inputs)
    library.convolve_backward(
        *(n_copies, n_tokens, characters.data_ptr(), n_chars * dim, dim, weight.data_ptr(), n_inputs, n_filters),
        *(positions.data_ptr(), gradient.data_ptr(), character_gradient.data_ptr(), weight_gradient.data_ptr()),
    )
    return weight_gradient.sum(dim=0)


def _bound(clip: float | None) -> float:
    return _NO_CLIP if clip is None else clip


def _empty(library: Library, n_bytes: int) -> Tensor:
    """Allocate memory, in large pages where the system supports them."""
    memory = torch.empty(n_bytes, dtype=torch.uint8)
    library.large_pages(memory.data_ptr(), n_bytes)
    return memory


def _scratch(library: Library, n_bytes: int) -> Tensor:
    """Return memory for one call. Each thread reuses its own: new pages cost as much as filling them twice."""
    memory: Tensor | None = getattr(_KEPT, "scratch", None)
    if memory is None or len(memory) < n_bytes + ALIGNMENT:
        memory = _KEPT.scratch = _empty(library, n_bytes + ALIGNMENT)
    return memory


@contextmanager
def scratch(library: Library, n_bytes: int) -> Iterator[int]:
    """Yield the address of memory for one call."""
    yield _aligned(_scratch(library, n_bytes))


def _aligned(memory: Tensor) -> int:
    """Return the first address in a tensor's memory that is aligned for tiles."""
    return -(-memory.data_ptr() // ALIGNMENT) * ALIGNMENT
