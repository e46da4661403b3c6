"""The LSTM of end-to-end coreference: coupled input and forget gates, learned initial state (Lee et al. 2017, 2018).

One step from input ``x`` and state ``(h, c)``, with separate weights for each direction::

    i, o = sigmoid(W x + U (d * h) + b)      j = tanh(W x + U (d * h) + b)
    c' = (1 - i) * c + i * j
    h' = tanh(c') * o

where ``d`` is one dropout mask for the whole sequence. Weight blocks have the order i, j, o.

``run_coupled`` computes both directions at once with its gradient written out, which is several times faster than
autograd over a loop; ``run_coupled_reference`` has the formulas as above, and the two are tested against each other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.nn.reversal import reorder, reversed_positions

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
        n_rows, n_steps, _ = inputs.shape
        # The backward direction reads each row reversed, so that both directions are one loop from the first step.
        positions = reversed_positions(mask)
        both = torch.stack([inputs, reorder(inputs, positions)])
        from_input = torch.baddbmm(self.bias[:, None], both.flatten(1, 2), self.input_weight.transpose(1, 2))
        shape = (N_DIRECTIONS, n_rows, n_steps, len(self.bias[0]))
        from_input = from_input.view(shape).permute(2, 0, 1, 3)  # (time, 2, batch, gates)
        first_hidden, first_cell = (
            first[:, None].expand(-1, n_rows, -1) for first in (self.first_hidden, self.first_cell)
        )
        drop = None
        if self.training and self.dropout:
            # One mask per direction and row for all steps (Gal and Ghahramani 2016).
            drop = F.dropout(inputs.new_ones(N_DIRECTIONS, n_rows, self.hidden_dim), self.dropout)
        outputs = run_coupled(from_input, self.state_weight, first_hidden, first_cell, drop)
        # (batch, time, hidden_dim) each.
        forward, backward = outputs.permute(1, 2, 0, 3).unbind(0)
        return torch.cat([forward, reorder(backward, positions)], dim=-1) * mask[..., None]


def run_coupled(from_input: Tensor, state_weight: Tensor, hidden: Tensor, cell: Tensor, drop: Tensor | None) -> Tensor:
    """Run all directions of a layer together.

    Args:
        from_input: ``(time, directions, batch, 3 * hidden_dim)``: the input's contribution to the gates i, j, o, with
            the bias.
        state_weight: ``(directions, 3 * hidden_dim, hidden_dim)``.
        hidden: ``(directions, batch, hidden_dim)``, the initial hidden state.
        cell: The initial cell, of the same shape.
        drop: The dropout mask that multiplies the recurrent state, of the same shape; None for no dropout.

    Returns:
        ``(time, directions, batch, hidden_dim)``
    """
    outputs: Tensor = _CoupledLayer.apply(from_input, state_weight, hidden, cell, drop)  # type: ignore[no-untyped-call]
    return outputs


class _CoupledLayer(torch.autograd.Function):
    """The loop over steps. What the backward pass needs has one buffer per quantity, over all steps."""

    @staticmethod
    def forward(
        ctx: Any, from_input: Tensor, state_weight: Tensor, hidden: Tensor, cell: Tensor, drop: Tensor | None
    ) -> Tensor:
        n_steps, size = len(from_input), hidden.shape[-1]
        shape = (n_steps, *hidden.shape)
        # The sums from the inputs; each step adds the recurrent product and replaces the sums by the activations.
        gates = from_input.clone(memory_format=torch.contiguous_format)
        cells = from_input.new_empty(n_steps + 1, *hidden.shape)
        squashed, recurrent, outputs = (from_input.new_empty(shape) for _ in range(3))
        cells[0] = cell
        weight = state_weight.transpose(1, 2)
        for step in range(n_steps):
            # Kept after dropout: the weight's gradient needs what the product really read.
            recurrent[step] = outputs[step - 1] if step else hidden
            if drop is not None:
                recurrent[step].mul_(drop)
            here = gates[step].baddbmm_(recurrent[step], weight)
            i, j, o = here.chunk(3, dim=-1)
            i.sigmoid_()
            j.tanh_()
            o.sigmoid_()
            torch.lerp(cells[step], j, i, out=cells[step + 1])  # (1 - i) * cell + i * j
            torch.tanh(cells[step + 1], out=squashed[step])
            torch.mul(squashed[step], o, out=outputs[step])
        ctx.save_for_backward(state_weight, drop, gates, cells, squashed, recurrent)
        ctx.size = size
        return outputs

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        state_weight, drop, gates, cells, squashed, recurrent = ctx.saved_tensors
        gradients = torch.empty_like(gates)
        hidden_gradient = torch.zeros_like(cells[0])
        cell_gradient = torch.zeros_like(cells[0])
        for step in reversed(range(len(gates))):
            i, j, o = gates[step].chunk(3, dim=-1)
            to_i, to_j, to_o = gradients[step].chunk(3, dim=-1)
            to_hidden = hidden_gradient.add_(upstream[0][step])
            torch.mul(to_hidden, squashed[step], out=to_o)
            to_cell = torch.ops.aten.tanh_backward(to_hidden * o, squashed[step]).add_(cell_gradient)
            # c' = c + i * (j - c): dc'/di = j - c, dc'/dj = i, dc'/dc = 1 - i.
            torch.mul(to_cell, j - cells[step], out=to_i)
            torch.mul(to_cell, i, out=to_j)
            torch.sub(to_cell, to_j, out=cell_gradient)
            torch.ops.aten.sigmoid_backward.grad_input(to_i, i, grad_input=to_i)
            torch.ops.aten.tanh_backward.grad_input(to_j, j, grad_input=to_j)
            torch.ops.aten.sigmoid_backward.grad_input(to_o, o, grad_input=to_o)
            torch.bmm(gradients[step], state_weight, out=hidden_gradient)
            if drop is not None:
                hidden_gradient.mul_(drop)
        # The weight's gradient as one product over all steps.
        by_direction = gradients.transpose(0, 1).flatten(1, 2)  # (directions, time * batch, 3 * hidden_dim)
        to_weight = torch.bmm(by_direction.transpose(1, 2), recurrent.transpose(0, 1).flatten(1, 2))
        # What is left after step 0 is the gradient of the learned initial states.
        return gradients, to_weight, hidden_gradient, cell_gradient, None


def run_coupled_reference(
    from_input: Tensor, state_weight: Tensor, hidden: Tensor, cell: Tensor, drop: Tensor | None
) -> Tensor:
    """Compute the formulas step by step; arguments as in ``run_coupled``."""
    outputs = []
    for step in from_input:
        recurrent = hidden if drop is None else hidden * drop
        i, j, o = (step + torch.bmm(recurrent, state_weight.transpose(1, 2))).chunk(N_BLOCKS, dim=-1)
        i = torch.sigmoid(i)
        cell = (1 - i) * cell + i * torch.tanh(j)
        hidden = torch.tanh(cell) * torch.sigmoid(o)
        outputs.append(hidden)
    return torch.stack(outputs) if outputs else from_input[..., : hidden.shape[-1]]


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
