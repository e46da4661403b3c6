"""The highway LSTM: its formulas, its fast path, its start."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from elmokit.tasks.nn.gated_lstm import AlternatingLSTM, HighwayLSTM

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


def test_padding_changes_nothing() -> None:
    stack = AlternatingLSTM(3, 4, n_layers=3, dropout=0.1).eval()
    inputs = torch.randn(3, 5, 3)
    batched = stack(inputs, MASK)
    alone = stack(inputs[1:2, :3], MASK[1:2, :3])
    assert torch.allclose(batched[1, :3], alone[0], atol=1e-6)


def test_it_starts_orthogonal_with_an_open_forget_gate() -> None:
    layer = HighwayLSTM(4, 4, dropout=0.0, input_bias=True, reverse=False)
    for weight in (layer.input_weight, layer.state_weight):
        for block in weight.detach().split(4):
            assert torch.allclose(block @ block.t(), torch.eye(4), atol=1e-5)
    assert layer.state_bias.tolist() == [0] * 4 + [1] * 4 + [0] * 12


def test_dropout_falls_on_the_state_not_on_the_output() -> None:
    layer = HighwayLSTM(3, 50, dropout=0.5, input_bias=True, reverse=False).train()
    mask = torch.ones(1, 2, dtype=torch.bool)
    inputs = torch.randn(1, 2, 3)
    dropped, whole = layer(inputs, mask), layer.eval()(inputs, mask)
    assert torch.allclose(dropped[:, 0], whole[:, 0])  # the first step feeds nothing back
    assert not torch.allclose(dropped[:, 1], whole[:, 1])
    assert (dropped != 0).all()


@pytest.mark.slow
def test_the_published_sizes_have_the_published_number_of_weights() -> None:
    baseline, with_elmo = AlternatingLSTM(200, 300, 8, 0.1), AlternatingLSTM(1124, 300, 8, 0.1, input_bias=False)
    assert sum(p.numel() for p in baseline.parameters()) == pytest.approx(7.75e6, rel=5e-3)
    assert sum(p.numel() for p in with_elmo.parameters()) == pytest.approx(9.40e6, rel=5e-3)
