"""LSTM layers with a highway gate and alternating directions (Zhang et al. 2016; He et al. 2017).

One step from input ``x`` and state ``(h, c)``, with separate matrices for each gate::

    i, f, o, r = sigmoid(W x + U h + b)      g = tanh(W x + U h + b)
    c' = i * g + f * c
    h' = r * (o * tanh(c')) + (1 - r) * (W_k x)

Weight blocks have AllenNLP's order i, f, g, o, r, followed by k in the input's matrix.

``run_highway`` computes a layer with its gradient written out, which is several times faster than autograd over a loop;
``run_highway_reference`` has the formulas as above, and the two are tested against each other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# The bypass k depends on the input alone, hence one block fewer for the state.
N_STATE_BLOCKS = 5
N_INPUT_BLOCKS = 6


class HighwayLSTM(nn.Module):
    """One layer in one direction.

    Args:
        input_dim: Size of the inputs.
        hidden_dim: Size of the state and the outputs.
        dropout: Dropout probability on the recurrent state, with one mask for the whole sequence. The output is not
            dropped, as in AllenNLP.
        input_bias: Whether the input's matrix has its own bias, in addition to the state's.
        reverse: Read from the last token to the first.
    """

    def __init__(self, input_dim: int, hidden_dim: int, dropout: float, input_bias: bool, reverse: bool) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.dropout = dropout
        self.reverse = reverse
        self.input_weight = nn.Parameter(torch.empty(N_INPUT_BLOCKS * hidden_dim, input_dim))
        # AllenNLP's SRL model has both biases; its version with ELMo switches this one off.
        self.input_bias = nn.Parameter(torch.empty(N_INPUT_BLOCKS * hidden_dim)) if input_bias else None
        self.state_weight = nn.Parameter(torch.empty(N_STATE_BLOCKS * hidden_dim, hidden_dim))
        self.state_bias = nn.Parameter(torch.empty(N_STATE_BLOCKS * hidden_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every block orthogonal; biases 0, but 1 for the forget gate."""
        with torch.no_grad():
            for weight in (self.input_weight, self.state_weight):
                # Each gate on its own: orthogonal rows over all blocks together would be another distribution.
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
        drop = None
        if self.training and self.dropout:
            # One mask for all steps (Gal and Ghahramani 2016): a new mask per step would erase the memory of long
            # sequences.
            drop = F.dropout(inputs.new_ones(len(inputs), self.hidden_dim), self.dropout)
        return run_highway(
            F.linear(inputs, self.input_weight, self.input_bias),
            self.state_weight,
            self.state_bias,
            mask,
            drop,
            self.reverse,
        )


def run_highway(
    from_input: Tensor, state_weight: Tensor, state_bias: Tensor, mask: Tensor, drop: Tensor | None, reverse: bool
) -> Tensor:
    """Run one layer over a batch from a zero state.

    Args:
        from_input: ``(batch, time, 6 * hidden_dim)``: the input's contribution to the gates i, f, g, o, r, and k, which
            bypasses the cell.
        state_weight: ``(5 * hidden_dim, hidden_dim)``.
        state_bias: ``(5 * hidden_dim,)``.
        mask: ``(batch, time)`` bool, True on a real token; padding is on the right.
        drop: ``(batch, hidden_dim)``, the dropout mask that multiplies the recurrent state; None for no dropout.
        reverse: Read from the last step to the first.

    Returns:
        ``(batch, time, hidden_dim)``, zero on padding.
    """
    by_time = from_input.transpose(0, 1)
    real = mask.t()[..., None].to(from_input.dtype)
    if reverse:
        # Padding then comes first. Masking the state keeps it at zero until the first real token.
        by_time, real = by_time.flip(0), real.flip(0)
    outputs: Tensor = _HighwayLayer.apply(by_time, state_weight, state_bias, real, drop)  # type: ignore[no-untyped-call]
    return (outputs.flip(0) if reverse else outputs).transpose(0, 1)


