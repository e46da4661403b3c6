"""An alignment as a PyTorch module, which moves with its model to another device."""

from __future__ import annotations

from torch import Tensor, nn

from elmokit.engine.layer_alignment import LayerAlignment
from elmokit.network.tensors import tensor_of


class AlignmentModule(nn.Module):
    """The maps of a :class:`~elmokit.engine.layer_alignment.LayerAlignment` as buffers, which no optimizer changes.

    They share the memory of its arrays, unless these are read-only.
    """

    def __init__(self, alignment: LayerAlignment) -> None:
        super().__init__()
        self.register_buffer("matrices", tensor_of(alignment.matrices))
        self.register_buffer("offsets", tensor_of(alignment.offsets))
        self.matrices: Tensor
        self.offsets: Tensor

    def numpy(self) -> LayerAlignment:
        """Return the present maps as NumPy arrays."""
        return LayerAlignment(self.matrices.float().cpu().numpy(), self.offsets.float().cpu().numpy())

    def forward(self, layers: Tensor) -> Tensor:
        """Align the layers of a batch.

        Args:
            layers: ``(layers, ..., dim)``, layer 0 first; the top layers may be missing.

        Returns:
            The same shape. Padding becomes ``offsets``.
        """
        n_layers = len(layers)
        rows = layers.flatten(1, -2) if layers.ndim > 2 else layers[:, None]
        aligned = rows @ self.matrices[:n_layers].mT + self.offsets[:n_layers, None]
        return aligned.view_as(layers)
