"""Convolutions over the characters of tokens, with max pooling over positions.

A token's ids end in padding: up to 49 of 50 columns are equal. All windows that lie entirely inside the padding give
the same response, so only one of them is computed for the maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.engine.architecture import Activation
from elmokit.network import native_training
from elmokit.network.operators import (
    are_hidden,
    c_library,
    computes,
    computes_rows,
    differentiable_once,
    has_results_like,
    is_traced,
    loaded_library,
    needs_gradient,
    take_rows,
    takes_tiles,
)
from elmokit.network.tensors import has_memory
from elmokit.network.tile_layers import apply_by_row


class Characters(NamedTuple):
    """The characters of tokens, as input of the convolutions. Either ``vectors`` or ``table`` is given."""

    ids: Tensor  # (tokens, chars)
    n_distinct: Tensor  # (tokens,): the number of columns up to the last that differs from the final column
    vectors: Tensor | None  # (tokens, columns, dim): the first columns; the rest cannot change a maximum
    table: Tensor | None  # (rows, dim): vectors of all ids

    def n_windows(self, width: int) -> Tensor:
        """Count the windows to compute for each token: those before the padding, and one inside it."""
        n_columns = self.ids.shape[1] if self.vectors is None else self.vectors.shape[1]
        # Windows start at columns 0 to n_distinct; the last is the first window entirely inside the padding. The clamp
        # is for tokens that fill all columns.
        return (self.n_distinct + 1).clamp(max=n_columns - width + 1)


class DistinctCharacters(NamedTuple):
    """The characters of tokens without gradients: each distinct character has one row in a table."""

    ids: Tensor  # (tokens, columns): rows of the table
    table: Tensor  # (characters, dim)


def read_characters(
    ids: Tensor, embed: Callable[[Tensor], Tensor], n_rows: int, widest: int
) -> Characters | DistinctCharacters:
    """Embed the characters of tokens.

    Args:
        ids: ``(tokens, chars)``.
        embed: Looks up character vectors.
        n_rows: The number of characters in its table.
        widest: Width of the widest filter.
    """
    if ids.is_cpu and not torch.is_grad_enabled() and (is_traced() or has_memory(ids)):
        return _read_distinct(ids, embed, n_rows, widest)
    n_distinct = _count_distinct(ids)
    if not is_traced() and torch.is_grad_enabled() and ids.is_cpu and takes_tiles() and ids.numel():
        # There are only a few hundred characters. What each adds to a filter at each place of its window is computed
        # once per step, for all tokens. This is an embedding lookup of all rows, so row 0 gets no gradient.
        table = embed(torch.arange(n_rows, device=ids.device))
        if takes_tiles(table):
            return Characters(ids, n_distinct, None, table)
    n_columns = ids.shape[1]
    if not is_traced() and ids.numel():
        n_columns = int(n_distinct.max()) + widest  # enough for one whole window of padding after the longest token
    return Characters(ids, n_distinct, embed(ids[:, :n_columns]), None)


def _count_distinct(ids: Tensor) -> Tensor:
    """Count each token's columns up to the last that differs from the final column."""
    # Columns count from 1, so a token whose ids are all equal gets 0.
    columns = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    return ((ids != ids[:, -1:]) * columns).amax(dim=1)


def _read_distinct(
    ids: Tensor, embed: Callable[[Tensor], Tensor], n_rows: int, widest: int
) -> Characters | DistinctCharacters:
    """Embed each distinct character once; arguments as in ``read_characters``."""
    if is_traced() or not ids.numel():  # the set of characters depends on the text
        table = embed(torch.arange(n_rows, device=ids.device))
    else:
        distinct, ids = _number_characters(ids, n_rows, widest)
        table = embed(distinct)
    if computes_rows(table):
        return DistinctCharacters(ids, table)
    return Characters(ids, _count_distinct(ids), take_rows(table, ids), None)


