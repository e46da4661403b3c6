"""Convolutions over the characters of tokens, and the maximum of each filter over positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.engine.library import Library
from elmokit.network import native_training
from elmokit.network.backends import are_plain, native_library_for, tile_library_for
from elmokit.network.operators import computes, differentiable_once, has_results_like, loaded_library

MAX_GROUPS, MIN_GROUP_SIZE = 4, 64  # groups of tokens of similar length that are convolved together


def pooled_convolutions(
    char_ids: Tensor,  # (tokens, chars)
    char_embedding: nn.Embedding,
    convolutions: Iterable[nn.Module],  # `nn.Conv1d` over the embedded characters, with a bias
) -> Tensor:
    """Compute the maximum of each filter over all positions of each token, ``(tokens, filters)``.

    A token's ids end in padding, up to 49 equal columns of 50. All windows that lie wholly inside it give the same
    response, so one of them is enough for the maximum and the others are skipped.
    """
    layers = [layer for layer in convolutions if isinstance(layer, nn.Conv1d)]
    widest = max(layer.kernel_size[0] for layer in layers)
    n_distinct = _distinct_columns(char_ids)
    tiles = tile_library_for(char_embedding.weight)
    if tiles is not None and _fits_tables(char_ids, char_embedding, layers):
        return _convolve_by_table(tiles, char_ids, n_distinct, char_embedding, layers)
    library = _native_library_for(char_ids, char_embedding, layers)
    if library is not None and len(char_ids) and char_ids.shape[1] >= widest:
        # Columns up to one whole window of padding for the longest token; the rest cannot change a maximum.
        characters = char_embedding(char_ids[:, : int(n_distinct.max()) + widest]).to(torch.float32).contiguous()
        return torch.cat(
            [
                torch.ops.elmokit.convolve.default(
                    characters, _n_windows(n_distinct, characters.shape[1], layer), *_flat(layer)
                )[0]
                for layer in layers
            ],
            dim=1,
        )
    # Convolve tokens of similar length together, so that short ones do not pay for the longest.
    order = n_distinct.argsort(stable=True)
    groups = order.chunk(max(1, min(MAX_GROUPS, len(order) // MIN_GROUP_SIZE)))
    pooled = torch.cat(
        [
            _convolve_torch(char_embedding, char_ids[group], layers, int(n_distinct[group[-1:]].sum()), widest)
            for group in groups
        ]
    )
    # The argsort of a permutation is its inverse.
    return pooled[order.argsort()]


def are_plain_convolutions(layers: Iterable[nn.Module]) -> bool:
    """Check whether kernels may compute in place of convolutions: plain ones that visit every window once."""
    layers = list(layers)
    return are_plain(layers, nn.Conv1d) and all(
        (layer.stride, layer.padding, layer.dilation, layer.groups) == ((1,), (0,), (1,), 1)
        for layer in layers
        if isinstance(layer, nn.Conv1d)
    )


def pooled_by_modules(
    embedded: Tensor,  # (tokens, chars, char_dim)
    convolutions: Iterable[nn.Module],
) -> Tensor:
    """Compute the same as ``pooled_convolutions`` by calling the modules, whatever they are."""
    return torch.cat([convolution(embedded.mT).amax(dim=-1) for convolution in convolutions], dim=1)


def _distinct_columns(char_ids: Tensor) -> Tensor:
    """Return the number of columns of each token up to the last that differs from the final one, ``(tokens,)``."""
    # Columns count from 1, so that a token whose ids are all equal gets 0.
    columns = torch.arange(1, char_ids.shape[1] + 1, device=char_ids.device)
    return ((char_ids != char_ids[:, -1:]) * columns).amax(dim=1)


def _native_library_for(char_ids: Tensor, char_embedding: nn.Embedding, layers: Sequence[nn.Conv1d]) -> Library | None:
    """Return the native library if every layer can run in it."""
    if torch.is_autocast_enabled(char_ids.device.type) or not _fits_native(char_ids, char_embedding, layers):
        return None
    return native_library_for(char_embedding.weight)


def _fits_native(char_ids: Tensor, char_embedding: nn.Embedding, layers: Sequence[nn.Conv1d]) -> bool:
    """Check whether the weights of every layer are as C functions expect them."""
    return all(
        layer.bias is not None
        and layer.in_channels == char_embedding.embedding_dim
        and all(weight.dtype == torch.float32 and weight.device == char_ids.device for weight in layer.parameters())
        for layer in layers
    )


def _fits_tables(char_ids: Tensor, char_embedding: nn.Embedding, layers: Sequence[nn.Conv1d]) -> bool:
    """Check whether the C functions can convolve by table: they would read foreign memory for ids outside it."""
    return (
        torch.is_grad_enabled()
        and char_ids.dtype == torch.int64
        and len(char_ids) > 0
        and char_ids.shape[1] >= max(layer.kernel_size[0] for layer in layers)
        and 0 <= int(char_ids.min()) <= int(char_ids.max()) < char_embedding.num_embeddings
        and _fits_native(char_ids, char_embedding, layers)
    )


def _convolve_by_table(
    library: Library,
    char_ids: Tensor,
    n_distinct: Tensor,
    char_embedding: nn.Embedding,
    layers: Sequence[nn.Conv1d],
) -> Tensor:
    """Convolve and pool for a training step in bfloat16: the same sums in another order, in float32.

    There are a few hundred characters. What each of them adds to a filter at a place of its window is computed once per
    step, for all tokens. Gradients of these tables are summed over tokens, and PyTorch derives those of the weights.
    """
    with torch.autocast(char_ids.device.type, enabled=False):
        # As an embedding of all rows, so that row 0 gets no gradient.
        characters = char_embedding(torch.arange(char_embedding.num_embeddings))  # (rows, dim)
        tables, wide = [], library.panel_width()
        for layer in layers:
            n_missing = -layer.out_channels % wide
            padded = F.pad(layer.weight, (0, 0, 0, 0, 0, n_missing))
            panels = padded.view(-1, wide, *padded.shape[1:])
            # (panels, dim, width * wide); as in `_flat`, a filter of width 1 needs no other order of its axes
            in_order = panels.flatten(2).mT if panels.shape[3] == 1 else panels.permute(0, 2, 3, 1)
            flat = in_order.flatten(2)
            tables.append((characters @ flat).view(len(panels), len(characters), -1, wide))
        n_windows = [_n_windows(n_distinct, char_ids.shape[1], layer) for layer in layers]
        biases = [layer.bias for layer in layers]
        pooled: Tensor = torch.ops.elmokit.table_convolve.default(char_ids.contiguous(), n_windows, tables, biases)[0]
    return pooled


torch.library.define(
    "elmokit::table_convolve",
    "(Tensor char_ids, Tensor[] n_windows, Tensor[] tables, Tensor[] biases) -> (Tensor, Tensor)",
)
torch.library.define(
    "elmokit::table_convolve_backward",
    "(Tensor upstream, Tensor char_ids, Tensor winners, SymInt[] n_filters, SymInt[] shapes) -> Tensor[]",
)


@computes("elmokit::table_convolve")
def _table_convolve(
    char_ids: Tensor, n_windows: Sequence[Tensor], tables: Sequence[Tensor], biases: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Call ``native_training.table_convolve`` for all convolutions: the maxima, and the windows that have them."""
    sizes = [len(bias) for bias in biases]
    pooled = tables[0].new_empty(len(char_ids), sum(sizes))
    winners = torch.empty_like(pooled, dtype=torch.int32)
    columns = torch.split(pooled, sizes, 1), torch.split(winners, sizes, 1)
    for windows, table, bias, own_pooled, own_winners in zip(n_windows, tables, biases, *columns, strict=True):
        native_training.table_convolve(
            loaded_library(), char_ids, windows, table.contiguous(), bias.contiguous(), own_pooled, own_winners
        )
    return pooled, winners


