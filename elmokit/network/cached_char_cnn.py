"""A char CNN that looks up precomputed token vectors first."""

from __future__ import annotations

from torch import Tensor, nn

from elmokit.network.backends import ParameterCache
from elmokit.network.char_cnn import CharCNN


class CachedCharCNN(CharCNN):
    """A char CNN with a table of precomputed token vectors; only tokens outside the table are encoded.

    The table is a buffer that is neither trained nor saved: ``state_dict`` stays that of the char CNN.

    Args:
        char_cnn: Encodes the tokens that are not in the table. Its parameters are shared, not copied.
        vectors: The table, ``(rows, output_dim)``.
    """

    def __init__(self, char_cnn: CharCNN, vectors: Tensor) -> None:
        nn.Module.__init__(self)
        self.char_embedding = char_cnn.char_embedding
        self.convolutions = char_cnn.convolutions
        self.activation = char_cnn.activation
        self.highways = char_cnn.highways
        self.projection = char_cnn.projection
        self.output_dim = char_cnn.output_dim
        self.precision = char_cnn.precision
        self._packed = ParameterCache()
        self.register_buffer("vectors", vectors, persistent=False)
        self.vectors: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        """Look up or encode tokens.

        Args:
            ids: ``(tokens, 1 + chars)``: the token's row in the table counted from 1, or 0 if it is not in the table,
                followed by its char ids.

        Returns:
            ``(tokens, output_dim)``
        """
        rows, char_ids = ids[:, 0], ids[:, 1:]
        output = self.vectors[(rows - 1).clamp(min=0)]
        missing = (rows == 0).nonzero()[:, 0]
        if len(missing):
            output = output.index_copy(0, missing, super().forward(char_ids[missing]).to(output.dtype))
        return output
