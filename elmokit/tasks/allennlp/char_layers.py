"""The character features of AllenNLP's models, where those of the tasks are computed otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from elmokit.tasks.nn.layers import TokenCharCNN


class AllenNLPCharCNN(TokenCharCNN):
    """Convolutions over characters whose maximum is taken over other windows.

    With ``every_window`` (before version 1.3) these are all windows up to the longest word of the batch, those of
    padding alone included, and words are padded to at least ``min_chars``. Otherwise (since then) they are those inside
    the word, and a word that is shorter than the filter has the features 0.
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
            char_ids = F.pad(char_ids, (0, max(self.min_chars - char_ids.shape[1], 0)))
        return super().forward(char_ids)

    def highest(self, responses: Tensor, width: int, lengths: Tensor) -> Tensor:
        if self.every_window:
            return self.activate(responses.amax(dim=-1))
        features = super().highest(responses, width, lengths)
        return features * (lengths >= width)  # after the activation, which need not map 0 to 0
