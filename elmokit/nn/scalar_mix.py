"""The learned weighted sum of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from elmokit.errors import ConfigError

MixedLayers = Literal["all", "top", "average"] | int | Sequence[int]
LAYER_NORM_EPSILON = 1e-12  # bilm-tf's


class ScalarMix(nn.Module):
    """A learned weighted sum of layers: ``gamma * sum_k softmax(weight)_k * layer_k``.

    Peters et al. 2018, equation 1.

    Args:
        n_layers: how many layers it mixes, layer 0 included.
        layer_norm: normalise each layer first, by one mean and one variance over all real positions
            of the batch and all features, as bilm-tf does. Sentences of a batch then depend on each other.
        chosen: mix these layers alone; None for all of them. Of a single layer only gamma is learned.
        learn_weights: else the weights stay equal, the plain mean, and only gamma is learned.
    """

    def __init__(
        self,
        n_layers: int,
        layer_norm: bool = False,
        chosen: Sequence[int] | None = None,
        learn_weights: bool = True,
    ) -> None:
        super().__init__()
        self.n_layers = n_layers
        self.chosen = list(range(n_layers)) if chosen is None else list(chosen)
        if not self.chosen or not set(self.chosen) <= set(range(n_layers)):
            raise ValueError(f"There are layers 0 to {n_layers - 1}; chosen are {self.chosen}.")
        is_learned = learn_weights and len(self.chosen) > 1
        self.weight = nn.Parameter(torch.zeros(len(self.chosen)), requires_grad=is_learned)
        self.gamma = nn.Parameter(torch.ones(()))
        self.layer_norm = layer_norm

    def penalty(self) -> Tensor:
        """The sum of squares of the raw weights, gamma left out: times lambda it is added to a batch's loss.

        It draws the mix towards the plain mean (Peters et al. 2018, section 3.4). Zero where no weight is learned.
        """
        return (self.weight**2).sum() if self.weight.requires_grad else self.weight.new_zeros(())

    def forward(self, layers: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix the layers of one batch.

        Args:
            layers: ``(layers, batch, time, dim)``, layer 0 first.
            mask: ``(batch, time)`` bool, True on a real token; only layer normalisation looks at it.

        Returns:
            ``(batch, time, dim)``
        """
        if len(layers) != self.n_layers:
            raise ValueError(
                f"ScalarMix mixes {self.n_layers} layers and was given {len(layers)}. "
                "Build it with n_layers + 1 of the biLM it follows: layer 0 counts."
            )
        if len(self.chosen) < self.n_layers:
            layers = layers[self.chosen]
        if self.layer_norm:
            layers = self._normalised(layers, mask)
        return torch.einsum("l,lbtd->btd", self.gamma * self.weight.softmax(0), layers)

    @staticmethod
    def _normalised(layers: Tensor, mask: Tensor | None) -> Tensor:
        real = torch.ones_like(layers[0, ..., :1]) if mask is None else mask[..., None].to(layers.dtype)
        n_values = (real.sum() * layers.shape[-1]).clamp(min=1)  # a batch may hold no token
        mean = (layers * real).sum(dim=(1, 2, 3), keepdim=True) / n_values
        variance = (((layers - mean) * real) ** 2).sum(dim=(1, 2, 3), keepdim=True) / n_values
        return (layers - mean) * (variance + LAYER_NORM_EPSILON).rsqrt()


def mix_of(layers: MixedLayers, n_layers: int, layer_norm: bool = False) -> ScalarMix:
    """A fresh mix of the layers asked for, of ``n_layers`` in all.

    Raises:
        ConfigError: there is no such layer.
    """
    if layers == "average":
        return ScalarMix(n_layers, layer_norm, learn_weights=False)
    if layers == "all" or layers == "top":
        return ScalarMix(n_layers, layer_norm, [n_layers - 1] if layers == "top" else None)
    chosen = [layers] if isinstance(layers, int) else list(layers)
    if not chosen or not set(chosen) <= set(range(n_layers)):
        raise ConfigError(
            f"layers is {layers!r}: this model has layers 0 to {n_layers - 1}; give some of them, or 'all', 'top' or "
            "'average'."
        )
    return ScalarMix(n_layers, layer_norm, chosen)
