"""Weights packed once for the kernels of their choice, and again only after they change."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from elmokit.nn.kernels import compiler as compiled
from elmokit.nn.kernels import products
from elmokit.nn.kernels.native import GATES
from elmokit.nn.kernels.products import Product

T = TypeVar("T")
SOME = 16  # numbers of a parameter that are looked at each time
_Marks = tuple[int, list[float]]


class PackedWeights(Generic[T]):
    """What is made from parameters, kept until a parameter changes.

    A change is seen by PyTorch's own count of writes, by the place in memory and, since fused optimisers and writing
    through ``.data`` are not counted, by a few of the numbers; only writing other single numbers through ``.data`` is
    not seen. A copy of the module packs for itself.
    """

    def __init__(self) -> None:
        self._kept: tuple[str, list[Tensor], list[_Marks], T] | None = None

    def get(self, kernels: str, parameters: Sequence[Tensor], make: Callable[[], T]) -> T:
        """The packed form of the parameters for these kernels, made if need be."""
        kept = self._kept
        marks = [_marks(parameter) for parameter in parameters]
        # What was packed is held on to, so that its place in memory cannot have gone to something else.
        if kept is not None and kept[0] == kernels and kept[2] == marks and _same_places(kept[1], parameters):
            return kept[3]
        self._kept = None
        made = make()
        self._kept = (kernels, [parameter.detach() for parameter in parameters], marks, made)
        return made

    @property
    def value(self) -> T | None:
        """What is kept, if anything."""
        return None if self._kept is None else self._kept[3]

    def __reduce__(self) -> tuple[type[PackedWeights[T]], tuple[()]]:
        return PackedWeights, ()


def _same_places(these: Sequence[Tensor], those: Sequence[Tensor]) -> bool:
    return all(this.data_ptr() == that.data_ptr() for this, that in zip(these, those, strict=True))


def _marks(parameter: Tensor) -> _Marks:
    numbers = parameter.detach().flatten()
    some = numbers[:: max(1, len(numbers) // SOME)].tolist()
    return 0 if parameter.is_inference() else parameter._version, some


class LayerWeights(NamedTuple):
    """One LSTM layer in one direction, as ``nn.lstm.ProjectedLSTM`` holds it."""

    weight: Tensor  # (4 * hidden_dim, input_dim + projection_dim), blocks i, g, f, o
    bias: Tensor  # (4 * hidden_dim,), the forget offset included
    projection: Tensor | None  # (projection_dim, hidden_dim)
    cell_clip: float
    """Infinite for no bound, like the next."""
    projection_clip: float

    @property
    def hidden_dim(self) -> int:
        """Size of the cell."""
        return len(self.bias) // GATES


class TorchLayer(NamedTuple):
    """A layer as three packed products."""

    weights: LayerWeights
    from_input: Product  # with the bias
    from_state: Product
    project: Product | None


class CompiledLayer(NamedTuple):
    """A layer as panels for ``library.py``; hidden units padded to whole panels, the padding with zeros."""

    hidden_dim: int  # without the padding
    input_panels: Tensor
    bias: Tensor
    recurrent_panels: Tensor
    projection_panels: Tensor | None
    cell_clip: float
    projection_clip: float


def pack_layer(kernels: str, layer: LayerWeights, input_dim: int) -> TorchLayer | CompiledLayer:
    """A layer packed for the kernels."""
    if kernels == "compiled":
        return _compiled_layer(layer, input_dim)
    project = None if layer.projection is None else products.pack(kernels, layer.projection)
    from_input = products.pack(kernels, layer.weight[:, :input_dim].contiguous(), layer.bias)
    return TorchLayer(layer, from_input, products.pack(kernels, layer.weight[:, input_dim:].contiguous()), project)


def _compiled_layer(layer: LayerWeights, input_dim: int) -> CompiledLayer:
    library = compiled.library()
    assert library is not None
    hidden_dim = layer.hidden_dim
    n_blocks = math.ceil(hidden_dim / library.wide)
    missing = n_blocks * library.wide - hidden_dim

    def by_block(rows: Tensor) -> Tensor:
        """Rows of all gates to rows block by block: ``(4 * hidden_dim, n)`` to ``(blocks * 4 * wide, n)``."""
        gates = torch.nn.functional.pad(rows.reshape(GATES, hidden_dim, -1), (0, 0, 0, missing))
        return gates.view(GATES, n_blocks, library.wide, -1).transpose(0, 1).flatten(0, 2)

    projection = layer.projection
    if projection is not None:
        projection = library.panels(torch.nn.functional.pad(projection, (0, missing)))
    return CompiledLayer(
        hidden_dim,
        library.panels(by_block(layer.weight[:, :input_dim])),
        by_block(layer.bias[:, None])[:, 0].contiguous(),
        library.panels(by_block(layer.weight[:, input_dim:])),
        projection,
        layer.cell_clip,
        layer.projection_clip,
    )


def pack_linear(kernels: str, weight: Tensor, bias: Tensor) -> Product:
    """One product packed for the kernels."""
    if kernels != "compiled":
        return products.pack(kernels, weight, bias)
    library = compiled.library()
    assert library is not None
    read = library.product
    panels = library.panels(weight.detach())
    n_outputs = len(weight)
    wide_bias = torch.nn.functional.pad(bias.detach(), (0, len(panels) * library.wide - n_outputs))
    return lambda inputs: read(inputs, panels, wide_bias, n_outputs)
