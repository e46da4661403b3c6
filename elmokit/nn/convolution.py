"""Convolutions over the characters of tokens, and the maximum of each filter over their positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from elmokit.nn.kernels.backends import compiled_for
from elmokit.nn.kernels.native import Filters, Library
from elmokit.nn.kernels.packed import PackedWeights

MOST_GROUPS, LEAST_IN_GROUP = 4, 64  # of tokens of like length that go through the convolutions together


def pooled_convolutions(
    char_ids: Tensor,
    char_embedding: nn.Embedding,
    convolutions: Iterable[nn.Module],
    packed: PackedWeights[list[Filters]],
) -> Tensor:
    """The maxima of all filters.

    Windows that lie wholly in columns with the same character, as the padding at a token's end, all give the same:
    one of them per filter is enough for the maximum, and the others are left out.

    Args:
        char_ids: ``(tokens, chars)``.
        convolutions: ``nn.Conv1d`` over the embedded characters, with a bias.
        packed: keeps the filters as the compiled path reads them, from call to call.

    Returns:
        ``(tokens, filters)``, the filters in the order of the convolutions.
    """
    layers = [layer for layer in convolutions if isinstance(layer, nn.Conv1d)]
    widest = max(layer.kernel_size[0] for layer in layers)
    n_busy = _busy_columns(char_ids)
    library = _library_for(char_ids, char_embedding, layers)
    if library is not None and len(char_ids) and char_ids.shape[1] >= widest:
        characters = char_embedding(char_ids[:, : int(n_busy.max()) + widest]).to(torch.float32).contiguous()
        return _compiled(library, characters, n_busy, layers, packed)
    # Tokens of about the same length together, so that short ones do not pay for the longest.
    order = n_busy.argsort(stable=True)
    groups = order.chunk(max(1, min(MOST_GROUPS, len(order) // LEAST_IN_GROUP)))
    pooled = torch.cat(
        [_in_torch(char_embedding, char_ids[group], layers, int(n_busy[group[-1:]].sum()), widest) for group in groups]
    )
    return pooled[order.argsort()]


def _busy_columns(char_ids: Tensor) -> Tensor:
    """Columns of each token up to the last that is not like the one at the end, ``(tokens,)``."""
    columns = torch.arange(1, char_ids.shape[1] + 1, device=char_ids.device)
    return ((char_ids != char_ids[:, -1:]) * columns).amax(dim=1)


def _library_for(char_ids: Tensor, char_embedding: nn.Embedding, layers: Sequence[nn.Conv1d]) -> Library | None:
    """The compiled functions, where all parts are such as they read."""
    if torch.is_autocast_enabled(char_ids.device.type):
        return None
    for layer in layers:
        if layer.bias is None or layer.in_channels != char_embedding.embedding_dim:
            return None
        if any(weight.dtype != torch.float32 or weight.device != char_ids.device for weight in layer.parameters()):
            return None
    return compiled_for(char_embedding.weight)


def _compiled(
    library: Library,
    characters: Tensor,
    n_busy: Tensor,
    layers: Sequence[nn.Conv1d],
    packed: PackedWeights[list[Filters]],
) -> Tensor:
    weights = [parameter for layer in layers for parameter in layer.parameters()]
    n_positions = [_n_positions(n_busy, characters, layer) for layer in layers]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (characters, *weights)):
        parts = [
            _Compiled.apply(library, characters, here, *_flat(layer))  # type: ignore[no-untyped-call]
            for here, layer in zip(n_positions, layers, strict=True)
        ]
    else:
        filters = packed.get("compiled", weights, lambda: [library.filters(*_flat(layer)) for layer in layers])
        parts = [
            library.convolve(characters, here, each, with_places=False)[0]
            for here, each in zip(n_positions, filters, strict=True)
        ]
    return torch.cat(parts, dim=1)


def _n_positions(n_busy: Tensor, characters: Tensor, convolution: nn.Conv1d) -> Tensor:
    """Windows of each token that need be looked at."""
    return (n_busy + 1).clamp(max=characters.shape[1] - convolution.kernel_size[0] + 1)


def _flat(convolution: nn.Conv1d) -> tuple[Tensor, Tensor]:
    """The weight as ``(filters, width * dim)``, so that a window is a stretch of the characters, and the bias."""
    assert convolution.bias is not None
    weight = convolution.weight
    if convolution.kernel_size[0] > 1:  # of width 1 it is in order, and its gradient keeps the strides that it has
        weight = weight.transpose(1, 2)
    return weight.flatten(1).contiguous(), convolution.bias


class _Compiled(torch.autograd.Function):
    """``Library.convolve`` and its gradient, which the winning windows alone have."""

    @staticmethod
    def forward(
        ctx: Any, library: Library, characters: Tensor, n_positions: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        pooled, places = library.convolve(characters, n_positions, library.filters(weight, bias), with_places=True)
        ctx.save_for_backward(characters, weight, places)
        ctx.library = library
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        characters, weight, places = ctx.saved_tensors
        to_characters = torch.zeros_like(characters)
        to_weight = ctx.library.convolve_back(characters, weight, places, upstream[0].contiguous(), to_characters)
        return None, to_characters, None, to_weight, upstream[0].sum(dim=0)


def _in_torch(
    char_embedding: nn.Embedding, char_ids: Tensor, convolutions: Iterable[nn.Conv1d], n_busy: int, widest: int
) -> Tensor:
    """The twin of the compiled path, for tokens whose ids repeat from column ``n_busy`` on."""
    embedded = char_embedding(char_ids[:, : n_busy + widest])  # (tokens, chars, char_dim)
    return torch.cat([_pooled(embedded, convolution, n_busy) for convolution in convolutions], dim=1)


def _pooled(embedded: Tensor, convolution: nn.Conv1d, n_busy: int) -> Tensor:
    """The maximum over positions of a convolution: ``(tokens, chars, char_dim)`` to ``(tokens, filters)``.

    As one matrix product over all windows, which on a CPU takes half the time of ``conv1d``.
    """
    width = convolution.kernel_size[0]
    windows = embedded[:, : n_busy + width].unfold(1, width, 1).flatten(2)  # (tokens, positions, char_dim * width)
    responses = F.linear(windows, convolution.weight.flatten(1), convolution.bias)
    # Both are the maximum; the first is quicker backward, the second forward.
    return responses.max(dim=1).values if torch.is_grad_enabled() else responses.amax(dim=1)
