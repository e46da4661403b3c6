"""The LSTM of end-to-end coreference: input and forget gate coupled, learned first state (Lee et al. 2017, 2018).

One step from input ``x`` and state ``(h, c)``, in each direction with weights of its own::

    i, o = sigmoid(W x + U (d * h) + b)      j = tanh(W x + U (d * h) + b)
    c' = (1 - i) * c + i * j
    h' = tanh(c') * o

where ``d`` is one dropout mask for the whole sequence. Blocks stand in the order i, j, o. This is the plain path and
the stack of layers; the fast path of a layer is in ``nn.coupled_kernel``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.tasks.nn.coupled_kernel import read_coupled

N_BLOCKS = 3
N_DIRECTIONS = 2  # forward, backward


class CoupledLSTM(nn.Module):
    """One layer in both directions.

    Args:
        input_dim: size of the inputs.
        hidden_dim: size of the state, in each direction.
        dropout: on the state that is fed back; the output is not dropped.
    """

    def __init__(self, input_dim: int, hidden_dim: int, dropout: float) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.dropout = dropout
        gates = N_BLOCKS * hidden_dim
        self.input_weight = nn.Parameter(torch.empty(N_DIRECTIONS, gates, input_dim))
        self.state_weight = nn.Parameter(torch.empty(N_DIRECTIONS, gates, hidden_dim))
        self.bias = nn.Parameter(torch.zeros(N_DIRECTIONS, gates))
        self.first_hidden = nn.Parameter(torch.empty(N_DIRECTIONS, hidden_dim))
        self.first_cell = nn.Parameter(torch.empty(N_DIRECTIONS, hidden_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw each gate's matrix over input and state orthonormal, the first states Glorot uniform; biases 0."""
        input_dim = self.input_weight.shape[-1]
        block = torch.empty(self.hidden_dim, input_dim + self.hidden_dim)
        with torch.no_grad():
            for direction in range(N_DIRECTIONS):
                for start in range(0, N_BLOCKS * self.hidden_dim, self.hidden_dim):
                    nn.init.orthogonal_(block)
                    self.input_weight[direction, start : start + self.hidden_dim] = block[:, :input_dim]
                    self.state_weight[direction, start : start + self.hidden_dim] = block[:, input_dim:]
                for first in (self.first_hidden, self.first_cell):
                    nn.init.xavier_uniform_(first[direction : direction + 1])
        nn.init.zeros_(self.bias)

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Read a batch of sentences.

        Args:
            inputs: ``(batch, time, input_dim)``.
            mask: ``(batch, time)`` bool, True on a real token; padding stands on the right.

        Returns:
            ``(batch, time, 2 * hidden_dim)``, forward and backward, zero on padding.
        """
        n_rows, n_steps, _ = inputs.shape
        turned = turned_places(mask)
        both = torch.stack([inputs, _reordered(inputs, turned)])  # each row from its first token, and from its last
        from_input = torch.baddbmm(self.bias[:, None], both.flatten(1, 2), self.input_weight.transpose(1, 2))
        shape = (N_DIRECTIONS, n_rows, n_steps, len(self.bias[0]))
        from_input = from_input.view(shape).permute(2, 0, 1, 3)  # (time, 2, batch, gates)
        first_hidden, first_cell = (
            first[:, None].expand(-1, n_rows, -1) for first in (self.first_hidden, self.first_cell)
        )
        drop = None
        if self.training and self.dropout:
            drop = F.dropout(inputs.new_ones(N_DIRECTIONS, n_rows, self.hidden_dim), self.dropout)
        outputs = read_coupled(from_input, self.state_weight, first_hidden, first_cell, drop)
        forward, backward = outputs.permute(1, 2, 0, 3).unbind(0)
        return torch.cat([forward, _reordered(backward, turned)], dim=-1) * mask[..., None]


def read_coupled_plainly(
    from_input: Tensor, state_weight: Tensor, hidden: Tensor, cell: Tensor, drop: Tensor | None
) -> Tensor:
    """The formulas step by step; what the fast path is tested against. Arguments as those of ``read_coupled``."""
    outputs = []
    for step in from_input:
        fed_back = hidden if drop is None else hidden * drop
        i, j, o = (step + torch.bmm(fed_back, state_weight.transpose(1, 2))).chunk(N_BLOCKS, dim=-1)
        i = torch.sigmoid(i)
        cell = (1 - i) * cell + i * torch.tanh(j)
        hidden = torch.tanh(cell) * torch.sigmoid(o)
        outputs.append(hidden)
    return torch.stack(outputs) if outputs else from_input[..., : hidden.shape[-1]]


def turned_places(mask: Tensor) -> Tensor:
    """``(batch, time)``: from where each step reads if a row is read from its last token; padding stays in place."""
    steps = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    return torch.where(mask, mask.sum(dim=1, keepdim=True) - 1 - steps, steps)


def _reordered(values: Tensor, places: Tensor) -> Tensor:
    """Steps of ``(batch, time, dim)`` in another order."""
    return values.gather(1, places[..., None].expand(-1, -1, values.shape[-1]))


class CoupledLSTMStack(nn.Module):
    """Layers with dropout on each one's output; from the second on, a gate mixes a layer's output with its input.

    Lee et al. 2017 have one layer, Lee et al. 2018 three.

    Args:
        input_dim: size of the inputs.
        hidden_dim: size of each direction of each layer.
        n_layers: how many.
        dropout: on the fed-back states and on the outputs.
    """

    def __init__(self, input_dim: int, hidden_dim: int, n_layers: int, dropout: float) -> None:
        super().__init__()
        size = N_DIRECTIONS * hidden_dim
        self.layers = nn.ModuleList(
            CoupledLSTM(size if layer else input_dim, hidden_dim, dropout) for layer in range(n_layers)
        )
        self.gates = nn.ModuleList(nn.Linear(size, size) for _ in range(n_layers - 1))
        for gate in self.gates:
            assert isinstance(gate, nn.Linear)
            nn.init.xavier_uniform_(gate.weight)
            nn.init.zeros_(gate.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Read a batch through all layers; shapes as in ``CoupledLSTM.forward``."""
        for number, layer in enumerate(self.layers):
            outputs = self.dropout(layer(inputs, mask))
            if number:
                gate = torch.sigmoid(self.gates[number - 1](outputs))
                outputs = gate * outputs + (1 - gate) * inputs
            inputs = outputs
        return inputs * mask[..., None]
