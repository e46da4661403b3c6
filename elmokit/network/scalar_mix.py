"""A learned weighted sum of layers, for use in tasks."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor, nn

from elmokit.engine.layer_selection import LayerSelection, plain_layers
from elmokit.errors import ConfigError

MixedLayers = Literal["all", "top", "average"] | int | Sequence[int]
LAYER_NORM_EPSILON = 1e-12  # as in bilm-tf


class ScalarMix(nn.Module):
    """A learned weighted sum of layers: ``gamma * sum_k softmax(weight)_k * layer_k``.

    The task learns which layers it needs (Peters et al. 2018, equation 1). :class:`~elmokit.ElmoModule` contains a mix
    for each of its outputs; use this class for layers that you compute or read from a file yourself.

    Args:
        n_layers: Number of layers, including layer 0.
        layer_norm: Normalize each layer first, as bilm-tf does, with one mean and one variance over all real positions
            of the batch and all features. The sentences of a batch then depend on each other.
        chosen: The layers to mix; None for all. With a single layer, only gamma is trained.
        learn_weights: If False, the weights stay equal (a plain mean), and only gamma is trained.

    Raises:
        ConfigError: A chosen layer does not exist.

    Example:
        >>> mix = ScalarMix(n_layers=3)
        >>> mixed = mix(layers)  # (3, batch, time, dim) to (batch, time, dim)
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
        numbers: list[Any] = list(range(n_layers)) if chosen is None else list(chosen)  # may contain anything
        is_number = [isinstance(number, Integral) and not isinstance(number, bool) for number in numbers]
        if not numbers or not all(is_number) or not set(numbers) <= set(range(n_layers)):
            raise ConfigError(
                f"layers is {numbers!r}, but this model has layers 0 to {n_layers - 1}. Use some of them, or "
                "'all', 'top' or 'average'."
            )
        self.chosen: list[int] = numbers
        is_learned = learn_weights and len(self.chosen) > 1
        self.weight = nn.Parameter(torch.zeros(len(self.chosen)), requires_grad=is_learned)
        self.gamma = nn.Parameter(torch.ones(()))
        self.layer_norm = layer_norm

    def penalty(self) -> Tensor:
        """Compute the L2 penalty of the raw weights, without gamma. Multiply it by lambda and add it to the loss.

        It pulls the mix toward a plain mean (Peters et al. 2018, section 3.4). It is zero if no weight is trained.
        """
        return (self.weight**2).sum() if self.weight.requires_grad else self.weight.new_zeros(())

    def forward(self, layers: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix the layers of one batch.

        Args:
            layers: ``(layers, batch, time, dim)``, layer 0 first.
            mask: ``(batch, time)`` bool, True on a real token; only used by layer normalization.

        Returns:
            ``(batch, time, dim)``

        Raises:
            ValueError: The number of layers is not ``n_layers``.
        """
        if len(layers) != self.n_layers:
            raise ValueError(f"ScalarMix mixes {self.n_layers} layers, including layer 0, but got {len(layers)}.")
        if len(self.chosen) < self.n_layers:
            layers = layers[self.chosen]
        if self.layer_norm:
            layers = self._normalize(layers, mask)
        return torch.einsum("l,lbtd->btd", self.gamma * self.weight.softmax(0), layers)

    @staticmethod
    def _normalize(layers: Tensor, mask: Tensor | None) -> Tensor:
        # At least float32: in float16, sums over a batch overflow and the epsilon is zero.
        wide = layers.to(torch.promote_types(layers.dtype, torch.float32))
        real = torch.ones_like(wide[0, ..., :1]) if mask is None else mask[..., None].to(wide.dtype)
        n_values = (real.sum() * wide.shape[-1]).clamp(min=1)  # a batch may have no tokens
        mean = (wide * real).sum(dim=(1, 2, 3), keepdim=True) / n_values
        variance = (((wide - mean) * real) ** 2).sum(dim=(1, 2, 3), keepdim=True) / n_values
        return ((wide - mean) * (variance + LAYER_NORM_EPSILON).rsqrt()).to(layers.dtype)


def selected_layers(layers: Tensor, selection: LayerSelection) -> Tensor:
    """Select the requested layers from ``(layers, ...)``, for any selection except a mix."""
    computed, returned = layers[list(selection.computed)], selection.returned
    if returned == "average":
        return computed.mean(dim=0)
    assert isinstance(returned, int | tuple)
    return computed[returned if isinstance(returned, int) else list(returned)]


def make_scalar_mix(layers: MixedLayers, n_layers: int, layer_norm: bool = False) -> ScalarMix:
    """Create a mix of the given layers.

    Args:
        layers: "all", "top", "average" (equal weights), a layer's number, or several numbers.
        n_layers: Number of layers, including layer 0.
        layer_norm: As in ``ScalarMix``.

    Raises:
        ConfigError: A layer does not exist.
    """
    given = plain_layers(layers)
    if given == "average":
        return ScalarMix(n_layers, layer_norm, learn_weights=False)
    if given == "all" or given == "top":
        return ScalarMix(n_layers, layer_norm, [n_layers - 1] if given == "top" else None)
    chosen: list[Any] = given if isinstance(given, list) else [given]
    return ScalarMix(n_layers, layer_norm, chosen)
