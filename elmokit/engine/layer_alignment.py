"""Map the vectors of one model into the space of another, layer by layer: :class:`LayerAlignment`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elmokit.engine.state import Floats


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
