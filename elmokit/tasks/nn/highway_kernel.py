"""The fast path of the highway LSTM: one layer with its gradient written out, equal to ``read_highway_plainly``.

Against autograd over the plain loop it forms the weights' gradients as one product over all steps, and keeps what the
backward pass needs in one buffer per quantity.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def read_highway(
    from_input: Tensor, state_weight: Tensor, state_bias: Tensor, mask: Tensor, drop: Tensor | None, reverse: bool
) -> Tensor:
    """Read a batch from a zero state, step by step.

    Args:
        from_input: ``(batch, time, 6 * hidden_dim)``: the input's share of the gates i, f, g, o, r, and its straight
            path.
        state_weight: ``(5 * hidden_dim, hidden_dim)``.
        state_bias: ``(5 * hidden_dim,)``.
        mask: ``(batch, time)`` bool, True on a real token; padding stands on the right.
        drop: ``(batch, hidden_dim)``, what the state that is fed back is multiplied with; None for nothing.
        reverse: read from the last step to the first.

    Returns:
        ``(batch, time, hidden_dim)``, zero on padding.
    """
    by_time = from_input.transpose(0, 1)
    real = mask.t()[..., None].to(from_input.dtype)
    if reverse:
        by_time, real = by_time.flip(0), real.flip(0)
    outputs: Tensor = _HighwayLayer.apply(by_time, state_weight, state_bias, real, drop)  # type: ignore[no-untyped-call]
    return (outputs.flip(0) if reverse else outputs).transpose(0, 1)


class _HighwayLayer(torch.autograd.Function):
    """Time stands first in here: ``(time, batch, ...)``, so that a step is one contiguous block."""

    @staticmethod
    def forward(
        ctx: Any, from_input: Tensor, state_weight: Tensor, state_bias: Tensor, real: Tensor, drop: Tensor | None
    ) -> Tensor:
        n_steps, n_rows, _ = from_input.shape
        size = state_weight.shape[1]
        gates = from_input[..., : 5 * size] + state_bias  # becomes the five activations in place
        straight = from_input[..., 5 * size :].contiguous()
        cells = from_input.new_zeros(n_steps + 1, n_rows, size)
        squashed = from_input.new_empty(n_steps, n_rows, size)  # tanh of the cell
        fed_back = from_input.new_zeros(n_steps, n_rows, size)
        outputs = from_input.new_empty(n_steps, n_rows, size)
        weight = state_weight.t()
        for step in range(n_steps):
            if step:
                fed_back[step] = outputs[step - 1]
                if drop is not None:
                    fed_back[step].mul_(drop)
                gates[step].addmm_(fed_back[step], weight)
            i, f, g, o, r = gates[step].chunk(5, dim=1)
            gates[step][:, : 2 * size].sigmoid_()
            g.tanh_()
            gates[step][:, 3 * size :].sigmoid_()
            torch.mul(f, cells[step], out=cells[step + 1]).addcmul_(i, g).mul_(real[step])
            torch.tanh(cells[step + 1], out=squashed[step])
            torch.lerp(straight[step], o * squashed[step], r, out=outputs[step]).mul_(real[step])
        ctx.save_for_backward(state_weight, real, drop, gates, straight, cells, squashed, fed_back)
        return outputs

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        state_weight, real, drop, gates, straight, cells, squashed, fed_back = ctx.saved_tensors
        n_steps, n_rows, size = squashed.shape
        gradients = gates.new_empty(n_steps, n_rows, 6 * size)
        later_hidden = torch.zeros_like(cells[0])
        later_cell = torch.zeros_like(cells[0])
        for step in reversed(range(n_steps)):
            i, f, g, o, r = gates[step].chunk(5, dim=1)
            to_i, to_f, to_g, to_o, to_r, to_straight = gradients[step].chunk(6, dim=1)
            to_hidden = later_hidden.add_(upstream[0][step]).mul_(real[step])
            torch.mul(to_hidden, o * squashed[step] - straight[step], out=to_r)
            to_memory = to_hidden * r
            torch.sub(to_hidden, to_memory, out=to_straight)
            torch.mul(to_memory, squashed[step], out=to_o)
            to_cell = torch.ops.aten.tanh_backward(to_memory.mul_(o), squashed[step])
            to_cell.add_(later_cell).mul_(real[step])
            torch.mul(to_cell, g, out=to_i)
            torch.mul(to_cell, cells[step], out=to_f)
            torch.mul(to_cell, i, out=to_g)
            torch.mul(to_cell, f, out=later_cell)
            for gradient, activation in ((to_i, i), (to_f, f), (to_o, o), (to_r, r)):
                torch.ops.aten.sigmoid_backward.grad_input(gradient, activation, grad_input=gradient)
            torch.ops.aten.tanh_backward.grad_input(to_g, g, grad_input=to_g)
            torch.mm(gradients[step][:, : 5 * size], state_weight, out=later_hidden)
            if drop is not None:
                later_hidden.mul_(drop)
        to_gates = gradients[..., : 5 * size].flatten(0, 1)
        return gradients, to_gates.t() @ fed_back.flatten(0, 1), to_gates.sum(dim=0), None, None
