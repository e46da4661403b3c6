"""LSTM layers with a highway gate, read in alternating directions (Zhang et al. 2016; He et al. 2017).

One step from input ``x`` and state ``(h, c)``, every matrix its own::

    i, f, o, r = sigmoid(W x + U h + b)      g = tanh(W x + U h + b)
    c' = i * g + f * c
    h' = r * (o * tanh(c')) + (1 - r) * (W_k x)

Blocks stand in AllenNLP's order i, f, g, o, r (and then k in the input's matrix). This is the plain path; the fast one
is in ``nn.highway_kernel``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.tasks.nn.highway_kernel import read_highway

N_STATE_BLOCKS = 5
N_INPUT_BLOCKS = 6


class HighwayLSTM(nn.Module):
    """One layer in one direction.

    Args:
        input_dim: size of the inputs.
        hidden_dim: size of the state and the outputs.
        dropout: on the state that is fed back, one mask for a whole sequence; the output is not dropped
            (as in AllenNLP).
        input_bias: whether the input's matrix has a bias of its own, beside the state's.
        reverse: read from the last token to the first.
    """

    def __init__(self, input_dim: int, hidden_dim: int, dropout: float, input_bias: bool, reverse: bool) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.dropout = dropout
        self.reverse = reverse
        self.input_weight = nn.Parameter(torch.empty(N_INPUT_BLOCKS * hidden_dim, input_dim))
        self.input_bias = nn.Parameter(torch.empty(N_INPUT_BLOCKS * hidden_dim)) if input_bias else None
        self.state_weight = nn.Parameter(torch.empty(N_STATE_BLOCKS * hidden_dim, hidden_dim))
        self.state_bias = nn.Parameter(torch.empty(N_STATE_BLOCKS * hidden_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every block orthogonal; biases 0, the forget gate's 1."""
        with torch.no_grad():
            for weight in (self.input_weight, self.state_weight):
                for block in torch.split(weight, self.hidden_dim):
                    nn.init.orthogonal_(block)
        if self.input_bias is not None:
            nn.init.zeros_(self.input_bias)
        nn.init.zeros_(self.state_bias)
        nn.init.ones_(self.state_bias[self.hidden_dim : 2 * self.hidden_dim])

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Read a batch from a zero state.

        Args:
            inputs: ``(batch, time, input_dim)``.
            mask: ``(batch, time)`` bool, True on a real token; padding stands on the right.

        Returns:
            ``(batch, time, hidden_dim)``, zero on padding.
        """
        drop = None
        if self.training and self.dropout:
            drop = F.dropout(inputs.new_ones(len(inputs), self.hidden_dim), self.dropout)
        return read_highway(
            F.linear(inputs, self.input_weight, self.input_bias),
            self.state_weight,
            self.state_bias,
            mask,
            drop,
            self.reverse,
        )


def read_highway_plainly(
    from_input: Tensor, state_weight: Tensor, state_bias: Tensor, mask: Tensor, drop: Tensor | None, reverse: bool
) -> Tensor:
    """The formulas step by step; what the fast path is tested against. Arguments as those of ``read_highway``."""
    n_rows, n_steps, _ = from_input.shape
    hidden = cell = from_input.new_zeros(n_rows, state_weight.shape[1])
    outputs: list[Tensor] = [hidden] * n_steps
    for step in reversed(range(n_steps)) if reverse else range(n_steps):
        gates, straight = torch.split(from_input[:, step], [len(state_weight), state_weight.shape[1]], dim=1)
        fed_back = hidden if drop is None else hidden * drop
        i, f, g, o, r = (gates + F.linear(fed_back, state_weight, state_bias)).chunk(N_STATE_BLOCKS, dim=1)
        real = mask[:, step, None].to(hidden.dtype)
        cell = (torch.sigmoid(i) * torch.tanh(g) + torch.sigmoid(f) * cell) * real
        carried = torch.sigmoid(r)
        hidden = (carried * torch.sigmoid(o) * torch.tanh(cell) + (1 - carried) * straight) * real
        outputs[step] = hidden
    return torch.stack(outputs, dim=1) if outputs else from_input.new_zeros(n_rows, 0, state_weight.shape[1])


class AlternatingLSTM(nn.Module):
    """A stack of highway LSTM layers: layer 0 reads forward, layer 1 backward, and so on.

    Not a bidirectional LSTM: each layer reads the outputs of the one below, and ``hidden_dim`` numbers come out.

    Args:
        input_dim: size of the inputs.
        hidden_dim: size of every layer.
        n_layers: how many.
        dropout: on the state that is fed back, in each layer.
        input_bias: whether the inputs' matrices have biases of their own.
    """

    def __init__(self, input_dim: int, hidden_dim: int, n_layers: int, dropout: float, input_bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            HighwayLSTM(hidden_dim if layer else input_dim, hidden_dim, dropout, input_bias, reverse=layer % 2 == 1)
            for layer in range(n_layers)
        )

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Read a batch through all layers; shapes as in ``HighwayLSTM.forward``."""
        for layer in self.layers:
            inputs = layer(inputs, mask)
        return inputs
