"""Convolutions over the characters of tokens, and the maximum of each filter over positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from elmokit.nn.kernels.backends import native_library_for
from elmokit.nn.kernels.native import NativeLibrary

MAX_GROUPS, MIN_GROUP_SIZE = 4, 64  # groups of tokens of similar length that are convolved together


def pooled_convolutions(
    char_ids: Tensor,
    char_embedding: nn.Embedding,
    convolutions: Iterable[nn.Module],
) -> Tensor:
    """Return the maximum of each filter over all positions of each token.

    A token's ids end in padding, up to 49 equal columns of 50. All windows that lie wholly inside it give the same
    response, so one of them is enough for the maximum and the others are skipped.

    Args:
        char_ids: ``(tokens, chars)``.
        char_embedding: The character table.
        convolutions: ``nn.Conv1d`` layers over the embedded characters, with a bias.

    Returns:
        ``(tokens, filters)``, the filters in the order of the convolutions.
    """
    layers = [layer for layer in convolutions if isinstance(layer, nn.Conv1d)]
    widest = max(layer.kernel_size[0] for layer in layers)
    n_distinct = _distinct_columns(char_ids)
    library = _native_library_for(char_ids, char_embedding, layers)
    if library is not None and len(char_ids) and char_ids.shape[1] >= widest:
        # Columns up to one whole window of padding for the longest token; the rest cannot change a maximum.
        characters = char_embedding(char_ids[:, : int(n_distinct.max()) + widest]).to(torch.float32).contiguous()
        return torch.cat(
            [
                _NativeConvolution.apply(  # type: ignore[no-untyped-call]
                    library, characters, _n_windows(n_distinct, characters, layer), *_flat(layer)
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


def _distinct_columns(char_ids: Tensor) -> Tensor:
    """Return the number of columns of each token up to the last that differs from the final one, ``(tokens,)``."""
    # Columns count from 1, so that a token whose ids are all equal gets 0.
    columns = torch.arange(1, char_ids.shape[1] + 1, device=char_ids.device)
    return ((char_ids != char_ids[:, -1:]) * columns).amax(dim=1)


def _native_library_for(
    char_ids: Tensor, char_embedding: nn.Embedding, layers: Sequence[nn.Conv1d]
) -> NativeLibrary | None:
    """Return the native library if every layer can run in it."""
    if torch.is_autocast_enabled(char_ids.device.type):
        return None
    for layer in layers:
        if layer.bias is None or layer.in_channels != char_embedding.embedding_dim:
            return None
        if any(weight.dtype != torch.float32 or weight.device != char_ids.device for weight in layer.parameters()):
            return None
    return native_library_for(char_embedding.weight)


def _n_windows(n_distinct: Tensor, characters: Tensor, convolution: nn.Conv1d) -> Tensor:
    """Return how many windows of each token must be considered: those before the padding and one inside it."""
    # Windows that start at columns 0 to n_distinct; the last of them is the first that lies wholly in the padding. The
    # clamp is for tokens that fill all columns.
    return (n_distinct + 1).clamp(max=characters.shape[1] - convolution.kernel_size[0] + 1)


def _flat(convolution: nn.Conv1d) -> tuple[Tensor, Tensor]:
    """Return the weight as ``(filters, width * dim)``, so that a window is one stretch of memory, and the bias."""
    assert convolution.bias is not None
    # Conv1d stores (filters, dim, width); characters lie in memory as (chars, dim).
    weight = convolution.weight
    if convolution.kernel_size[0] > 1:  # a filter of width 1 needs no transposition, whose gradient would be strided
        weight = weight.transpose(1, 2)
    return weight.flatten(1).contiguous(), convolution.bias


class _NativeConvolution(torch.autograd.Function):
    """``NativeLibrary.convolve`` and its gradient, which only the winning windows have."""

    @staticmethod
    def forward(
        ctx: Any, library: NativeLibrary, characters: Tensor, n_windows: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        filters = library.filters(weight, bias)
        pooled, positions = library.convolve(characters, n_windows, filters)
        ctx.save_for_backward(characters, weight, positions)
        ctx.library = library
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        characters, weight, positions = ctx.saved_tensors
        character_gradient = torch.zeros_like(characters)
        weight_gradient = ctx.library.convolve_backward(
            characters, weight, positions, upstream[0].contiguous(), character_gradient
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
