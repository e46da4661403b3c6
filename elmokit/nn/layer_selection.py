"""The layers of a biLM that a caller asks for: all, some, the plain mean, or a scalar mix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor, nn

from elmokit.errors import ConfigError
from elmokit.nn.scalar_mix import ScalarMix

Layers = Literal["all", "top", "average", "mix"] | int | Sequence[int]
"""The layers to return; see ``Elmo.embed``."""


@dataclass(frozen=True)
class LayerSelection:
    """The requested layers: a number, several, all (a slice), their mean, or a scalar mix of them."""

    layers: int | list[int] | slice | Literal["average"] | ScalarMix

    @property
    def needs_whole_batch(self) -> bool:
        """Whether a vector depends on all vectors of its batch: a mix that normalizes over them."""
        return isinstance(self.layers, ScalarMix) and self.layers.layer_norm

    @property
    def is_context_free(self) -> bool:
        """Whether layer 0 alone is requested."""
        return self.layers in (0, [0])

    def apply(self, layers: Tensor, mask: Tensor | None = None) -> Tensor:
        """Take the requested layers from ``(layers, batch, time, dim)``.

        Args:
            layers: All layers of a batch.
            mask: ``(batch, time)``, boundaries included. Needed for a mix that normalizes over the batch.
        """
        if isinstance(self.layers, ScalarMix):
            mixed: Tensor = self.layers(layers, None if mask is None else within_boundaries(mask))
            return mixed
        return layers.mean(dim=0) if self.layers == "average" else layers[self.layers]


def select_layers(layers: Layers, n_layers: int, mixes: nn.ModuleList, model_name: str) -> LayerSelection:
    """Check which layers are requested.

    Args:
        layers: The layers, as in ``Elmo.embed``.
        n_layers: Number of layers of the model.
        mixes: The scalar mixes; "mix" selects the first one.
        model_name: The model's name, for error messages.

    Raises:
        ConfigError: A layer does not exist.
    """
    if layers == "all":
        return LayerSelection(slice(None))
    if layers == "top":
        return LayerSelection(n_layers - 1)
    if layers == "average":
        return LayerSelection("average")
    if layers == "mix":
        if not mixes:
            raise ConfigError("layers is 'mix', but this Elmo has no scalar mix. Create it with n_mixes=1 or more.")
        mix = mixes[0]
        assert isinstance(mix, ScalarMix)
        return LayerSelection(mix)
    requested: object = layers
    is_list = isinstance(requested, Iterable) and not isinstance(requested, str)
    numbers: list[Any] = list(requested) if is_list else [requested]  # type: ignore[call-overload]
    available = f"{model_name} has layers 0 to {n_layers - 1}"
    if not numbers or any(isinstance(number, bool) or not isinstance(number, Integral) for number in numbers):
        raise ConfigError(
            f"layers is {layers!r}. Choose 'all', 'top', 'average', 'mix', a layer number or a list of numbers; "
            f"{available}."
        )
    for number in numbers:
        if number not in range(n_layers):
            raise ConfigError(f"Layer {number} does not exist: {available}.")
    return LayerSelection(numbers if is_list else int(numbers[0]))


def within_boundaries(mask: Tensor) -> Tensor:
    """Return the mask of a batch without its boundaries: True only on the tokens between ``<S>`` and ``</S>``."""
    inner = torch.zeros_like(mask)
    # Position t is a token if t > 0 and position t + 1 is real: then t is not the row's </S>.
    inner[:, 1:-1] = mask[:, 2:]
    return inner
