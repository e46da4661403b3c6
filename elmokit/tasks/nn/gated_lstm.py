"""LSTM layers with other gates than PyTorch's, for SRL (He et al. 2017) and coreference (Lee et al. 2017, 2018).

One step of the highway LSTM for SRL (Zhang et al. 2016), from input ``x`` and state ``(h, c)``. Each gate has its own
matrices, in AllenNLP's block order i, f, g, o, r, followed by k in the input matrix::

    i, f, o, r = sigmoid(W x + U h + b)      g = tanh(W x + U h + b)
    c' = i * g + f * c
    h' = r * (o * tanh(c')) + (1 - r) * (W_k x)

One step of the coupled LSTM for coreference, which has coupled input and forget gates, a learned initial state,
separate weights for each direction, and blocks in the order i, j, o. ``d`` is one dropout mask for the whole sequence::

    i, o = sigmoid(W x + U (d * h) + b)      j = tanh(W x + U (d * h) + b)
    c' = (1 - i) * c + i * j
    h' = tanh(c') * o
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.network.lstm_training import (
    StepFunctions,
    reorder,
    reversed_positions,
    run_recurrence,
    sigmoid_backward_,
    tanh_backward_,
)

# The bypass k depends on the input alone, hence one block fewer for the state.
N_STATE_BLOCKS = 5
N_INPUT_BLOCKS = 6
# Blocks of the coupled LSTM. Its forget gate is 1 - i, so it needs no block.
N_BLOCKS = 3
N_DIRECTIONS = 2  # forward, backward


class HighwayLSTM(nn.Module):
    """One layer in one direction.

    Args:
        input_dim: Size of the inputs.
        hidden_dim: Size of the state and the outputs.
        dropout: Dropout probability on the recurrent state, with one mask for the whole sequence. The output is not
            dropped, as in AllenNLP.
        input_bias: Add a bias to the input matrix, too, not only to the state matrix.
        reverse: Read from the last token to the first.
    """

    def __init__(self, input_dim: int, hidden_dim: int, dropout: float, input_bias: bool, reverse: bool) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.dropout = dropout
        self.reverse = reverse
        self.input_weight = nn.Parameter(torch.empty(N_INPUT_BLOCKS * hidden_dim, input_dim))
        # AllenNLP's SRL model has both biases; its version with ELMo omits this one.
        self.input_bias = nn.Parameter(torch.empty(N_INPUT_BLOCKS * hidden_dim)) if input_bias else None
        self.state_weight = nn.Parameter(torch.empty(N_STATE_BLOCKS * hidden_dim, hidden_dim))
        self.state_bias = nn.Parameter(torch.empty(N_STATE_BLOCKS * hidden_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize each block as an orthogonal matrix, and biases as 0, but 1 for the forget gate."""
        with torch.no_grad():
            for weight in (self.input_weight, self.state_weight):
                # One block at a time: orthogonal rows across all blocks would be another distribution.
                for block in torch.split(weight, self.hidden_dim):
                    nn.init.orthogonal_(block)
        if self.input_bias is not None:
            nn.init.zeros_(self.input_bias)
        nn.init.zeros_(self.state_bias)
        nn.init.ones_(self.state_bias[self.hidden_dim : 2 * self.hidden_dim])

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Run the layer over a batch from a zero state.

        Args:
            inputs: ``(batch, time, input_dim)``.
            mask: ``(batch, time)`` bool, True on a real token; padding is on the right.

        Returns:
            ``(batch, time, hidden_dim)``, zero on padding.
        """
        positions = None
        if self.reverse:
            # A backward layer reads each row in reverse, so that padding comes last for it, too.
            positions = reversed_positions(mask)
            inputs = reorder(inputs, positions)
        bias = F.pad(self.state_bias, (0, self.hidden_dim))
        if self.input_bias is not None:
            bias = bias + self.input_bias
        zero = inputs.new_zeros(len(inputs), self.hidden_dim)
        drop = None
        if self.training and self.dropout:
            drop = F.dropout(torch.ones_like(zero), self.dropout)
        by_time, *_ = run_recurrence(
            HIGHWAY_STEP, inputs.transpose(0, 1), self.input_weight, bias, self.state_weight, zero, zero, drop
        )
        outputs = by_time.transpose(0, 1)
        if positions is not None:
            outputs = reorder(outputs, positions)
        return outputs * mask[..., None]


def _highway_step(gates: Tensor, cell_before: Tensor, cell_after: Tensor, tanh_cell: Tensor, output: Tensor) -> None:
    """Compute the elementwise part of one step; arguments as in ``StepFunctions.forward``."""
    size = cell_before.shape[-1]
    i_and_f, g, o_and_r, bypass = torch.split(gates, [2 * size, size, 2 * size, size], -1)
    # Two calls compute the four sigmoids.
    i, f = i_and_f.sigmoid_().chunk(2, dim=-1)
    o, r = o_and_r.sigmoid_().chunk(2, dim=-1)
    torch.mul(f, cell_before, out=cell_after).addcmul_(i, g.tanh_())
    torch.tanh(cell_after, out=tanh_cell)
    torch.lerp(bypass, o * tanh_cell, r, out=output)  # r * o * tanh(c) + (1 - r) * bypass


def _highway_step_backward(
    gradient: Tensor,
    gates: Tensor,
    cell_before: Tensor,
    cell_after: Tensor,
    tanh_cell: Tensor,
    cell_gradient: Tensor,
    gate_gradient: Tensor,
) -> None:
    """Compute the gradient of ``_highway_step``; arguments as in ``StepFunctions.backward``."""
    i, f, g, o, r, bypass = gates.chunk(N_INPUT_BLOCKS, dim=-1)
    to_i, to_f, to_g, to_o, to_r, to_bypass = gate_gradient.chunk(N_INPUT_BLOCKS, dim=-1)
    # h = r * m + (1 - r) * k with m = o * tanh(c): dh/dr = m - k, dh/dm = r, dh/dk = 1 - r.
    torch.mul(gradient, o * tanh_cell - bypass, out=to_r)
    to_memory = gradient * r
    torch.sub(gradient, to_memory, out=to_bypass)
    torch.mul(to_memory, tanh_cell, out=to_o)
    to_cell = torch.ops.aten.tanh_backward(to_memory.mul_(o), tanh_cell).add_(cell_gradient)
    torch.mul(to_cell, g, out=to_i)
    torch.mul(to_cell, cell_before, out=to_f)
    torch.mul(to_cell, i, out=to_g)
    torch.mul(to_cell, f, out=cell_gradient)
    for activation_gradient, activation in ((to_i, i), (to_f, f), (to_o, o), (to_r, r)):
        sigmoid_backward_(activation_gradient, activation)
    tanh_backward_(to_g, g)


HIGHWAY_STEP = StepFunctions(N_INPUT_BLOCKS, _highway_step, _highway_step_backward)


class BidirectionalHighwayLSTM(nn.Module):
    """One layer in each direction, with concatenated outputs: a layer of AllenNLP's stacked bidirectional LSTM."""

    def __init__(self, input_dim: int, hidden_dim: int, dropout: float) -> None:
        super().__init__()
        self.forward_layer = HighwayLSTM(input_dim, hidden_dim, dropout, input_bias=False, reverse=False)
        self.backward_layer = HighwayLSTM(input_dim, hidden_dim, dropout, input_bias=False, reverse=True)

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Run both directions. Shapes are as in ``HighwayLSTM.forward``, but outputs have ``2 * hidden_dim``."""
        return torch.cat([self.forward_layer(inputs, mask), self.backward_layer(inputs, mask)], dim=-1)


class AlternatingLSTM(nn.Module):
    """A stack of highway LSTM layers: layer 0 reads forward, layer 1 backward, and so on.

    This is not a bidirectional LSTM: each layer reads the outputs of the layer below, and outputs have ``hidden_dim``
    features.
    """

    def __init__(self, input_dim: int, hidden_dim: int, n_layers: int, dropout: float, input_bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        dim = input_dim
        for layer in range(n_layers):
            self.layers.append(HighwayLSTM(dim, hidden_dim, dropout, input_bias, reverse=layer % 2 == 1))
            dim = hidden_dim

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Run all layers over a batch. Shapes are as in ``HighwayLSTM.forward``."""
        for layer in self.layers:
            inputs = layer(inputs, mask)
        return inputs


