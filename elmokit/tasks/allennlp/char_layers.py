"""Character features that only AllenNLP's models have: other windows of convolutions, and recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from elmokit.tasks.nn.layers import CharFeatures, TokenCharCNN


class AllenNLPCharCNN(TokenCharCNN):
    """Convolutions over characters, with the maximum taken over other windows.

    With ``every_window`` (before version 1.3), it is taken over all windows up to the longest word in the batch,
    including windows of padding alone, and words are padded to at least ``min_chars``. Otherwise (since then), it is
    taken over the windows inside the word, and the features of a word shorter than the filter are 0.
    """

    def __init__(
        self,
        n_chars: int,
        char_dim: int,
        filters: Sequence[tuple[int, int]],
        activation: Literal["relu", "tanh", "none"],
        dropout: float,
        every_window: bool,
        min_chars: int | None,
    ) -> None:
        super().__init__(n_chars, char_dim, filters, activation, dropout)
        self.every_window = every_window
        self.min_chars = min_chars or 0

    def forward(self, char_ids: Tensor) -> Tensor:
        if self.every_window:
            n_missing = max(self.min_chars - char_ids.shape[1], 0)
            char_ids = F.pad(char_ids, (0, n_missing))
        return super().forward(char_ids)

    def highest(self, responses: Tensor, width: int, lengths: Tensor) -> Tensor:
        if self.every_window:
            return self.activate(responses.amax(dim=-1))
        features = super().highest(responses, width, lengths)
        return features * (lengths >= width)  # after the activation, which need not map 0 to 0


class TokenCharRNN(CharFeatures):
    """An LSTM or GRU over characters. A word's features are its last state (Lample et al. 2016).

    Args:
        n_chars: Rows of the character table, including row 0 for padding.
        char_dim: Size of a character vector.
        kind: The kind of layer.
        hidden: Units of each layer and direction.
        n_layers: Number of layers.
        bidirectional: Also read backward. The features are then the last states of both directions of the last layer.
        dropout: Dropout on the character vectors.
    """

    def __init__(
        self,
        n_chars: int,
        char_dim: int,
        kind: Literal["lstm", "gru"],
        hidden: int,
        n_layers: int,
        bidirectional: bool,
        dropout: float = 0.0,
    ) -> None:
        n_directions = 2 if bidirectional else 1
        super().__init__(n_chars, char_dim, output_dim=n_directions * hidden)
        layer = nn.LSTM if kind == "lstm" else nn.GRU
        self.rnn = layer(char_dim, hidden, n_layers, batch_first=True, bidirectional=bidirectional)
        self.dropout = nn.Dropout(dropout)
        self.n_directions = n_directions

    def forward(self, char_ids: Tensor) -> Tensor:
        """Compute the features of words. Shapes are as in ``TokenCharCNN.forward``. An empty word's features are 0."""
        lengths = (char_ids > 0).sum(dim=1)
        embedded = self.dropout(self.embedding(char_ids))
        # PyTorch rejects empty words, so they get length 1 and are masked below.
        packed = pack_padded_sequence(embedded, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        _, last = self.rnn(packed)
        if isinstance(last, tuple):  # an LSTM also returns its cells
            last, _ = last
        of_last_layer = list(last[-self.n_directions :])
        features = torch.cat(of_last_layer, dim=-1)  # (words, output_dim)
        return features * (lengths > 0)[:, None]
