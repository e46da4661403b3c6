"""Recurrent layers on padded batches equal those on each row alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from elmokit.tasks.nn.layers import init_glorot_orthogonal, run_packed


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_padded_row_is_read_as_if_it_were_alone(kind: type[nn.LSTM] | type[nn.GRU]) -> None:
    torch.manual_seed(0)
    rnn = kind(3, 4, num_layers=2, batch_first=True, bidirectional=True)
    inputs, lengths = torch.randn(3, 5, 3), [2, 5, 1]
    mask = torch.arange(5)[None, :] < torch.tensor(lengths)[:, None]
    outputs = run_packed(rnn, inputs, mask)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(outputs[row, :length], rnn(inputs[row : row + 1, :length])[0][0])
        assert not outputs[row, length:].any()


def test_an_empty_row_gives_zeros() -> None:
    rnn = nn.LSTM(3, 4, batch_first=True)
    mask = torch.tensor([[False, False], [True, False]])
    outputs = run_packed(rnn, torch.randn(2, 2, 3), mask)
    assert not outputs[0].any()
    assert outputs[1, 0].any()


def test_glorot_and_orthogonal_start() -> None:
    torch.manual_seed(0)
    part = nn.ModuleList([nn.Linear(5, 7), nn.LSTM(3, 4, bidirectional=True)])
    init_glorot_orthogonal(part)
    linear, lstm = part
    assert isinstance(linear, nn.Linear)
    assert not linear.bias.any()
    assert linear.weight.abs().max() <= (6 / 12) ** 0.5
    for name, weight in lstm.named_parameters():
        if name.startswith("weight_hh"):
            torch.testing.assert_close(weight.T @ weight, torch.eye(4), atol=1e-5, rtol=0)
        if name.startswith("bias"):
            assert weight.tolist() == [0.0] * 4 + [float("ih" in name)] * 4 + [0.0] * 8
