"""Layers that several task models share: dropout, attention, PyTorch's recurrent layers, character features.

Softmax, attention and pooling ignore padding. A row without real tokens gives zeros, not NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "none": nn.Identity}


class VariationalDropout(nn.Module):
    """Variational dropout: drop a feature at all steps of a sequence or at none (Gal and Ghahramani 2016)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop features of ``(batch, time, dim)`` in training, and scale the others by ``1 / (1 - p)``."""
        if not self.training or self.p == 0:
            return inputs
        kept = torch.empty_like(inputs[:, :1]).bernoulli_(1 - self.p)
        return inputs * kept / (1 - self.p)


class Maxout(nn.Module):
    """A layer in which each unit is the maximum of several linear maps (Goodfellow et al. 2013)."""

    def __init__(self, input_dim: int, output_dim: int, pool: int) -> None:
        super().__init__()
        self.linear = nn.Linear(input_dim, output_dim * pool)
        self.pool = pool

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the layer to ``(..., input_dim)``; the result is ``(..., output_dim)``."""
        candidates: Tensor = self.linear(inputs).unflatten(-1, (-1, self.pool))  # (..., output_dim, pool)
        return candidates.amax(dim=-1)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute the softmax over the last dimension where ``mask`` is True; other positions are 0."""
    mask = mask.expand_as(scores)
    shifted = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return shifted.softmax(dim=-1).masked_fill(~mask, 0.0)


def attend(scores: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Return the values' sums, weighted by the softmax of the scores.

    Shapes: scores (batch, queries, keys), values (batch, keys, dim), mask (batch, keys); the result is (batch, queries,
    dim).
    """
    return masked_softmax(scores, mask[:, None, :]) @ values


def masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """Return the maximum over real tokens, ``(batch, dim)``.

    Args:
        values: ``(batch, time, dim)``.
        mask: ``(batch, time)`` bool, True on a real token.
    """
    lowest = torch.finfo(values.dtype).min
    highest = values.masked_fill(~mask[..., None], lowest).amax(dim=1)
    return highest.masked_fill(~mask.any(dim=1, keepdim=True), 0.0)


def masked_min(values: Tensor, mask: Tensor) -> Tensor:
    """Return the minimum over real tokens, with shapes as in ``masked_max``."""
    return -masked_max(-values, mask)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over real tokens, with shapes as in ``masked_max``."""
    n_real = mask.sum(dim=1, keepdim=True).clamp(min=1)
    return (values * mask[..., None]).sum(dim=1) / n_real


def feed_forward(
    dim: int, sizes: Sequence[int], activation: Literal["relu", "tanh", "none"], dropout: float
) -> nn.Sequential:
    """Return linear layers of the given sizes, each followed by its activation and dropout."""
    layers = nn.Sequential()
    for size in sizes:
        layers.extend([nn.Linear(dim, size), ACTIVATIONS[activation](), nn.Dropout(dropout)])
        dim = size
    return layers


def run_packed(rnn: nn.LSTM | nn.GRU, inputs: Tensor, mask: Tensor) -> Tensor:
    """Run a recurrent layer over a batch padded on the right.

    The backward direction starts at the last token of each sequence, not at the padding.

    Args:
        rnn: A layer with ``batch_first=True`` and any number of layers and directions.
        inputs: ``(batch, time, dim)``.
        mask: ``(batch, time)`` bool, True on a real token, without gaps. A row may be empty.

    Returns:
        ``(batch, time, hidden * directions)``, zero where the mask is False.
    """
    # PyTorch rejects empty rows, so they get length 1 and are masked below.
    lengths = mask.sum(dim=1).clamp(min=1).cpu()
    packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
    packed_outputs, _ = rnn(packed)
    outputs, _ = pad_packed_sequence(packed_outputs, batch_first=True, total_length=inputs.shape[1])
    return outputs * mask[..., None]


def init_glorot_orthogonal(module: nn.Module) -> None:
    """Initialize every ``nn.Linear`` and ``nn.LSTM`` in a module.

    Weights are Glorot uniform, recurrent matrices orthogonal, and biases 0, but 1 for the forget gate. PyTorch's LSTM
    adds two biases; only the first one gets the 1.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.LSTM):
            for name, parameter in part.named_parameters():
                _init_lstm_parameter(name, parameter, part.hidden_size)


