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


def test_clips_bound_cell_and_output() -> None:
    torch.manual_seed(0)
    layer = ProjectedLSTM(4, 6, 3, cell_clip=0.1, projection_clip=0.05)
    layer.reset_parameters()
    with torch.no_grad():
        outputs, state = layer(10 * torch.randn(2, 20, 4), LSTMState(torch.zeros(2, 3), torch.zeros(2, 6)))
    assert state.cell.abs().max() == pytest.approx(0.1)
    assert outputs.abs().max() <= 0.05


@pytest.mark.parametrize("reverse", [False, True])
def test_padding_yields_zero_and_leaves_the_state_alone(reverse: bool) -> None:
    torch.manual_seed(0)
    layer = ProjectedLSTM(4, 6, 3, 3.0, 3.0)
    layer.reset_parameters()
    inputs, start = torch.randn(2, 5, 4), LSTMState(torch.randn(2, 3), torch.randn(2, 6))
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    with torch.no_grad():
        outputs, state = layer(inputs, start, mask, reverse)
        alone, alone_state = layer(inputs[1:, :2], LSTMState(start.hidden[1:], start.cell[1:]), None, reverse)
    assert not outputs[1, 2:].any()
    torch.testing.assert_close(outputs[1:, :2], alone)
    torch.testing.assert_close(state.hidden[1:], alone_state.hidden)
    torch.testing.assert_close(state.cell[1:], alone_state.cell)


def test_reading_in_reverse_is_reading_the_reversed_text() -> None:
    torch.manual_seed(0)
    layer = ProjectedLSTM(4, 6, 3, 3.0, 3.0)
    layer.reset_parameters()
    inputs, start = torch.randn(2, 70, 4), LSTMState(torch.zeros(2, 3), torch.zeros(2, 6))
    with torch.no_grad():
        reverse, _ = layer(inputs, start, None, True)
        flipped, _ = layer(inputs.flip(1), start)
    torch.testing.assert_close(reverse, flipped.flip(1))


def test_residual_adds_the_dropped_out_input_from_layer_1_on() -> None:
    torch.manual_seed(0)
    stack = LSTMStack(2, 6, 3, None, None, skip_connections=True, dropout=0.5).train()
    stack.reset_parameters()
    with torch.no_grad():
        second = stack.layers[1]
        assert isinstance(second, ProjectedLSTM)
        assert second.projection is not None
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
