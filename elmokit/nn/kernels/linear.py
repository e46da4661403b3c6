"""A linear layer that packs its weights for inference."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmokit.nn.kernels.backends import asked, choose
from elmokit.nn.kernels.packed import PackedWeights, pack_linear
from elmokit.nn.kernels.products import Product


class PackedLinear(nn.Linear):
    """``nn.Linear``, whose product runs on packed weights where no gradient flows.

    It is float32 whatever lower precision is asked for: token vectors are exact, and cached.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self._packed: PackedWeights[Product] = PackedWeights()

    def forward(self, inputs: Tensor) -> Tensor:
        """``(rows, in_features)`` to ``(rows, out_features)``."""
        tensors = (inputs, self.weight, self.bias)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return super().forward(inputs)
        if any(tensor.dtype != torch.float32 or tensor.device != inputs.device for tensor in tensors):
            return super().forward(inputs)
        if inputs.ndim != 2 or inputs.shape[1] != self.weight.shape[1]:  # the compiled product would read on behind it
            return super().forward(inputs)
        kernels = choose(inputs.device, "plain" if asked() == "plain" else "float32")
        if kernels in ("plain", "library"):
            return super().forward(inputs)
        product = self._packed.get(kernels, tensors[1:], lambda: pack_linear(kernels, self.weight, self.bias))
        return product(inputs)
