"""How AllenNLP's models read the characters of a word, where the task models of this package read them otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from elmokit.tasks.nn.layers import TokenCharCNN

Spelling = Literal["characters", "bytes", "marked bytes"]
# The ids of bytes are those of AllenNLP's character tokenizer: byte + 1, so that row 1 is that of byte 0, which no text
# contains. Rows 259 and 260 begin and end a word, and there are 262 rows. A byte is written as the character with its
# number.
BYTES = [chr(number) for number in range(1, 261)]
BEGIN_MARK, END_MARK = chr(258), chr(259)


def spell(token: str, spelling: Spelling) -> str:
    """Return the characters of a token: its own, or one for each byte, with marks around them or not."""
    if spelling == "characters":
        return token
    # Latin-1 writes each byte as the character with its number.
    spelled = token.encode("utf-8", "surrogatepass").decode("latin-1")
    return spelled if spelling == "bytes" else f"{BEGIN_MARK}{spelled}{END_MARK}"


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