def _number_characters(ids: Tensor, n_rows: int, widest: int) -> tuple[Tensor, Tensor]:
    """Return the distinct characters, and each token's characters as indices into them.

    Padding columns that no window needs are omitted.
    """
    numbers = ids.numpy()  # NumPy, because a sentence is small and PyTorch has more overhead per call
    if numbers.min() < 0 or numbers.max() >= n_rows:
        raise IndexError(f"index out of range: characters are numbers from 0 to {n_rows - 1}.")
    is_distinct = (numbers != numbers[:, -1:]).any(axis=0)
    n_distinct = int(is_distinct.nonzero()[0].max(initial=-1)) + 1
    numbers = numbers[:, : n_distinct + widest]  # one whole window of padding after the longest token
    occurs = np.zeros(n_rows, bool)
    occurs[numbers] = True
    places = occurs.cumsum() - 1
    return torch.from_numpy(occurs.nonzero()[0]), torch.from_numpy(places[numbers])


def join_features(maxima: list[Tensor], activation: Activation) -> Tensor:
    """Join the maxima of all convolutions, ``(tokens, filters)`` each, and apply the activation."""
    # The bias was added inside the maximum; the activation comes after it.
    if activation == "tanh":
        return apply_by_row(torch.tanh, torch.cat(maxima, dim=1))
    if needs_gradient(*maxima) or not computes_rows(*maxima):
        return F.relu(torch.cat(maxima, dim=1))
    features: Tensor = torch.ops.elmokit.join_features.default(maxima)
    return features


torch.library.define("elmokit::join_features", "(Tensor[] maxima) -> Tensor")


@computes("elmokit::join_features")
def _join_features(maxima: list[Tensor]) -> Tensor:
    # NumPy, because PyTorch's threads would occupy the cores that the next operator needs.
    joined = np.concatenate([part.detach().numpy() for part in maxima], axis=1)
    return torch.from_numpy(np.maximum(joined, 0, out=joined))


@has_results_like("elmokit::join_features")
def _fake_join_features(maxima: list[Tensor]) -> Tensor:
    return maxima[0].new_empty(maxima[0].shape[0], sum(part.shape[1] for part in maxima))


def convolve_each(convolutions: Iterable[nn.Module], characters: Characters | DistinctCharacters) -> list[Tensor]:
    """Return the maxima of each convolution, ``(tokens, filters)``.

    A module that replaces a ``CharConvolution``, such as an adapter, is called with what ``nn.Conv1d`` takes.
    """
    maxima = []
    for convolution in convolutions:
        if isinstance(convolution, CharConvolution):
            maxima.append(convolution(characters))
        else:
            maxima.append(_convolve_by_module(convolution, characters))
    return maxima


def _convolve_by_module(convolution: nn.Module, characters: Characters | DistinctCharacters) -> Tensor:
    ids = characters.ids
    vectors = characters.vectors if isinstance(characters, Characters) else None
    if vectors is None:
        assert characters.table is not None
        vectors = F.embedding(ids, characters.table)
    responses: Tensor = convolution(vectors.transpose(1, 2)).transpose(1, 2)  # (tokens, windows, filters)
    width = vectors.shape[1] - responses.shape[1] + 1
    n_windows = Characters(ids, _count_distinct(ids), vectors, None).n_windows(width)
    return _without_windows_beyond(responses, n_windows).max(dim=1).values


class CharConvolution(nn.Conv1d):
    """A convolution over the characters of tokens, with max pooling over positions.

    It is constructed like ``nn.Conv1d``: the size of a character's vector, the number of filters, and their width.
    """

    # LoRA (peft) creates modules of the adapted class with the arguments of `nn.Conv1d`, and adds their responses.

    def forward(self, characters: Characters | DistinctCharacters | Tensor) -> Tensor:
        """Return the maxima, ``(tokens, filters)``; for a tensor, all responses, as ``nn.Conv1d`` does."""
        if isinstance(characters, Tensor):
            return super().forward(characters)
        weight, bias = self.weight, self.bias
        if bias is None:
            bias = weight.new_zeros(len(weight))
        if isinstance(characters, DistinctCharacters):
            return convolve_rows(*characters, weight, bias)
        n_windows = characters.n_windows(weight.shape[2])
        if characters.table is not None:
            return _convolve_by_table(characters.ids, n_windows, characters.table, weight, bias)
        assert characters.vectors is not None
        vectors = characters.vectors
        device = vectors.device.type
        if device != "cpu" and torch.is_autocast_enabled(device):  # CPUs gain nothing from other dtypes
            low_dtype = torch.get_autocast_dtype(device)
            vectors, weight, bias = vectors.to(low_dtype), weight.to(low_dtype), bias.to(low_dtype)
        return convolve(vectors, n_windows, weight, bias)


