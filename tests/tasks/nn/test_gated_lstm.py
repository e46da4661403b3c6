"""The highway LSTM and the coupled LSTM: their formulas, their fast path, their start."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from elmokit.tasks.nn.gated_lstm import AlternatingLSTM, CoupledLSTM, CoupledLSTMStack, HighwayLSTM

MASK = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] + [False] * 4])


def test_one_step_follows_the_formula() -> None:
    layer = HighwayLSTM(3, 2, dropout=0.0, input_bias=True, reverse=False).double()
    inputs = torch.randn(1, 2, 3, dtype=torch.float64)
    outputs = layer(inputs, torch.ones(1, 2, dtype=torch.bool))[0].detach().numpy()
    names = ("input_weight", "input_bias", "state_weight", "state_bias")
    input_weight, input_bias, state_weight, state_bias = (getattr(layer, name).detach().numpy() for name in names)
    hidden = cell = np.zeros(2)
    for step, x in enumerate(inputs[0].numpy()):
        from_input = (input_weight @ x + input_bias).reshape(6, 2)
        i, f, g, o, r = from_input[:5] + (state_weight @ hidden + state_bias).reshape(5, 2)
        i, f, o, r = (1 / (1 + np.exp(-gate)) for gate in (i, f, o, r))
        cell = i * np.tanh(g) + f * cell
        hidden = r * o * np.tanh(cell) + (1 - r) * from_input[5]
        assert np.allclose(outputs[step], hidden)


def test_a_backward_layer_reads_the_sentence_turned_around() -> None:
    layer = HighwayLSTM(3, 2, dropout=0.0, input_bias=True, reverse=False)
    turned = HighwayLSTM(3, 2, dropout=0.0, input_bias=True, reverse=True)
    turned.load_state_dict(layer.state_dict())
    inputs, mask = torch.randn(2, 4, 3), torch.ones(2, 4, dtype=torch.bool)
    assert torch.allclose(turned(inputs, mask), layer(inputs.flip(1), mask).flip(1), atol=1e-6)


@pytest.mark.parametrize(
    "stack", [AlternatingLSTM(3, 4, n_layers=3, dropout=0.1), CoupledLSTMStack(3, 4, n_layers=3, dropout=0.0)]
)
def test_padding_changes_nothing(stack: AlternatingLSTM | CoupledLSTMStack) -> None:
    stack.eval()
    inputs = torch.randn(3, 5, 3)
    batched = stack(inputs, MASK)
    alone = stack(inputs[1:2, :3], MASK[1:2, :3])
    assert torch.allclose(batched[1, :3], alone[0], atol=1e-6)
    assert not batched[1, 3:].any()


def assert_gates_are_orthonormal(weight: Tensor) -> None:
    for gate in weight.detach().split(4):
        assert torch.allclose(gate @ gate.t(), torch.eye(4), atol=1e-5)


def test_gates_start_orthonormal_and_a_highway_lstm_with_an_open_forget_gate() -> None:
    layer = HighwayLSTM(4, 4, dropout=0.0, input_bias=True, reverse=False)
    assert_gates_are_orthonormal(layer.input_weight)
    assert_gates_are_orthonormal(layer.state_weight)
    assert layer.state_bias.tolist() == [0] * 4 + [1] * 4 + [0] * 12
    coupled = CoupledLSTM(3, 4, dropout=0.0)
    for direction in range(2):  # each gate over input and state
        weights = [coupled.input_weight[direction], coupled.state_weight[direction]]
        assert_gates_are_orthonormal(torch.cat(weights, dim=1))
    assert not coupled.bias.any()
    assert coupled.first_hidden.any()


def test_dropout_falls_on_the_state_that_is_fed_back_not_on_the_output() -> None:
    highway = HighwayLSTM(3, 50, dropout=0.5, input_bias=True, reverse=False)
    inputs, mask = torch.randn(1, 3, 3), torch.ones(1, 3, dtype=torch.bool)
    for layer in (highway, CoupledLSTM(3, 50, dropout=0.5)):
        dropped, whole = layer.train()(inputs, mask), layer.eval()(inputs, mask)
        assert not torch.allclose(dropped[:, 1], whole[:, 1])
        assert (dropped != 0).all()
        if layer is highway:
            assert torch.allclose(dropped[:, 0], whole[:, 0])  # the first step feeds nothing back


@pytest.mark.slow
def test_the_published_sizes_have_the_published_number_of_weights() -> None:
    baseline, with_elmo = AlternatingLSTM(200, 300, 8, 0.1), AlternatingLSTM(1124, 300, 8, 0.1, input_bias=False)
    assert sum(p.numel() for p in baseline.parameters()) == pytest.approx(7.75e6, rel=5e-3)
    assert sum(p.numel() for p in with_elmo.parameters()) == pytest.approx(9.40e6, rel=5e-3)


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