@computes("elmokit::table_convolve_backward")
def _table_convolve_backward(
    upstream: Tensor, char_ids: Tensor, winners: Tensor, n_filters: Sequence[int], shapes: Sequence[int]
) -> list[Tensor]:
    """Return the gradients of the tables, which only winning windows have; shapes: the four axes of each table."""
    upstream = upstream.contiguous()
    tables = [upstream.new_zeros(shapes[start : start + 4]) for start in range(0, len(shapes), 4)]
    parts = (torch.split(tensor, list(n_filters), 1) for tensor in (winners, upstream))
    for table, own_winners, own_gradient in zip(tables, *parts, strict=True):
        native_training.table_convolve_backward(loaded_library(), char_ids, own_winners, own_gradient, table)
    return tables


@has_results_like("elmokit::table_convolve")
def _fake_table_convolve(
    char_ids: Tensor, n_windows: Sequence[Tensor], tables: Sequence[Tensor], biases: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    pooled = tables[0].new_empty(char_ids.shape[0], sum(bias.shape[0] for bias in biases))
    return pooled, torch.empty_like(pooled, dtype=torch.int32)


@has_results_like("elmokit::table_convolve_backward")
def _fake_table_convolve_backward(
    upstream: Tensor, char_ids: Tensor, winners: Tensor, n_filters: Sequence[int], shapes: Sequence[int]
) -> list[Tensor]:
    return [upstream.new_empty(shapes[start : start + 4]) for start in range(0, len(shapes), 4)]


def _keep_tables(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    char_ids, n_windows, tables, biases = inputs
    ctx.save_for_backward(char_ids, output[1])
    ctx.n_filters = [bias.shape[0] for bias in biases]
    ctx.shapes = [size for table in tables for size in table.shape]
    ctx.no_windows = [None] * len(n_windows)


def _differentiate_tables(ctx: Any, upstream: Tensor, of_winners: None) -> tuple[Any, ...]:
    of_tables = torch.ops.elmokit.table_convolve_backward.default(
        upstream, *ctx.saved_tensors, ctx.n_filters, ctx.shapes
    )
    return None, ctx.no_windows, of_tables, list(torch.split(upstream.sum(dim=0), ctx.n_filters))


torch.library.register_autograd("elmokit::table_convolve", _differentiate_tables, setup_context=_keep_tables)
differentiable_once("elmokit::table_convolve_backward")


def _n_windows(n_distinct: Tensor, n_columns: int, convolution: nn.Conv1d) -> Tensor:
    """Return how many windows of each token must be considered: those before the padding and one inside it."""
    # Windows that start at columns 0 to n_distinct; the last of them is the first that lies wholly in the padding. The
    # clamp is for tokens that fill all columns.
    return (n_distinct + 1).clamp(max=n_columns - convolution.kernel_size[0] + 1)


def _flat(convolution: nn.Conv1d) -> tuple[Tensor, Tensor]:
    """Return the weight as ``(filters, width * dim)``, so that a window is one stretch of memory, and the bias."""
    assert convolution.bias is not None
    # Conv1d stores (filters, dim, width); characters lie in memory as (chars, dim).
    weight = convolution.weight
    if convolution.kernel_size[0] > 1:  # a filter of width 1 needs no transposition, whose gradient would be strided
        weight = weight.transpose(1, 2)
    return weight.flatten(1).contiguous(), convolution.bias


torch.library.define(
    "elmokit::convolve", "(Tensor characters, Tensor n_windows, Tensor weight, Tensor bias) -> (Tensor, Tensor)"
)
torch.library.define(
    "elmokit::convolve_backward",
    "(Tensor upstream, Tensor characters, Tensor weight, Tensor positions) -> (Tensor, Tensor)",
)


@computes("elmokit::convolve")
def _convolve(characters: Tensor, n_windows: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Call ``native_training.convolve``: the maximum of each filter, and the window that has it."""
    library = loaded_library()
    return native_training.convolve(library, characters, n_windows, native_training.pack_filters(library, weight, bias))


@computes("elmokit::convolve_backward")
def _convolve_backward(
    upstream: Tensor, characters: Tensor, weight: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    of_characters = torch.zeros_like(characters)
    of_weight = native_training.convolve_backward(
        loaded_library(), characters, weight, positions, upstream.contiguous(), of_characters
    )
    return of_characters, of_weight


@has_results_like("elmokit::convolve")
def _fake_convolve(characters: Tensor, n_windows: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    pooled = characters.new_empty(characters.shape[0], weight.shape[0])
    return pooled, torch.empty_like(pooled, dtype=torch.int32)


@has_results_like("elmokit::convolve_backward")
def _fake_convolve_backward(
    upstream: Tensor, characters: Tensor, weight: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(characters), torch.empty_like(weight)


def _keep_convolution(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    characters, _, weight, _ = inputs
    ctx.save_for_backward(characters, weight, output[1])


def _differentiate_convolution(ctx: Any, upstream: Tensor, of_positions: None) -> tuple[Tensor | None, ...]:
    of_characters, of_weight = torch.ops.elmokit.convolve_backward.default(upstream, *ctx.saved_tensors)
    # The bias is added to the maximum, so its gradient is that of the maximum, summed over tokens.
    return of_characters, None, of_weight, upstream.sum(dim=0)


torch.library.register_autograd("elmokit::convolve", _differentiate_convolution, setup_context=_keep_convolution)
differentiable_once("elmokit::convolve_backward")


def _convolve_torch(
    char_embedding: nn.Embedding, char_ids: Tensor, convolutions: Iterable[nn.Conv1d], n_distinct: int, widest: int
) -> Tensor:
    """Convolve and pool in PyTorch operations, for tokens whose ids repeat from column ``n_distinct`` on."""
    embedded = char_embedding(char_ids[:, : n_distinct + widest])  # (tokens, chars, char_dim)
    return torch.cat([_convolve_and_pool(embedded, convolution, n_distinct) for convolution in convolutions], dim=1)


def _convolve_and_pool(embedded: Tensor, convolution: nn.Conv1d, n_distinct: int) -> Tensor:
    """Map ``(tokens, chars, char_dim)`` to ``(tokens, filters)``, the maximum over positions of one convolution.

    One matrix product over all windows takes half the time of ``conv1d`` on a CPU.
    """
    width = convolution.kernel_size[0]
    windows = embedded[:, : n_distinct + width].unfold(1, width, 1).flatten(2)  # (tokens, positions, char_dim * width)
    responses = F.linear(windows, convolution.weight.flatten(1), convolution.bias)
    # Both are the maximum: ``max`` has the faster backward pass, ``amax`` the faster forward pass.
    return responses.max(dim=1).values if torch.is_grad_enabled() else responses.amax(dim=1)