class _HighwayLayer(torch.autograd.Function):
    """The loop over steps. What the backward pass needs has one buffer per quantity, over all steps.

    Time comes first, ``(time, batch, ...)``, so that a step is one block of memory.
    """

    @staticmethod
    def forward(
        ctx: Any, from_input: Tensor, state_weight: Tensor, state_bias: Tensor, real: Tensor, drop: Tensor | None
    ) -> Tensor:
        n_steps, n_rows, _ = from_input.shape
        size = state_weight.shape[1]
        # The sums from the inputs; each step adds the recurrent product and replaces the sums by the activations.
        gates = from_input[..., : 5 * size] + state_bias
        bypass = from_input[..., 5 * size :].contiguous()
        cells = from_input.new_zeros(n_steps + 1, n_rows, size)
        squashed = from_input.new_empty(n_steps, n_rows, size)  # tanh of the cell
        recurrent = from_input.new_zeros(n_steps, n_rows, size)
        outputs = from_input.new_empty(n_steps, n_rows, size)
        weight = state_weight.t()
        for step in range(n_steps):
            if step:
                recurrent[step] = outputs[step - 1]
                if drop is not None:
                    recurrent[step].mul_(drop)
                gates[step].addmm_(recurrent[step], weight)
            i, f, g, o, r = gates[step].chunk(5, dim=1)
            # i and f are neighbours, and so are o and r: two calls instead of four.
            gates[step][:, : 2 * size].sigmoid_()
            g.tanh_()
            gates[step][:, 3 * size :].sigmoid_()
            # Multiplied by `real`, so that padding leaves a zero state, whichever side it is on.
            torch.mul(f, cells[step], out=cells[step + 1]).addcmul_(i, g).mul_(real[step])
            torch.tanh(cells[step + 1], out=squashed[step])
            # r * o * tanh(c) + (1 - r) * bypass
            torch.lerp(bypass[step], o * squashed[step], r, out=outputs[step]).mul_(real[step])
        ctx.save_for_backward(state_weight, real, drop, gates, bypass, cells, squashed, recurrent)
        return outputs

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        state_weight, real, drop, gates, bypass, cells, squashed, recurrent = ctx.saved_tensors
        n_steps, n_rows, size = squashed.shape
        gradients = gates.new_empty(n_steps, n_rows, 6 * size)
        hidden_gradient = torch.zeros_like(cells[0])
        cell_gradient = torch.zeros_like(cells[0])
        # `upstream` is the gradient of this step's output from above, `hidden_gradient` that from the next step.
        for step in reversed(range(n_steps)):
            i, f, g, o, r = gates[step].chunk(5, dim=1)
            to_i, to_f, to_g, to_o, to_r, to_bypass = gradients[step].chunk(6, dim=1)
            to_hidden = hidden_gradient.add_(upstream[0][step]).mul_(real[step])
            # h = r * m + (1 - r) * k with m = o * tanh(c): dh/dr = m - k, dh/dm = r, dh/dk = 1 - r.
            torch.mul(to_hidden, o * squashed[step] - bypass[step], out=to_r)
            to_memory = to_hidden * r
            torch.sub(to_hidden, to_memory, out=to_bypass)
            torch.mul(to_memory, squashed[step], out=to_o)
            to_cell = torch.ops.aten.tanh_backward(to_memory.mul_(o), squashed[step])
            to_cell.add_(cell_gradient).mul_(real[step])
            torch.mul(to_cell, g, out=to_i)
            torch.mul(to_cell, cells[step], out=to_f)
            torch.mul(to_cell, i, out=to_g)
            torch.mul(to_cell, f, out=cell_gradient)
            for gradient, activation in ((to_i, i), (to_f, f), (to_o, o), (to_r, r)):
                torch.ops.aten.sigmoid_backward.grad_input(gradient, activation, grad_input=gradient)
            torch.ops.aten.tanh_backward.grad_input(to_g, g, grad_input=to_g)
            torch.mm(gradients[step][:, : 5 * size], state_weight, out=hidden_gradient)
            if drop is not None:
                hidden_gradient.mul_(drop)
        # The weight's gradient as one product over all steps, instead of one small product per step.
        to_gates = gradients[..., : 5 * size].flatten(0, 1)
        return gradients, to_gates.t() @ recurrent.flatten(0, 1), to_gates.sum(dim=0), None, None


def run_highway_reference(
    from_input: Tensor, state_weight: Tensor, state_bias: Tensor, mask: Tensor, drop: Tensor | None, reverse: bool
) -> Tensor:
    """Compute the formulas step by step; arguments as in ``run_highway``."""
    n_rows, n_steps, _ = from_input.shape
    hidden = cell = from_input.new_zeros(n_rows, state_weight.shape[1])
    outputs: list[Tensor] = [hidden] * n_steps
    for step in reversed(range(n_steps)) if reverse else range(n_steps):
        gates, bypass = torch.split(from_input[:, step], [len(state_weight), state_weight.shape[1]], dim=1)
        recurrent = hidden if drop is None else hidden * drop
        i, f, g, o, r = (gates + F.linear(recurrent, state_weight, state_bias)).chunk(N_STATE_BLOCKS, dim=1)
        real = mask[:, step, None].to(hidden.dtype)
        cell = (torch.sigmoid(i) * torch.tanh(g) + torch.sigmoid(f) * cell) * real
        highway_gate = torch.sigmoid(r)
        hidden = (highway_gate * torch.sigmoid(o) * torch.tanh(cell) + (1 - highway_gate) * bypass) * real
        outputs[step] = hidden
    return torch.stack(outputs, dim=1) if outputs else from_input.new_zeros(n_rows, 0, state_weight.shape[1])


class AlternatingLSTM(nn.Module):
    """A stack of highway LSTM layers: layer 0 reads forward, layer 1 backward, and so on.

    This is not a bidirectional LSTM: each layer reads the outputs of the layer below, and outputs have size
    ``hidden_dim``.

    Args:
        input_dim: Size of the inputs.
        hidden_dim: Size of every layer.
        n_layers: Number of layers.
        dropout: Dropout probability on the recurrent state of each layer.
        input_bias: Whether the inputs' matrices have their own biases.
    """

    def __init__(self, input_dim: int, hidden_dim: int, n_layers: int, dropout: float, input_bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            HighwayLSTM(hidden_dim if layer else input_dim, hidden_dim, dropout, input_bias, reverse=layer % 2 == 1)
            for layer in range(n_layers)
        )

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Run all layers over a batch; shapes as in ``HighwayLSTM.forward``."""
        for layer in self.layers:
            inputs = layer(inputs, mask)
        return inputs