class CoupledLSTM(nn.Module):
    """One coupled LSTM layer in both directions.

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
        # Both directions are in one tensor, so a step is one batched product for both.
        self.input_weight = nn.Parameter(torch.empty(N_DIRECTIONS, gates, input_dim))
        self.state_weight = nn.Parameter(torch.empty(N_DIRECTIONS, gates, hidden_dim))
        self.bias = nn.Parameter(torch.zeros(N_DIRECTIONS, gates))
        self.first_hidden = nn.Parameter(torch.empty(N_DIRECTIONS, hidden_dim))
        self.first_cell = nn.Parameter(torch.empty(N_DIRECTIONS, hidden_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize each gate's matrix as orthonormal, initial states as Glorot uniform, and biases as 0."""
        input_dim = self.input_weight.shape[-1]
        block = torch.empty(self.hidden_dim, input_dim + self.hidden_dim)
        with torch.no_grad():
            for direction in range(N_DIRECTIONS):
                for start in range(0, N_BLOCKS * self.hidden_dim, self.hidden_dim):
                    # Orthonormal over input and state together, like e2e-coref's initializer; drawn separately, each
                    # part would have the norm of the whole.
                    nn.init.orthogonal_(block)
                    rows = slice(start, start + self.hidden_dim)
                    self.input_weight[direction, rows] = block[:, :input_dim]
                    self.state_weight[direction, rows] = block[:, input_dim:]
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
        # The backward direction reads each row in reverse, so that one loop serves both directions.
        positions = reversed_positions(mask)
        backward_inputs = reorder(inputs, positions)
        both = torch.stack([inputs.transpose(0, 1), backward_inputs.transpose(0, 1)], dim=1)
        first_hidden = self.first_hidden[:, None].expand(-1, n_rows, -1)
        first_cell = self.first_cell[:, None].expand(-1, n_rows, -1)
        drop = None
        if self.training and self.dropout:
            drop = F.dropout(inputs.new_ones(N_DIRECTIONS, n_rows, self.hidden_dim), self.dropout)
        outputs, *_ = run_recurrence(
            COUPLED_STEP, both, self.input_weight, self.bias, self.state_weight, first_hidden, first_cell, drop
        )
        forward, backward = outputs.permute(1, 2, 0, 3).unbind(0)  # (batch, time, hidden_dim) each
        both_outputs = torch.cat([forward, reorder(backward, positions)], dim=-1)
        return both_outputs * mask[..., None]


