"""Character features of a task model: convolutions or a recurrent layer over the characters of each word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence


class CharTable(nn.Embedding):
    """The vectors of characters."""

    def __init__(self, n_chars: int, char_dim: int) -> None:
        super().__init__(n_chars, char_dim, padding_idx=0)
        nn.init.xavier_uniform_(self.weight)
        with torch.no_grad():
            self.weight[0] = 0.0


class TokenCharCNN(nn.Module):
    """Convolutions over characters, followed by the maximum over the word (Kim 2014; Ma and Hovy 2016).

    By default the maximum includes only windows inside the word, and a single one for a word that is shorter than the
    filter, so that the features of a word do not depend on the longest word of its batch. The other two ways are those
    of AllenNLP, for models that were trained with it.

    Args:
        n_chars: Rows of the character table, including row 0 for padding.
        char_dim: Size of a character's vector.
        filters: ``(width, count)`` of each convolution.
        activation: Activation function of the features.
        dropout: Dropout on the character vectors.
        windows: Where the maximum is taken: "word", as above; "complete", which gives 0 to a word that is shorter than
            the filter; or "batch", all windows up to the longest word of the batch, those of padding alone included.
        min_chars: Pad words to at least this many characters; it matters for "batch" only.
    """

    def __init__(
        self,
        n_chars: int,
        char_dim: int,
        filters: Sequence[tuple[int, int]],
        activation: Literal["relu", "tanh", "none"] = "relu",
        dropout: float = 0.0,
        windows: Literal["word", "complete", "batch"] = "word",
        min_chars: int | None = None,
    ) -> None:
        super().__init__()
        self.embedding = CharTable(n_chars, char_dim)
        self.convolutions = nn.ModuleList(nn.Conv1d(char_dim, count, width) for width, count in filters)
        self.widths = [width for width, _ in filters]
        self.activation = activation
        self.windows = windows
        self.least_chars = max([*self.widths, min_chars or 0])  # every filter needs one window
        self.dropout = nn.Dropout(dropout)
        self.output_dim = sum(count for _, count in filters)

    def forward(self, char_ids: Tensor) -> Tensor:
        """Compute the features of words. Shapes: char_ids (words, chars); the result is (words, output_dim)."""
        lengths = (char_ids > 0).sum(dim=1, keepdim=True)
        n_missing = max(self.least_chars - char_ids.shape[1], 0)
        embedded = self.dropout(self.embedding(F.pad(char_ids, (0, n_missing))))  # (words, chars, char_dim)
        features = []
        for convolution, width in zip(self.convolutions, self.widths, strict=True):
            responses = convolution(embedded.transpose(1, 2))  # (words, count, windows)
            start = torch.arange(responses.shape[-1], device=char_ids.device)
            inside = (start == 0) | (start + width <= lengths)  # (words, windows)
            if self.windows != "batch":
                responses = responses.masked_fill(~inside[:, None, :], torch.finfo(responses.dtype).min)
            highest = self._activate(responses.amax(dim=-1))
            # After the activation, which need not map 0 to 0.
            features.append(highest * (lengths >= width) if self.windows == "complete" else highest)
        return torch.cat(features, dim=1)

    def _activate(self, features: Tensor) -> Tensor:
        if self.activation == "none":
            return features
        return F.relu(features) if self.activation == "relu" else torch.tanh(features)


class TokenCharRNN(nn.Module):
    """An LSTM or GRU over characters, whose last state is the features of a word (Lample et al. 2016).

    Args:
        n_chars: Rows of the character table, including row 0 for padding.
        char_dim: Size of a character's vector.
        kind: The kind of layer.
        hidden: Units of each layer and direction.
        n_layers: Number of layers.
        bidirectional: Read backward, too. The features are the last states of both directions of the last layer.
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
        super().__init__()
        self.embedding = CharTable(n_chars, char_dim)
        layer = nn.LSTM if kind == "lstm" else nn.GRU
        self.rnn = layer(char_dim, hidden, n_layers, batch_first=True, bidirectional=bidirectional)
        self.dropout = nn.Dropout(dropout)
        self.output_dim = hidden * (2 if bidirectional else 1)

    def forward(self, char_ids: Tensor) -> Tensor:
        """Compute the features of words; shapes as in ``TokenCharCNN.forward``. Those of an empty word are zero."""
        lengths = (char_ids > 0).sum(dim=1)
        embedded = self.dropout(self.embedding(char_ids))
        # PyTorch rejects empty words, so they get length 1 and are masked below.
        packed = pack_padded_sequence(embedded, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        last = self.rnn(packed)[1]
        states = last[0] if isinstance(last, tuple) else last  # an LSTM also returns its cells
        n_directions = 2 if self.rnn.bidirectional else 1
        features = torch.cat(list(states[-n_directions:]), dim=-1)  # (words, output_dim)
        return features * (lengths > 0)[:, None]
