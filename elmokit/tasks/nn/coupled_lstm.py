"""The LSTM of end-to-end coreference: coupled input and forget gates, learned initial state (Lee et al. 2017, 2018).

One step from input ``x`` and state ``(h, c)``, with separate weights for each direction::

    i, o = sigmoid(W x + U (d * h) + b)      j = tanh(W x + U (d * h) + b)
    c' = (1 - i) * c + i * j
    h' = tanh(c') * o

where ``d`` is one dropout mask for the whole sequence. Weight blocks have the order i, j, o.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.network.recurrence import (
    StepFunctions,
    reorder,
    reversed_positions,
    run_recurrence,
    sigmoid_backward_,
    tanh_backward_,
)

# The forget gate is 1 - i, so there is no block for it.
N_BLOCKS = 3
N_DIRECTIONS = 2  # forward, backward


class CoupledLSTM(nn.Module):
    """One layer in both directions.

    Args:
        input_dim: Size of the inputs.
        hidden_dim: Size of the state in each direction.
        dropout: Dropout probability on the recurrent state; the output is not dropped.
    """

    def __init__(self, input_dim: int, hidden_dim: int, dropout: float) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.dropout = dropout
        gates = N_BLOCKS * hidden_dim
        # Both directions in one tensor: a step is one batched product for both.
        self.input_weight = nn.Parameter(torch.empty(N_DIRECTIONS, gates, input_dim))
        self.state_weight = nn.Parameter(torch.empty(N_DIRECTIONS, gates, hidden_dim))
        self.bias = nn.Parameter(torch.zeros(N_DIRECTIONS, gates))
        self.first_hidden = nn.Parameter(torch.empty(N_DIRECTIONS, hidden_dim))
        self.first_cell = nn.Parameter(torch.empty(N_DIRECTIONS, hidden_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw each gate's matrix over input and state orthonormal, and the initial states Glorot uniform; biases 0."""
        input_dim = self.input_weight.shape[-1]
        block = torch.empty(self.hidden_dim, input_dim + self.hidden_dim)
        with torch.no_grad():
            for direction in range(N_DIRECTIONS):
                for start in range(0, N_BLOCKS * self.hidden_dim, self.hidden_dim):
                    # Orthonormal over input and state together, as e2e-coref's initializer; drawn separately, each part
                    # would have the norm of the whole.
                    nn.init.orthogonal_(block)
                    self.input_weight[direction, start : start + self.hidden_dim] = block[:, :input_dim]
                    self.state_weight[direction, start : start + self.hidden_dim] = block[:, input_dim:]
                for first in (self.first_hidden, self.first_cell):
                    nn.init.xavier_uniform_(first[direction : direction + 1])
        nn.init.zeros_(self.bias)

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Run both directions over a batch of sentences.

        Args:
            inputs: ``(batch, time, input_dim)``.
            mask: ``(batch, time)`` bool, True on a real token; padding is on the right.

        Returns:
            ``(batch, time, 2 * hidden_dim)``, forward and backward concatenated, zero on padding.
        """
        n_rows = len(inputs)
        # The backward direction reads each row reversed, so that both directions are one loop from the first step.
        positions = reversed_positions(mask)
        both = torch.stack([inputs.transpose(0, 1), reorder(inputs, positions).transpose(0, 1)], dim=1)
        first_hidden, first_cell = (
            first[:, None].expand(-1, n_rows, -1) for first in (self.first_hidden, self.first_cell)
        )
        drop = None
        if self.training and self.dropout:
            drop = F.dropout(inputs.new_ones(N_DIRECTIONS, n_rows, self.hidden_dim), self.dropout)
        outputs, *_ = run_recurrence(
            COUPLED_STEP, both, self.input_weight, self.bias, self.state_weight, first_hidden, first_cell, drop
        )
        # (batch, time, hidden_dim) each.
        forward, backward = outputs.permute(1, 2, 0, 3).unbind(0)
        return torch.cat([forward, reorder(backward, positions)], dim=-1) * mask[..., None]


def _step(gates: Tensor, cell_before: Tensor, cell_after: Tensor, tanh_cell: Tensor, output: Tensor) -> None:
    """Compute the elementwise part of one step; arguments as in ``StepFunctions.forward``."""
    i, j, o = gates.chunk(N_BLOCKS, dim=-1)
    i.sigmoid_()
    j.tanh_()
    o.sigmoid_()
    torch.lerp(cell_before, j, i, out=cell_after)  # (1 - i) * cell + i * j
    torch.tanh(cell_after, out=tanh_cell)
    torch.mul(tanh_cell, o, out=output)


def _step_backward(
    gradient: Tensor,
    gates: Tensor,
    cell_before: Tensor,
    cell_after: Tensor,
    tanh_cell: Tensor,
    cell_gradient: Tensor,
    gate_gradient: Tensor,
) -> None:
    """Compute the gradient of ``_step``; arguments as in ``StepFunctions.backward``."""
    i, j, o = gates.chunk(N_BLOCKS, dim=-1)
    to_i, to_j, to_o = gate_gradient.chunk(N_BLOCKS, dim=-1)
    torch.mul(gradient, tanh_cell, out=to_o)
    to_cell = torch.ops.aten.tanh_backward(gradient * o, tanh_cell).add_(cell_gradient)
    # c' = c + i * (j - c): dc'/di = j - c, dc'/dj = i, dc'/dc = 1 - i.
    torch.mul(to_cell, j - cell_before, out=to_i)
    torch.mul(to_cell, i, out=to_j)
    torch.sub(to_cell, to_j, out=cell_gradient)
    sigmoid_backward_(to_i, i)
    tanh_backward_(to_j, j)
    sigmoid_backward_(to_o, o)


COUPLED_STEP = StepFunctions(N_BLOCKS, _step, _step_backward)


class CoupledLSTMStack(nn.Module):
    """A stack of coupled LSTM layers; from the second on, a gate mixes a layer's output with its input.

    Lee et al. 2017 use one layer, Lee et al. 2018 three.

    Args:
        input_dim: Size of the inputs.
        hidden_dim: Size of each direction of each layer.
        n_layers: Number of layers.
        dropout: Dropout probability on the recurrent states and on each layer's output.
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
        """Run all layers over a batch; shapes as in ``CoupledLSTM.forward``."""
        for number, layer in enumerate(self.layers):
            outputs = self.dropout(layer(inputs, mask))
            if number:
                gate = torch.sigmoid(self.gates[number - 1](outputs))
                outputs = gate * outputs + (1 - gate) * inputs
            inputs = outputs
        return inputs * mask[..., None]
