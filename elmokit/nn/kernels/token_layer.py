"""Compute token vectors from char ids without gradients: the whole char CNN in one C call, on packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from elmokit.nn.kernels.native import NativeLibrary, PackedMatrix, Precision

# Numbers of the tables of all characters, above which those of the characters of each batch are computed: 128 MiB.
# English models have 3.2 million; a model of Chinese characters would need a hundred times as many.
MAX_TABLE = 2**25


class TokenLayerWeights(NamedTuple):
    """The weights of a char CNN."""

    char_embedding: Tensor  # (rows, char_dim)
    convolutions: Sequence[tuple[Tensor, Tensor | None]]  # (filters, char_dim, width), (filters,)
    uses_tanh: bool  # else relu
    # (2 * features, features), (2 * features,): the transform, then the gate of the transformed branch
    highways: Sequence[tuple[Tensor, Tensor]]
    projection: tuple[Tensor, Tensor] | None  # (output_dim, features), (output_dim,)

    @property
    def is_consistent(self) -> bool:
        """Whether the sizes fit together. C functions cannot check that."""
        n_features = sum(len(weight) for weight, _ in self.convolutions)
        matrices = [*self.highways, *([] if self.projection is None else [self.projection])]
        return (
            all(weight.shape[1] == self.char_embedding.shape[1] for weight, _ in self.convolutions)
            and all(bias is not None and bias.shape == weight.shape[:1] for weight, bias in self.convolutions)
            and all(weight.shape[1] == n_features and bias.shape == weight.shape[:1] for weight, bias in matrices)
            and all(len(weight) == 2 * n_features for weight, _ in self.highways)
        )


class PackedTokenLayer(NamedTuple):
    """A char CNN, packed for ``NativeLibrary.run_token_layer``."""

    char_embedding: Tensor
    sizes: Tensor  # (2, convolutions) int64: widths, numbers of filters
    filters: PackedMatrix  # outputs: for each convolution (width, filters padded to whole panels)
    tables: Tensor | None  # see `filter_tables`; None if they would be too large
    filter_bias: Tensor
    uses_tanh: bool
    highways: PackedMatrix | None  # those of all highways, one after the other
    n_highways: int
    projection: PackedMatrix | None

    def accepts(self, char_ids: Tensor) -> bool:
        """Return whether ids ``(tokens, chars)`` fill the widest window and are rows of the character table."""
        lowest, highest = char_ids.aminmax()
        widest = int(self.sizes[0].max())
        return char_ids.shape[1] >= widest and int(lowest) >= 0 and int(highest) < len(self.char_embedding)


def token_layer_precision(library: NativeLibrary, lowest: Precision) -> Precision:
    """Return the precision that computes token vectors fastest, of those from float32 to a lowest one.

    A token layer usually computes the distinct tokens of a batch. From some 16 tokens on, weights that are widened to
    float32 as they are loaded are no faster than float32. The number of tokens must not decide, because a token gets
    the same bits in any batch.
    """
    return "float32" if library.widens(lowest) else lowest


@torch.no_grad()
def pack_token_layer(
    library: NativeLibrary, precision: Precision, weights: TokenLayerWeights
) -> PackedTokenLayer | None:
    """Pack the weights of a char CNN for the C functions; return None if their sizes do not fit together."""
    if not weights.is_consistent:
        return None
    sizes = torch.tensor([[weight.shape[2], len(weight)] for weight, _ in weights.convolutions]).t().contiguous()
    by_place = [pad_rows(weight, library.wide).permute(2, 0, 1).flatten(0, 1) for weight, _ in weights.convolutions]
    filters = pack_matrix(library, "float32", torch.cat(by_place), None)
    highways = [pack_matrix(library, precision, *highway) for highway in weights.highways]
    return PackedTokenLayer(
        char_embedding=weights.char_embedding.detach(),
        sizes=sizes,
        filters=filters,
        tables=(
            filter_tables(library, filters, sizes, weights.char_embedding)
            if len(weights.char_embedding) * filters.n_outputs <= MAX_TABLE
            else None
        ),
        filter_bias=torch.cat([pad_rows(bias, library.wide) for _, bias in weights.convolutions if bias is not None]),
        uses_tanh=weights.uses_tanh,
        highways=(
            PackedMatrix(
                precision,
                torch.cat([highway.panels for highway in highways]),
                torch.cat([highway.bias for highway in highways]),
                highways[0].n_outputs,
            )
            if highways
            else None
        ),
        n_highways=len(highways),
        projection=None if weights.projection is None else pack_matrix(library, precision, *weights.projection),
    )


def pack_matrix(library: NativeLibrary, precision: Precision, weight: Tensor, bias: Tensor | None) -> PackedMatrix:
    """Pack a matrix ``(outputs, inputs)`` and its bias, None for zeros."""
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return PackedMatrix(precision, library.pack(weight, precision), pad_rows(bias, library.wide), len(weight))


def pad_rows(tensor: Tensor, multiple: int) -> Tensor:
    """Append zeros along the first dimension up to a multiple of a number."""
    return torch.cat([tensor, tensor.new_zeros(-len(tensor) % multiple, *tensor.shape[1:])])


def filter_tables(library: NativeLibrary, filters: PackedMatrix, sizes: Tensor, characters: Tensor) -> Tensor:
    """Return what each character adds to the response of each filter, at each place within the filter's window.

    Args:
        library: The C functions.
        filters: As in ``PackedTokenLayer``.
        sizes: As in ``PackedTokenLayer``.
        characters: ``(rows, char_dim)``.

    Returns:
        A flat tensor: for each convolution ``(panels, rows, width, wide)``.
    """
    added = library.product(characters, filters.panels, filters.bias, filters.n_outputs)  # (rows, outputs of `filters`)
    tables, first = [], 0
    for width, n_filters in sizes.t().tolist():
        n_outputs = width * -(-n_filters // library.wide) * library.wide
        part = added[:, first : first + n_outputs].view(len(added), width, -1, library.wide)
        tables.append(part.permute(2, 0, 1, 3).flatten())
        first += n_outputs
    return torch.cat(tables, out=library.empty(torch.float32, sum(map(len, tables))))


def run_token_layer(library: NativeLibrary, layer: PackedTokenLayer, char_ids: Tensor) -> Tensor:
    """Compute token vectors.

    Args:
        library: The one that packed the layer.
        layer: From ``pack_token_layer``.
        char_ids: ``(tokens, chars)`` int64, rows of the character table; at least as many as the widest filter spans.

    Returns:
        ``(tokens, output_dim)``
    """
    tables = layer.tables
    n_rows = len(layer.char_embedding)
    widths, n_filters = layer.sizes
    char_ids = char_ids.contiguous()
    if tables is None:
        distinct, char_ids = torch.unique(char_ids, return_inverse=True)
        n_rows = len(distinct)
        tables = filter_tables(library, layer.filters, layer.sizes, layer.char_embedding[distinct])
    return library.run_token_layer(
        char_ids,
        n_rows,
        widths,
        n_filters,
        tables,
        layer.filter_bias,
        layer.uses_tanh,
        layer.n_highways,
        layer.highways,
        layer.projection,
    )
