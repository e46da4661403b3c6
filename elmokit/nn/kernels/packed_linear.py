"""A linear layer that packs its weights for inference."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmokit.nn.kernels import torch_products
from elmokit.nn.kernels.backends import Backend, native_library, requested_backend, select_backend, tile_library_for
from elmokit.nn.kernels.packed_weights import PackedWeights
from elmokit.nn.kernels.tile_products import tile_linear
from elmokit.nn.kernels.torch_products import Product


class PackedLinear(nn.Linear):
    """``nn.Linear`` whose product uses packed weights when no gradient is needed.

    It computes in float32 whatever the model's precision. In a lower one, the C functions compute the whole char CNN
    (``token_layer.py``).
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self._packed: PackedWeights[Product] = PackedWeights()

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ``(rows, in_features)`` to ``(rows, out_features)``."""
        tensors = (inputs, self.weight, self.bias)
        # Packed products have no backward pass, and packing would have to be repeated after every optimizer step.
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            library = tile_library_for(inputs) if fits_tiles(inputs, self) else None
            return super().forward(inputs) if library is None else tile_linear(library, *tensors)
        if any(tensor.dtype != torch.float32 or tensor.device != inputs.device for tensor in tensors):
            return super().forward(inputs)
        if inputs.ndim != 2 or inputs.shape[1] != self.weight.shape[1]:  # C would read beyond the end of the inputs
            return super().forward(inputs)
        # Always "float32", never the model's precision: see the class.
        backend = select_backend(inputs.device, "reference" if requested_backend() == "reference" else "float32")
        if backend in ("reference", "torch"):
            return super().forward(inputs)
        product = self._packed.get(backend, tensors[1:], lambda: pack_linear(backend, self.weight, self.bias))
        return product(inputs)


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


def pack_linear(backend: Backend, weight: Tensor, bias: Tensor) -> Product:
    """Return ``inputs @ weight.T + bias`` as a function with packed weights."""
    if backend != "native":
        return torch_products.pack(backend, weight, bias)
    library = native_library()
    assert library is not None
    product = library.product
    panels = library.panels(weight.detach())
    n_outputs = len(weight)
    padded_bias = torch.nn.functional.pad(bias.detach(), (0, len(panels) * library.wide - n_outputs))
    return lambda inputs: product(inputs, panels, padded_bias, n_outputs)
