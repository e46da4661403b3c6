"""The fast path of the coupled LSTM: both directions at once, the gradient written out.

Equal to ``read_coupled_plainly`` of ``nn.coupled_lstm``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def read_coupled(from_input: Tensor, state_weight: Tensor, hidden: Tensor, cell: Tensor, drop: Tensor | None) -> Tensor:
    """Read step by step, each direction with its own matrix.

    Args:
        from_input: ``(time, directions, batch, 3 * hidden_dim)``: the input's share of the gates i, j, o, with
            the bias.
        state_weight: ``(directions, 3 * hidden_dim, hidden_dim)``.
        hidden, cell: ``(directions, batch, hidden_dim)``, the state to start from.
        drop: of the same shape, what the state that is fed back is multiplied with; None for nothing.

    Returns:
        ``(time, directions, batch, hidden_dim)``
    """
    outputs: Tensor = _CoupledLayer.apply(from_input, state_weight, hidden, cell, drop)  # type: ignore[no-untyped-call]
    return outputs


class _CoupledLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, from_input: Tensor, state_weight: Tensor, hidden: Tensor, cell: Tensor, drop: Tensor | None
    ) -> Tensor:
        n_steps, size = len(from_input), hidden.shape[-1]
        shape = (n_steps, *hidden.shape)
        gates = from_input.clone(memory_format=torch.contiguous_format)  # becomes the three activations in place
        cells = from_input.new_empty(n_steps + 1, *hidden.shape)
        squashed, fed_back, outputs = (from_input.new_empty(shape) for _ in range(3))
        cells[0] = cell
        weight = state_weight.transpose(1, 2)
        for step in range(n_steps):
            fed_back[step] = outputs[step - 1] if step else hidden
            if drop is not None:
                fed_back[step].mul_(drop)
            here = gates[step].baddbmm_(fed_back[step], weight)
            i, j, o = here.chunk(3, dim=-1)
            i.sigmoid_()
            j.tanh_()
            o.sigmoid_()
            torch.lerp(cells[step], j, i, out=cells[step + 1])
            torch.tanh(cells[step + 1], out=squashed[step])
            torch.mul(squashed[step], o, out=outputs[step])
        ctx.save_for_backward(state_weight, drop, gates, cells, squashed, fed_back)
        ctx.size = size
        return outputs

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        state_weight, drop, gates, cells, squashed, fed_back = ctx.saved_tensors
        gradients = torch.empty_like(gates)
        later_hidden = torch.zeros_like(cells[0])
        later_cell = torch.zeros_like(cells[0])
        for step in reversed(range(len(gates))):
            i, j, o = gates[step].chunk(3, dim=-1)
            to_i, to_j, to_o = gradients[step].chunk(3, dim=-1)
            to_hidden = later_hidden.add_(upstream[0][step])
            torch.mul(to_hidden, squashed[step], out=to_o)
            to_cell = torch.ops.aten.tanh_backward(to_hidden * o, squashed[step]).add_(later_cell)
            torch.mul(to_cell, j - cells[step], out=to_i)
            torch.mul(to_cell, i, out=to_j)
            torch.sub(to_cell, to_j, out=later_cell)
            torch.ops.aten.sigmoid_backward.grad_input(to_i, i, grad_input=to_i)
            torch.ops.aten.tanh_backward.grad_input(to_j, j, grad_input=to_j)
            torch.ops.aten.sigmoid_backward.grad_input(to_o, o, grad_input=to_o)
            torch.bmm(gradients[step], state_weight, out=later_hidden)
            if drop is not None:
                later_hidden.mul_(drop)
        by_direction = gradients.transpose(0, 1).flatten(1, 2)  # (directions, time * batch, 3 * hidden_dim)
        to_weight = torch.bmm(by_direction.transpose(1, 2), fed_back.transpose(0, 1).flatten(1, 2))
        return gradients, to_weight, later_hidden, later_cell, None
