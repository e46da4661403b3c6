"""Convolutions over the characters of tokens, and the maximum of each filter over positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from elmokit.engine.library import Library
from elmokit.network import native_training
from elmokit.network.backends import are_plain, native_library_for, tile_library_for

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
                _NativeConvolution.apply(  # type: ignore[no-untyped-call]
                    library, characters, _n_windows(n_distinct, characters.shape[1], layer), *_flat(layer)
                )
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
        pooled: Tensor = _TableConvolution.apply(  # type: ignore[no-untyped-call]
            library, char_ids.contiguous(), n_windows, *tables, *biases
        )
    return pooled


class _TableConvolution(torch.autograd.Function):
    """``native_training.table_convolve`` for all convolutions, and its gradient, which only winning windows have."""

    @staticmethod
    def forward(
        ctx: Any, library: Library, char_ids: Tensor, n_windows: Sequence[Tensor], *tables_and_biases: Tensor
    ) -> Tensor:
        tables, biases = tables_and_biases[: len(n_windows)], tables_and_biases[len(n_windows) :]
        ctx.sizes = [len(bias) for bias in biases]
        pooled = tables[0].new_empty(len(char_ids), sum(ctx.sizes))
        winners = torch.empty_like(pooled, dtype=torch.int32)
        for windows, table, bias, *columns in zip(
            n_windows,
            tables,
            biases,
            torch.split(pooled, ctx.sizes, 1),
            torch.split(winners, ctx.sizes, 1),
            strict=True,
        ):
            native_training.table_convolve(library, char_ids, windows, table.contiguous(), bias.contiguous(), *columns)
        ctx.save_for_backward(char_ids, winners)
        ctx.library, ctx.shapes = library, [table.shape for table in tables]
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        char_ids, winners = ctx.saved_tensors
        gradient = upstream[0].contiguous()
        tables = [gradient.new_zeros(shape) for shape in ctx.shapes]
        parts = (torch.split(tensor, ctx.sizes, 1) for tensor in (winners, gradient))
        for table, own_winners, own_gradient in zip(tables, *parts, strict=True):
            native_training.table_convolve_backward(ctx.library, char_ids, own_winners, own_gradient, table)
        return None, None, None, *tables, *torch.split(gradient.sum(dim=0), ctx.sizes)


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


class _NativeConvolution(torch.autograd.Function):
    """``native_training.convolve`` and its gradient, which only the winning windows have."""

    @staticmethod
    def forward(
        ctx: Any, library: Library, characters: Tensor, n_windows: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        filters = native_training.pack_filters(library, weight, bias)
        pooled, positions = native_training.convolve(library, characters, n_windows, filters)
        ctx.save_for_backward(characters, weight, positions)
        ctx.library = library
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        characters, weight, positions = ctx.saved_tensors
        character_gradient = torch.zeros_like(characters)
        weight_gradient = native_training.convolve_backward(
            ctx.library, characters, weight, positions, upstream[0].contiguous(), character_gradient
        )
        # The bias is added to the maximum, so its gradient is that of the maximum, summed over tokens.
        return None, character_gradient, None, weight_gradient, upstream[0].sum(dim=0)


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
