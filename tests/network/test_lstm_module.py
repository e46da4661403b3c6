from __future__ import annotations

import pytest
import torch

from elmokit.engine.architecture import FORGET_OFFSET
from elmokit.network.lstm_module import LSTMStack, LSTMState, ProjectedLSTM


def torch_twin(layer: ProjectedLSTM) -> torch.nn.LSTM:
    """PyTorch's own projected LSTM with the same weights: blocks i, f, g, o, and the forget offset in the bias."""
    twin = torch.nn.LSTM(
        layer.input_dim, layer.hidden_dim, proj_size=layer.projection_dim, batch_first=True, dtype=layer.weight.dtype
    )

    def reordered(rows: torch.Tensor) -> torch.Tensor:
        i, g, f, o = rows.chunk(4)
        return torch.cat([i, f, g, o])

    with torch.no_grad():
        offset = torch.zeros_like(layer.bias)
        offset[2 * layer.hidden_dim : 3 * layer.hidden_dim] = FORGET_OFFSET
        twin.weight_ih_l0.copy_(reordered(layer.weight[:, : layer.input_dim]))
        twin.weight_hh_l0.copy_(reordered(layer.weight[:, layer.input_dim :]))
        twin.bias_ih_l0.copy_(reordered(layer.bias + offset))
        twin.bias_hh_l0.zero_()
        assert layer.projection is not None
        twin.weight_hr_l0.copy_(layer.projection)
    return twin


def test_without_clips_it_equals_torchs_projected_lstm() -> None:
    torch.manual_seed(0)
    layer = ProjectedLSTM(5, 8, 3, None, None).double()
    layer.reset_parameters()
    inputs = torch.randn(2, 150, 5, dtype=torch.float64)  # longer than one block of hoisted products
    hidden, cell = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 8, dtype=torch.float64)
    expected, (last_hidden, last_cell) = torch_twin(layer)(inputs, (hidden[None], cell[None]))
    with torch.no_grad():
        outputs, state = layer(inputs, LSTMState(hidden, cell))
    torch.testing.assert_close(outputs, expected.detach(), atol=1e-12, rtol=0)
    torch.testing.assert_close(state.hidden, last_hidden[0].detach(), atol=1e-12, rtol=0)
    torch.testing.assert_close(state.cell, last_cell[0].detach(), atol=1e-12, rtol=0)


def test_residual_adds_the_dropped_out_input_from_layer_1_on() -> None:
    torch.manual_seed(0)
    stack = LSTMStack(2, 6, 3, None, None, skip_connections=True, dropout=0.5).train()
    stack.reset_parameters()
    with torch.no_grad():
        second = stack.layers[1]
        assert isinstance(second, ProjectedLSTM)
        second.projection.zero_()  # the second layer's own output is now zero: what is left is the residual
        states = [LSTMState(torch.zeros(4, 3), torch.zeros(4, 6)) for _ in range(2)]
        outputs, _ = stack(torch.randn(4, 50, 3), states)
    ratio = outputs[1] / outputs[0]
    dropped = ratio == 0
    assert torch.allclose(ratio[~dropped], torch.tensor(2.0))
    assert 0.3 < dropped.float().mean() < 0.7


@pytest.mark.parametrize(("dim", "state_dim", "rows"), [(5, 3, 2), (3, 5, 2), (3, 3, 4)])
def test_sizes_that_do_not_fit_are_an_error_with_every_backend(dim: int, state_dim: int, rows: int) -> None:
    stack = LSTMStack(2, 6, 3, None, None, True, 0.0).eval()
    stack.reset_parameters()
    states = [LSTMState(torch.zeros(rows, state_dim), torch.zeros(rows, 6))] * 2
    with torch.no_grad(), pytest.raises(RuntimeError):
        stack(torch.randn(2, 7, dim), states)