# Without gradients: a table of what each character adds to each filter at each place of its window

torch.library.define("elmokit::convolve_rows", "(Tensor ids, Tensor table, Tensor weight, Tensor bias) -> Tensor")


def convolve_rows(ids: Tensor, table: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the maximum of each filter over the windows of each token, ``(tokens, filters)``, without gradients.

    Args:
        ids: ``(tokens, columns)``, rows of the table.
        table: The vectors of characters, ``(characters, dim)``.
        weight: ``(filters, dim, width)``.
        bias: ``(filters,)``.
    """
    if are_hidden(ids, table, weight, bias):
        return _convolve_in_pytorch(ids, table, weight, bias)
    maxima: Tensor = torch.ops.elmokit.convolve_rows.default(ids, table, weight, bias)
    return maxima


def _convolve_in_pytorch(ids: Tensor, table: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    characters = Characters(ids, _count_distinct(ids), F.embedding(ids, table), None)
    assert characters.vectors is not None
    responses = _responses(characters.vectors, characters.n_windows(weight.shape[2]), weight)
    return responses.max(dim=1).values + bias


@computes("elmokit::convolve_rows")
def _convolve_rows(ids: Tensor, table: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    library = c_library(table, weight, bias)
    if weight.shape[1:2] != table.shape[1:] or bias.shape != weight.shape[:1] or ids.ndim != 2:
        raise RuntimeError("The sizes of ids, characters, filters and biases do not match.")
    if ids.shape[1] < weight.shape[2]:
        raise RuntimeError(f"A filter spans {weight.shape[2]} characters, but tokens have {ids.shape[1]}.")
    if library is None or not ids.is_cpu or not len(ids):
        return _convolve_in_pytorch(ids, table, weight, bias)
    tensors = (ids.long().contiguous(), table.contiguous(), weight.contiguous(), bias.contiguous())
    maxima = native_training.convolve_rows(library, *tensors)
    if maxima is None:
        raise IndexError("index out of range: a character is not in the table.")
    return maxima


@has_results_like("elmokit::convolve_rows")
def _fake_convolve_rows(ids: Tensor, table: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return table.new_empty(ids.shape[0], weight.shape[0])


# By windows

torch.library.define(
    "elmokit::convolve", "(Tensor characters, Tensor n_windows, Tensor weight, Tensor bias) -> (Tensor, Tensor)"
)
torch.library.define(
    "elmokit::convolve_backward",
    "(Tensor upstream, Tensor characters, Tensor weight, Tensor positions) -> (Tensor, Tensor)",
)


def convolve(characters: Tensor, n_windows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the maximum of each filter over the windows of each token, ``(tokens, filters)``.

    Args:
        characters: ``(tokens, columns, dim)``.
        n_windows: ``(tokens,)``: how many windows of each token count, from the first on.
        weight: ``(filters, dim, width)``.
        bias: ``(filters,)``.
    """
    if are_hidden(characters, n_windows, weight, bias):
        return _responses(characters, n_windows, weight).max(dim=1).values + bias
    maxima: Tensor = torch.ops.elmokit.convolve.default(characters, n_windows, weight, bias)[0]
    return maxima


def _responses(characters: Tensor, n_windows: Tensor, weight: Tensor) -> Tensor:
    """Return each window's response, ``(tokens, windows, filters)``; minus infinity beyond a token's windows."""
    # One matrix product over all windows takes half the time of ``conv1d`` on a CPU.
    return _without_windows_beyond(F.linear(_windows(characters, weight), weight.flatten(1)), n_windows)


def _without_windows_beyond(responses: Tensor, n_windows: Tensor) -> Tensor:
    """Replace the responses ``(tokens, windows, filters)`` beyond a token's windows with minus infinity."""
    places = torch.arange(responses.shape[1], device=responses.device)
    return responses.masked_fill((places >= n_windows[:, None])[..., None], float("-inf"))


def _windows(characters: Tensor, weight: Tensor) -> Tensor:
    """Return the windows of all tokens, ``(tokens, windows, dim * width)``."""
    return characters.unfold(1, weight.shape[2], 1).flatten(2)


@computes("elmokit::convolve")
def _convolve(characters: Tensor, n_windows: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maximum of each filter, and the window that attains it."""
    _check_windows(characters, n_windows, weight, bias)
    library = c_library(characters, weight, bias)
    if library is not None and len(characters):
        filters = native_training.pack_filters(library, weight.contiguous(), bias.contiguous())
        return native_training.convolve(library, characters.contiguous(), n_windows.contiguous(), filters)
    with torch.autocast(characters.device.type, enabled=False):
        best = _responses(characters, n_windows, weight).max(dim=1)
    return best.values + bias, best.indices.int()


def _check_windows(characters: Tensor, n_windows: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Reject sizes that do not match, with which C would access memory out of bounds."""
    n_tokens, n_columns, dim = characters.shape
    n_filters, _, width = weight.shape
    if weight.shape[1] != dim or bias.shape != (n_filters,) or n_windows.shape != (n_tokens,):
        raise RuntimeError("The sizes of characters, filters and biases do not match.")
    if n_columns < width:
        raise RuntimeError(f"A filter spans {width} characters, but tokens have {n_columns}.")
    if not n_windows.is_cpu or not n_tokens:
        return
    if n_windows.dtype != torch.int64 or int(n_windows.min()) < 1 or int(n_windows.max()) > n_columns - width + 1:
        raise RuntimeError(f"n_windows must be numbers from 1 to {n_columns - width + 1} in int64.")


@computes("elmokit::convolve_backward")
def _convolve_backward(
    upstream: Tensor, characters: Tensor, weight: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    n_filters, dim, width = weight.shape
    library = c_library(upstream, characters, weight)
    of_characters = torch.zeros_like(characters, memory_format=torch.contiguous_format)
    if library is not None and len(characters):
        # C reads a window as contiguous memory, character after character.
        flat = weight.transpose(1, 2).flatten(1).contiguous()
        of_flat = native_training.convolve_backward(
            library, characters.contiguous(), flat, positions, upstream.contiguous(), of_characters
        )
        # A copy: a transposed tensor of width 1 counts as contiguous, but a gradient must have its weight's strides.
        of_weight = weight.new_empty(weight.shape)
        of_weight.copy_(of_flat.view(n_filters, width, dim).transpose(1, 2))
        return of_characters, of_weight
    with torch.autocast(characters.device.type, enabled=False):
        windows = _windows(characters, weight)
        n_windows = windows.shape[1]
        of_responses = windows.new_zeros(len(characters), n_windows, n_filters)
        of_responses.scatter_(1, positions.long()[:, None], upstream[:, None])
        of_weight = (of_responses.flatten(0, 1).mT @ windows.flatten(0, 1)).view_as(weight)
        of_windows = (of_responses @ weight.flatten(1)).view(-1, n_windows, dim, width)
        for place in range(width):
            of_characters[:, place : place + n_windows] += of_windows[..., place]
    return of_characters, of_weight


@has_results_like("elmokit::convolve")
def _fake_convolve(characters: Tensor, n_windows: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    pooled = characters.new_empty(characters.shape[0], weight.shape[0])
    return pooled, torch.empty_like(pooled, dtype=torch.int32)


@has_results_like("elmokit::convolve_backward")
def _fake_convolve_backward(
    upstream: Tensor, characters: Tensor, weight: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    return characters.new_empty(characters.shape), weight.new_empty(weight.shape)


def _keep_convolution(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    characters, _, weight, _ = inputs
    ctx.save_for_backward(characters, weight, output[1])


def _differentiate_convolution(ctx: Any, upstream: Tensor, of_positions: None) -> tuple[Tensor | None, ...]:
    of_characters, of_weight = torch.ops.elmokit.convolve_backward.default(upstream, *ctx.saved_tensors)
    # The bias is added to the maximum, so its gradient is the sum of the maximum's gradient over tokens.
    return of_characters, None, of_weight, upstream.sum(dim=0)


torch.library.register_autograd("elmokit::convolve", _differentiate_convolution, setup_context=_keep_convolution)
differentiable_once("elmokit::convolve_backward")


# With gradients in bfloat16: the same table

torch.library.define(
    "elmokit::table_convolve", "(Tensor char_ids, Tensor n_windows, Tensor table, Tensor bias) -> (Tensor, Tensor)"
)
torch.library.define(
    "elmokit::table_convolve_backward",
    "(Tensor upstream, Tensor char_ids, Tensor winners, SymInt[] shape) -> Tensor",
)


def _convolve_by_table(char_ids: Tensor, n_windows: Tensor, characters: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve and pool for a training step in bfloat16: the same sums in a different order, in float32.

    The table's gradient is summed over tokens; PyTorch derives the weight's gradient from it.
    """
    with torch.autocast(char_ids.device.type, enabled=False):
        wide = loaded_library().panel_width()
        panels = F.pad(weight, (0, 0, 0, 0, 0, -len(weight) % wide)).view(-1, wide, *weight.shape[1:])
        # (panels, dim, width * wide). A filter of width 1 keeps the order of its axes, because the gradient of a
        # permuted one would be strided.
        in_order = panels.flatten(2).mT if panels.shape[3] == 1 else panels.permute(0, 2, 3, 1)
        table = (characters @ in_order.flatten(2)).view(len(panels), len(characters), -1, wide)
        maxima: Tensor = torch.ops.elmokit.table_convolve.default(char_ids.long(), n_windows, table, bias)[0]
    return maxima


@computes("elmokit::table_convolve")
def _table_convolve(char_ids: Tensor, n_windows: Tensor, table: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Call ``native_training.table_convolve``: the maximum of each filter, and the window that attains it."""
    if int(char_ids.min()) < 0 or int(char_ids.max()) >= table.shape[1]:
        raise IndexError("index out of range: a character is not in the table.")
    pooled = table.new_empty(len(char_ids), len(bias))
    winners = torch.empty_like(pooled, dtype=torch.int32)
    native_training.table_convolve(
        loaded_library(), char_ids.contiguous(), n_windows, table.contiguous(), bias.contiguous(), pooled, winners
    )
    return pooled, winners


@computes("elmokit::table_convolve_backward")
def _table_convolve_backward(upstream: Tensor, char_ids: Tensor, winners: Tensor, shape: list[int]) -> Tensor:
    """Compute the table's gradient, to which only the winning windows contribute; shape: the table's."""
    table = upstream.new_zeros(shape)
    native_training.table_convolve_backward(
        loaded_library(), char_ids.contiguous(), winners, upstream.contiguous(), table
    )
    return table


@has_results_like("elmokit::table_convolve")
def _fake_table_convolve(char_ids: Tensor, n_windows: Tensor, table: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    pooled = table.new_empty(char_ids.shape[0], bias.shape[0])
    return pooled, torch.empty_like(pooled, dtype=torch.int32)


@has_results_like("elmokit::table_convolve_backward")
def _fake_table_convolve_backward(upstream: Tensor, char_ids: Tensor, winners: Tensor, shape: list[int]) -> Tensor:
    return upstream.new_empty(shape)


def _keep_table(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    char_ids, _, table, _ = inputs
    ctx.save_for_backward(char_ids, output[1])
    ctx.shape = table.shape


def _differentiate_table(ctx: Any, upstream: Tensor, of_winners: None) -> tuple[Tensor | None, ...]:
    of_table = torch.ops.elmokit.table_convolve_backward.default(upstream, *ctx.saved_tensors, ctx.shape)
    return None, None, of_table, upstream.sum(dim=0)


torch.library.register_autograd("elmokit::table_convolve", _differentiate_table, setup_context=_keep_table)
differentiable_once("elmokit::table_convolve_backward")
