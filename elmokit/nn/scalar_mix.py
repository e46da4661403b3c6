"""The learned weighted sum of layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LAYER_NORM_EPSILON = 1e-12  # bilm-tf's


class ScalarMix(nn.Module):
    """A learned weighted sum of layers: ``gamma * sum_k softmax(weight)_k * layer_k``.

    Peters et al. 2018, equation 1.

    Args:
        n_layers: how many layers it mixes, layer 0 included.
        layer_norm: normalise each layer first, by one mean and one variance over all real positions
            of the batch and all features, as bilm-tf does. Sentences of a batch then depend on each other.
    """

    def __init__(self, n_layers: int, layer_norm: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.layer_norm = layer_norm

    def forward(self, layers: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix the layers of one batch.

        Args:
            layers: ``(layers, batch, time, dim)``, layer 0 first.
            mask: ``(batch, time)`` bool, True on a real token; only layer normalisation looks at it.

        Returns:
            ``(batch, time, dim)``
        """
        if len(layers) != len(self.weight):
            raise ValueError(
                f"ScalarMix mixes {len(self.weight)} layers and was given {len(layers)}. "
                "Build it with n_layers + 1 of the biLM it follows: layer 0 counts."
            )
        if self.layer_norm:
            layers = self._normalised(layers, mask)
        return torch.einsum("l,lbtd->btd", self.gamma * self.weight.softmax(0), layers)

    @staticmethod
    def _normalised(layers: Tensor, mask: Tensor | None) -> Tensor:
        real = torch.ones_like(layers[0, ..., :1]) if mask is None else mask[..., None].to(layers.dtype)
        n_values = real.sum() * layers.shape[-1]
        mean = (layers * real).sum(dim=(1, 2, 3), keepdim=True) / n_values
        variance = (((layers - mean) * real) ** 2).sum(dim=(1, 2, 3), keepdim=True) / n_values
        return (layers - mean) * (variance + LAYER_NORM_EPSILON).rsqrt()