def _init_lstm_parameter(name: str, parameter: nn.Parameter, hidden_size: int) -> None:
    if name.startswith("weight_ih"):
        nn.init.xavier_uniform_(parameter)
        return
    if name.startswith("weight_hh"):
        nn.init.orthogonal_(parameter)
        return
    nn.init.zeros_(parameter)
    if name.startswith("bias_ih"):
        forget_gate = slice(hidden_size, 2 * hidden_size)  # the gates are in the order i, f, g, o
        with torch.no_grad():
            parameter[forget_gate] = 1.0


class CharTable(nn.Embedding):
    """The vectors of characters."""

    def __init__(self, n_chars: int, char_dim: int) -> None:
        super().__init__(n_chars, char_dim, padding_idx=0)
        nn.init.xavier_uniform_(self.weight)
        with torch.no_grad():
            self.weight[0] = 0.0


class CharFeatures(nn.Module):
    """Base class of layers that compute a word's features from its characters.

    Args:
        n_chars: Rows of the character table, including row 0 for padding.
        char_dim: Size of a character vector.
        output_dim: Number of features.
    """

    def __init__(self, n_chars: int, char_dim: int, output_dim: int) -> None:
        super().__init__()
        self.embedding = CharTable(n_chars, char_dim)
        self.output_dim = output_dim


class TokenCharCNN(CharFeatures):
    """Convolutions over characters, followed by the maximum over the word (Kim 2014; Ma and Hovy 2016).

    The maximum is taken over the windows inside the word, and over a single one if the word is shorter than the filter,
    so a word's features do not depend on the longest word in the batch.

    Args:
        n_chars: Rows of the character table, including row 0 for padding.
        char_dim: Size of a character vector.
        filters: ``(width, count)`` of each convolution.
        activation: Activation after the convolutions.
        dropout: Dropout on the character vectors.
    """

    def __init__(
        self,
        n_chars: int,
        char_dim: int,
        filters: Sequence[tuple[int, int]],
        activation: Literal["relu", "tanh", "none"] = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(n_chars, char_dim, output_dim=sum(count for _, count in filters))
        self.convolutions = nn.ModuleList(nn.Conv1d(char_dim, count, width) for width, count in filters)
        self.widths = [width for width, _ in filters]
        self.activation = activation
        self.dropout = nn.Dropout(dropout)

    def forward(self, char_ids: Tensor) -> Tensor:
        """Compute the features of words. Shapes: char_ids (words, chars); the result is (words, output_dim)."""
        lengths = (char_ids > 0).sum(dim=1, keepdim=True)
        n_missing = max(max(self.widths) - char_ids.shape[1], 0)  # every filter needs one window
        padded = F.pad(char_ids, (0, n_missing))
        embedded = self.dropout(self.embedding(padded)).transpose(1, 2)
        features = []
        for convolution, width in zip(self.convolutions, self.widths, strict=True):
            features.append(self.highest(convolution(embedded), width, lengths))
        return torch.cat(features, dim=1)

    def highest(self, responses: Tensor, width: int, lengths: Tensor) -> Tensor:
        """Return the features of words from the responses of the filters of one width, ``(words, count, windows)``."""
        start = torch.arange(responses.shape[-1], device=responses.device)
        inside = (start == 0) | (start + width <= lengths)  # (words, windows)
        lowest = torch.finfo(responses.dtype).min
        highest = responses.masked_fill(~inside[:, None, :], lowest).amax(dim=-1)
        return self.activate(highest)

    def activate(self, features: Tensor) -> Tensor:
        """Apply the activation function."""
        if self.activation == "relu":
            return F.relu(features)
        if self.activation == "tanh":
            return torch.tanh(features)
        return features
