"""Map the vectors of one model into the space of another, layer by layer: :class:`LayerAlignment`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LayerAlignment(nn.Module):
    """A linear map for each layer, which makes the vectors of two models comparable (Schuster et al. 2019).

    Models that were trained apart use different directions for the same thing, so that cosines between their vectors
    mean nothing. An :class:`~elmokit.Elmo` whose model has an alignment returns vectors in the space of another model.

    Args:
        matrices: ``(layers, dim, dim)``. A vector ``x`` of layer k becomes ``matrices[k] @ x + offsets[k]``.
        offsets: ``(layers, dim)``; None for zeros.

    Raises:
        ValueError: The shapes are others.
    """

    def __init__(self, matrices: Tensor, offsets: Tensor | None = None) -> None:
        super().__init__()
        offsets = matrices.new_zeros(matrices.shape[:2]) if offsets is None else offsets
        if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2] or offsets.shape != matrices.shape[:2]:
            raise ValueError(
                f"Expected matrices (layers, dim, dim) and offsets (layers, dim), but got {tuple(matrices.shape)} and "
                f"{tuple(offsets.shape)}."
            )
        # Buffers move with the model to another device, and no optimizer changes them.
        self.register_buffer("matrices", matrices)
        self.register_buffer("offsets", offsets)
        self.matrices: Tensor
        self.offsets: Tensor

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

    @classmethod
    def fit(cls, source: Tensor, target: Tensor, centered: bool = False) -> LayerAlignment:
        """Find the rotation (or reflection) of each layer that brings pairs of vectors closest to each other.

        This is the orthogonal Procrustes problem. It is solved for vectors of length 1, so that every pair counts the
        same: the rotation maximizes the mean cosine of the pairs (Xing et al. 2015). A rotation keeps all distances and
        angles between the source vectors, so nothing that the source model knows is lost.

        Args:
            source: ``(layers, pairs, dim)``.
            target: ``(layers, pairs, dim)``, the vectors that ``source`` should be mapped to.
            centered: Subtract the mean of each side first, and map one mean onto the other.
        """
        source, target = source.double(), target.double()
        source_mean, target_mean = (
            anchors.mean(dim=1) if centered else torch.zeros_like(anchors[:, 0]) for anchors in (source, target)
        )
        x = nn.functional.normalize(source - source_mean[:, None], dim=2)
        y = nn.functional.normalize(target - target_mean[:, None], dim=2)
        left, _, right = torch.linalg.svd(y.mT @ x)
        matrices = left @ right
        # matrices @ (x - source_mean) + target_mean, as one map.
        offsets = target_mean - (matrices @ source_mean[..., None])[..., 0]
        return cls(matrices.float(), offsets.float())