def _coupled_step(gates: Tensor, cell_before: Tensor, cell_after: Tensor, tanh_cell: Tensor, output: Tensor) -> None:
    """Compute the elementwise part of one step; arguments as in ``StepFunctions.forward``."""
    i, j, o = gates.chunk(N_BLOCKS, dim=-1)
    i.sigmoid_()
    j.tanh_()
    o.sigmoid_()
    torch.lerp(cell_before, j, i, out=cell_after)  # (1 - i) * cell + i * j
    torch.tanh(cell_after, out=tanh_cell)
    torch.mul(tanh_cell, o, out=output)


def _coupled_step_backward(
    gradient: Tensor,
    gates: Tensor,
    cell_before: Tensor,
    cell_after: Tensor,
    tanh_cell: Tensor,
    cell_gradient: Tensor,
    gate_gradient: Tensor,
) -> None:
    """Compute the gradient of ``_coupled_step``; arguments as in ``StepFunctions.backward``."""
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


COUPLED_STEP = StepFunctions(N_BLOCKS, _coupled_step, _coupled_step_backward)


class CoupledLSTMStack(nn.Module):
    """A stack of coupled LSTM layers. From the second layer on, a gate mixes a layer's output with its input.

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
        self.layers = nn.ModuleList([CoupledLSTM(input_dim, hidden_dim, dropout)])
        for _ in range(n_layers - 1):
            self.layers.append(CoupledLSTM(size, hidden_dim, dropout))
        self.gates = nn.ModuleList(nn.Linear(size, size) for _ in range(n_layers - 1))
        for gate in self.gates:
            assert isinstance(gate, nn.Linear)
            nn.init.xavier_uniform_(gate.weight)
            nn.init.zeros_(gate.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Run all layers over a batch. Shapes are as in ``CoupledLSTM.forward``."""
        hidden: Tensor = self.dropout(self.layers[0](inputs, mask))
        for layer, gate in zip(self.layers[1:], self.gates, strict=True):
            outputs = self.dropout(layer(hidden, mask))
            kept = torch.sigmoid(gate(outputs))
            hidden = kept * outputs + (1 - kept) * hidden
        return hidden * mask[..., None]
