"""Token vectors from a table for the tokens in it, from characters for all others."""

from __future__ import annotations

from torch import Tensor, nn

from elmokit.nn.char_cnn import CharCNN
from elmokit.nn.kernels.packed import PackedWeights


class CachedCharCNN(CharCNN):
    """A char CNN with a table of vectors computed before.

    The table is no parameter: it is not trained, and not part of ``state_dict``, which stays that of the char CNN.

    Args:
        char_cnn: for the tokens that are not in the table; its parameters are shared, not copied.
        vectors: ``(rows, output_dim)``.
    """

    def __init__(self, char_cnn: CharCNN, vectors: Tensor) -> None:
        nn.Module.__init__(self)
        self.char_embedding = char_cnn.char_embedding
        self.convolutions = char_cnn.convolutions
        self.activation = char_cnn.activation
        self.highways = char_cnn.highways
        self.projection = char_cnn.projection
        self.output_dim = char_cnn.output_dim
        self._packed = PackedWeights()
        self.register_buffer("vectors", vectors, persistent=False)
        self.vectors: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        """Look up or encode tokens.

        Args:
            ids: ``(tokens, 1 + chars)``: the row in the table from 1 up, 0 for a token that is not in it; then its
                char ids.

        Returns:
            ``(tokens, output_dim)``
        """
        rows, char_ids = ids[:, 0], ids[:, 1:]
        output = self.vectors[(rows - 1).clamp(min=0)]
        unlisted = (rows == 0).nonzero()[:, 0]
        if len(unlisted):
            output = output.index_copy(0, unlisted, super().forward(char_ids[unlisted]).to(output.dtype))
        return output
