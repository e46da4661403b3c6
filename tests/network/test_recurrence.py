"""The hand-written gradient of recurrent layers equals that of autograd over their formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from elmokit.network.lstm_training import StepFunctions, run_recurrence
from elmokit.tasks.nn.gated_lstm import COUPLED_STEP, HIGHWAY_STEP

N_STEPS, N_ROWS, INPUT_DIM, HIDDEN_DIM = 5, 3, 7, 4
Formula = Callable[[Sequence[Tensor], Tensor], tuple[Tensor, Tensor]]


def highway(blocks: Sequence[Tensor], cell: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o, r, bypass = blocks
    cell = torch.sigmoid(i) * torch.tanh(g) + torch.sigmoid(f) * cell
    r = torch.sigmoid(r)
    return r * torch.sigmoid(o) * torch.tanh(cell) + (1 - r) * bypass, cell


def coupled(blocks: Sequence[Tensor], cell: Tensor) -> tuple[Tensor, Tensor]:
    i, j, o = blocks
    cell = (1 - torch.sigmoid(i)) * cell + torch.sigmoid(i) * torch.tanh(j)
    return torch.tanh(cell) * torch.sigmoid(o), cell


def run_formula(
    formula: Formula,
    inputs: Tensor,
    input_weight: Tensor,
    bias: Tensor,
    state_weight: Tensor,
    hidden: Tensor,
    cell: Tensor,
    *,
    drop: Tensor | None,
) -> Tensor:
    outputs = []
    for step in inputs:
        gates = step @ input_weight.mT + bias.unsqueeze(-2)
        recurrent = (hidden if drop is None else hidden * drop) @ state_weight.mT
        gates = gates + torch.nn.functional.pad(recurrent, (0, gates.shape[-1] - recurrent.shape[-1]))
        hidden, cell = formula(gates.split(HIDDEN_DIM, dim=-1), cell)
        outputs.append(hidden)
    return torch.stack(outputs)


@pytest.mark.parametrize(
    ("functions", "formula", "n_state_blocks"), [(HIGHWAY_STEP, highway, 5), (COUPLED_STEP, coupled, 3)]
)
@pytest.mark.parametrize("directions", [(), (2,)])
@pytest.mark.parametrize("dropped", [False, True])
def test_the_gradient_equals_that_of_autograd(
    functions: StepFunctions, formula: Formula, n_state_blocks: int, directions: tuple[int, ...], dropped: bool
) -> None:
    torch.manual_seed(1)
    n_gates = functions.n_blocks * HIDDEN_DIM
    state = (*directions, N_ROWS, HIDDEN_DIM)
    shapes = [
        (N_STEPS, *directions, N_ROWS, INPUT_DIM),
        (*directions, n_gates, INPUT_DIM),
        (*directions, n_gates),
        (*directions, n_state_blocks * HIDDEN_DIM, HIDDEN_DIM),
        state,
        state,
    ]
    tensors: Any = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    drop = torch.nn.functional.dropout(torch.ones(state, dtype=torch.float64), 0.5) if dropped else None
    upstream = torch.randn(N_STEPS, *state, dtype=torch.float64)
    output, *last_state = run_recurrence(functions, *tensors, drop=drop)  # type: ignore[misc]
    expected = run_formula(formula, *tensors, drop=drop)
    assert torch.allclose(output, expected, atol=1e-12)
    assert torch.equal(last_state[0], output[-1])
    assert not any(state.requires_grad for state in last_state)
    for ours, theirs in zip(
        torch.autograd.grad(output, tensors, upstream), torch.autograd.grad(expected, tensors, upstream), strict=True
    ):
        assert torch.allclose(ours, theirs, atol=1e-12)
