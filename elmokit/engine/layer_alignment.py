"""Map the vectors of one model into the space of another, layer by layer: :class:`LayerAlignment`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmokit.engine.state import Floats
from elmokit.engine.unit_vectors import unit_vectors


@dataclass(frozen=True, eq=False)
class LayerAlignment:
    """A linear map for each layer, which makes the vectors of two models comparable (Schuster et al. 2019).

    Models that were trained apart use different directions for the same thing, so that cosines between their vectors
    mean nothing. An :class:`~elmokit.Elmo` whose model has an alignment returns vectors in the space of another model.

    Attributes:
        matrices: ``(layers, dim, dim)``. A vector ``x`` of layer k becomes ``matrices[k] @ x + offsets[k]``.
        offsets: ``(layers, dim)``.

    Raises:
        ValueError: The shapes are others.
    """

    matrices: Floats
    offsets: Floats

    def __post_init__(self) -> None:
        matrices, offsets = self.matrices, self.offsets
        if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2] or offsets.shape != matrices.shape[:2]:
            raise ValueError(
                f"Expected matrices (layers, dim, dim) and offsets (layers, dim), but got {matrices.shape} and "
                f"{offsets.shape}."
            )

    @classmethod
    def of_matrices(cls, matrices: Floats) -> LayerAlignment:
        """Return the alignment without offsets."""
        return cls(matrices, np.zeros(matrices.shape[:2], np.float32))

    def apply(self, layers: Floats, numbers: Sequence[int]) -> Floats:
        """Align layers of a sentence.

        Args:
            layers: ``(layers, tokens, dim)``.
            numbers: The number of each layer.

        Returns:
            The same shape.
        """
        chosen = list(numbers)
        with np.errstate(over="ignore", invalid="ignore"):  # who uses the vectors checks them
            aligned = layers @ self.matrices[chosen].swapaxes(1, 2) + self.offsets[chosen, None]
        return np.asarray(aligned, np.float32)

    @classmethod
    def fit(cls, source: NDArray[np.floating], target: NDArray[np.floating], centered: bool = False) -> LayerAlignment:
        """Find the rotation (or reflection) of each layer that brings pairs of vectors closest to each other.

        This is the orthogonal Procrustes problem. It is solved for vectors of length 1, so that every pair counts the
        same: the rotation maximizes the mean cosine of the pairs (Xing et al. 2015). A rotation keeps all distances and
        angles between the source vectors, so nothing that the source model knows is lost.

        Args:
            source: ``(layers, pairs, dim)``.
            target: ``(layers, pairs, dim)``, the vectors that ``source`` should be mapped to.
            centered: Subtract the mean of each side first, and map one mean onto the other.
        """
        wide = [np.asarray(anchors, np.float64) for anchors in (source, target)]
        means = [anchors.mean(axis=1) if centered else np.zeros_like(anchors[:, 0]) for anchors in wide]
        x, y = (unit_vectors(anchors - mean[:, None]) for anchors, mean in zip(wide, means, strict=True))
        left, _, right = np.linalg.svd(y.swapaxes(1, 2) @ x)
        matrices = left @ right
        # matrices @ (x - source_mean) + target_mean, as one map.
        offsets = means[1] - (matrices @ means[0][..., None])[..., 0]
        return cls(matrices.astype(np.float32), offsets.astype(np.float32))
