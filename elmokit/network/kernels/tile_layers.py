"""A linear layer that trains with bfloat16 tiles where autocast asks for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmokit.network.kernels.backends import tile_library_for
from elmokit.network.kernels.tile_products import tile_linear


class TileLinear(nn.Linear):
    """``nn.Linear`` that trains with bfloat16 tiles, under autocast on a CPU that has them."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``(rows, in_features)`` to ``(rows, out_features)``."""
        tensors = (inputs, self.weight, self.bias)
        needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        library = tile_library_for(inputs) if needs_gradient and fits_tiles(inputs, self) else None
        return super().forward(inputs) if library is None else tile_linear(library, *tensors)


def fits_tiles(inputs: Tensor, *layers: nn.Linear) -> bool:
    """Return whether C functions can compute layers on these inputs: they would read foreign memory for other sizes."""
    return (
        inputs.ndim == 2
        and len(inputs) > 0
        and inputs.dtype == torch.float32
        and all(
            layer.bias is not None
            and layer.weight.shape[1] == inputs.shape[1]
            and layer.weight.dtype == layer.bias.dtype == torch.float32
            and layer.weight.device == inputs.device
            for layer in layers
        )
    )
