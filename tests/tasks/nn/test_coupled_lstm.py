"""The coupled LSTM: its formulas, its fast path, its start."""

from __future__ import annotations

import numpy as np
import torch

from elmokit.tasks.nn.gated_lstm import (
    CoupledLSTM,
    CoupledLSTMStack,
)

MASK = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4])


def test_two_steps_follow_the_formula() -> None:
    torch.manual_seed(1)
    layer = CoupledLSTM(3, 2, dropout=0.0).double()
    torch.nn.init.normal_(layer.bias)
    inputs = torch.randn(1, 2, 3, dtype=torch.float64)
    outputs = layer(inputs, torch.ones(1, 2, dtype=torch.bool))[0].detach().numpy()
    weight = {name: value.detach().numpy() for name, value in layer.named_parameters()}
    for direction, order in ((0, (0, 1)), (1, (1, 0))):
        hidden, cell = weight["first_hidden"][direction], weight["first_cell"][direction]
        for step in order:
            gates = weight["input_weight"][direction] @ inputs[0, step].numpy() + weight["bias"][direction]
            i, j, o = (gates + weight["state_weight"][direction] @ hidden).reshape(3, 2)
            i, o = 1 / (1 + np.exp(-i)), 1 / (1 + np.exp(-o))
            cell = (1 - i) * cell + i * np.tanh(j)
            hidden = np.tanh(cell) * o
            assert np.allclose(outputs[step, 2 * direction : 2 * direction + 2], hidden)


def test_padding_changes_nothing() -> None:
    stack = CoupledLSTMStack(3, 4, n_layers=3, dropout=0.4).eval()
    inputs = torch.randn(3, 5, 3)
    batched, alone = stack(inputs, MASK), stack(inputs[1:2, :3], MASK[1:2, :3])
    assert torch.allclose(batched[1, :3], alone[0], atol=1e-6)
    assert not batched[~MASK].any()


def test_each_gate_starts_orthonormal_over_input_and_state() -> None:
    layer = CoupledLSTM(3, 4, dropout=0.0)
    for direction in range(2):
        whole = torch.cat([layer.input_weight[direction], layer.state_weight[direction]], dim=1).detach()
        for block in whole.split(4):
            assert torch.allclose(block @ block.t(), torch.eye(4), atol=1e-5)
    assert not layer.bias.any()
    assert layer.first_hidden.any()


def test_the_upper_layers_gate_between_their_output_and_input() -> None:
    stack = CoupledLSTMStack(3, 4, n_layers=2, dropout=0.0)
    inputs = torch.randn(3, 5, 3)
    below = stack.layers[0](inputs, MASK)
    with torch.no_grad():
        stack.gates[0].weight.zero_()
        stack.gates[0].bias.fill_(-30.0)
    assert torch.allclose(stack(inputs, MASK), below, atol=1e-6)
    with torch.no_grad():
        stack.gates[0].bias.fill_(30.0)
    assert torch.allclose(stack(inputs, MASK), stack.layers[1](below, MASK), atol=1e-6)


def test_dropout_falls_on_the_state_that_is_fed_back() -> None:
    layer = CoupledLSTM(3, 50, dropout=0.5).train()
    inputs, mask = torch.randn(1, 3, 3), torch.ones(1, 3, dtype=torch.bool)
    assert not torch.allclose(layer(inputs, mask), layer.eval()(inputs, mask))
    assert (layer.train()(inputs, mask) != 0).all()
