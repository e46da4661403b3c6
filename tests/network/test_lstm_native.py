"""The operator and the engine equal the reference for random sizes, masks, clips, layers, directions and states."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elmokit.engine.interface import NetworkInput
from elmokit.engine.lstm import LSTM
from elmokit.engine.precision import NAMES, VARIABLE, Precision
from elmokit.engine.state import State
from elmokit.network.lstm_module import LSTMStack, LSTMState, ProjectedLSTM
from tests.helpers import rounding
from tests.helpers.engine_lstm import lstm_config
from tests.helpers.instruction_sets import machine_library
from tests.helpers.rounding import Digits, Rounded, assert_rounded

CLIPS = st.sampled_from([None, 0.1, 0.5, 3.0])
IN_ALL_PRECISIONS = pytest.mark.parametrize("precision", NAMES)


def use(monkeypatch: pytest.MonkeyPatch, precision: Precision) -> None:
    machine_library()
    monkeypatch.setenv(VARIABLE, precision)


def random_stack(n_layers: int, hidden: int, projection: int, clips: tuple[float | None, float | None]) -> LSTMStack:
    stack = LSTMStack(n_layers, hidden, projection, *clips, skip_connections=True, dropout=0.1).eval()
    stack.reset_parameters()
    return stack


def exact_stack(
    stack: LSTMStack, inputs: torch.Tensor, states: list[LSTMState], mask: torch.Tensor, reverse: bool, digits: Digits
) -> list[Rounded]:
    """The outputs of a stack and its states after the last step, as ``stack`` returns both."""
    outputs, after = [], []
    values = Rounded.exact(inputs)
    if reverse:
        values, mask = values.rearranged(lambda tensor: tensor.flip(1)), mask.flip(1)
    for index, (layer, state) in enumerate(zip(stack.layers, states, strict=True)):
        assert isinstance(layer, ProjectedLSTM)
        run = rounding.lstm(layer, values, state, mask, digits)
        values = (run.outputs + values if index else run.outputs).masked(mask)
        outputs.append(values.rearranged(lambda tensor: tensor.flip(1)) if reverse else values)
        after += [run.hidden, run.cell]
    return outputs + after


def random_states(n_layers: int, n_rows: int, hidden: int, projection: int) -> list[LSTMState]:
    return [LSTMState(0.3 * torch.randn(n_rows, projection), torch.randn(n_rows, hidden)) for _ in range(n_layers)]


def run_engine(
    stack: LSTMStack,
    inputs: torch.Tensor,
    states: list[LSTMState],
    lengths: torch.Tensor,
    reverse: bool,
    precision: Precision,
) -> list[torch.Tensor]:
    """Compute a padded batch as ``stack`` does, by the engine in a precision."""
    first = stack.layers[0]
    assert isinstance(first, ProjectedLSTM)
    n_rows, n_steps, dim = inputs.shape
    clips = first.cell_clip, first.projection_clip
    config = lstm_config(first.hidden_dim, dim, len(stack.layers), clips, bidirectional=True)
    arrays = {
        f"directions.{direction}.{name}": tensor.detach().numpy()
        for direction in range(2)
        for name, tensor in stack.named_parameters()
    }
    start = State.zero(config, n_rows)
    for number, state in enumerate(states):
        start.hidden[:, number], start.cell[:, number] = state.hidden.numpy(), state.cell.numpy()
    words = np.concatenate([np.arange(length) + row * n_steps for row, length in enumerate(lengths.tolist())])
    batch = NetworkInput(inputs.reshape(-1, dim).numpy(), words.astype(np.int64), lengths.numpy(), start)
    wanted = range(1, len(stack.layers) + 1)
    layers, after = LSTM(config, arrays, precision, machine_library()).direction(int(reverse), batch, wanted)
    padded = torch.zeros(len(stack.layers), n_rows, n_steps, dim)
    for row, found in enumerate(layers):
        padded[:, row, : len(found[0])] = torch.from_numpy(found)
    parts = zip(after.hidden[int(reverse)], after.cell[int(reverse)], strict=True)
    return [*padded, *(torch.from_numpy(part) for state in parts for part in state)]


class Case(NamedTuple):
    """Sizes and settings of a batch, and the seed of its numbers."""

    n_rows: int
    n_steps: int
    n_layers: int
    projection: int
    extra: int
    clips: tuple[float | None, float | None]
    reverse: bool
    seed: int

    def draw(self) -> tuple[LSTMStack, Tensor, list[LSTMState]]:
        """Return a stack, its inputs and the states of its layers."""
        torch.manual_seed(self.seed)
        hidden = self.projection + self.extra
        stack = random_stack(self.n_layers, hidden, self.projection, self.clips)
        states = random_states(self.n_layers, self.n_rows, hidden, self.projection)
        return stack, torch.randn(self.n_rows, self.n_steps, self.projection), states


SIZES = (15, 9, 3, 40)  # at most, of rows, steps, layers and outputs
CASES = st.builds(
    Case,
    *(st.integers(1, most) for most in SIZES),
    extra=st.integers(0, 50),
    clips=st.tuples(CLIPS, CLIPS),
    reverse=st.booleans(),
    seed=st.integers(0, 10_000),
)


@IN_ALL_PRECISIONS
def test_every_precision_equals_the_reference(precision: Precision) -> None:
    @settings(max_examples=10)  # for each precision
    @given(case=CASES)
    def check(case: Case) -> None:
        stack, inputs, states = case.draw()
        lengths = torch.randint(0, case.n_steps + 1, (case.n_rows,))
        mask = torch.arange(case.n_steps) < lengths[:, None]
        found = run_engine(stack, inputs, states, lengths, case.reverse, precision)
        for one, exact in zip(found, exact_stack(stack, inputs, states, mask, case.reverse, precision), strict=True):
            assert_rounded(one, exact)
        if precision == "float32":
            with torch.no_grad():
                outputs, after = stack(inputs, states, mask, case.reverse)
            for one, other in zip([*outputs, *(part for state in after for part in state)], found, strict=True):
                assert torch.equal(one, other)

    check()


@settings(max_examples=20)
@given(case=CASES, density=st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_any_mask_equals_the_reference(case: Case, density: float) -> None:
    stack, inputs, states = case.draw()
    mask = torch.rand(case.n_rows, case.n_steps) < density
    exact = exact_stack(stack, inputs, states, mask, case.reverse, "float32")
    for backend in ("auto", "reference"):
        with pytest.MonkeyPatch.context() as patch, torch.no_grad():
            patch.setenv(VARIABLE, backend)
            outputs, after = stack(inputs, states, mask, case.reverse)
        for one, expected in zip([*outputs, *(part for state in after for part in state)], exact, strict=True):
            assert_rounded(one, expected)


# With 9 rows, the C functions compute the input products of several steps together, 256 tokens at a time.
@pytest.mark.parametrize(("n_rows", "dim"), [(40, 24), (9, 96)])
def test_a_long_batch_equals_the_reference(n_rows: int, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "float32")
    torch.manual_seed(0)
    stack, states = random_stack(2, 4 * dim, dim, (3.0, 3.0)), random_states(2, n_rows, 4 * dim, dim)
    inputs, lengths = torch.randn(n_rows, 70, dim), torch.randint(0, 71, (n_rows,))
    mask = torch.arange(70) < lengths[:, None]
    with torch.no_grad():
        fast, fast_states = stack(inputs, states, mask, True)
        monkeypatch.setenv(VARIABLE, "reference")
        reference, reference_states = stack(inputs, states, mask, True)
    torch.testing.assert_close(fast, reference, atol=1e-5, rtol=0)
    torch.testing.assert_close([*fast_states], [*reference_states], atol=1e-5, rtol=0)


def test_nan_stays_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "float32")
    stack, states = random_stack(1, 20, 4, (3.0, 3.0)), random_states(1, 2, 20, 4)
    inputs = torch.zeros(2, 3, 4)
    inputs[1, 1, 0] = torch.nan
    with torch.no_grad():
        outputs, _ = stack(inputs, states)
    assert not outputs[0][0].isnan().any()
    assert not outputs[0][1, 0].isnan().any()
    assert outputs[0][1, 1:].isnan().all()


def test_an_empty_batch_keeps_the_states() -> None:
    stack = random_stack(2, 6, 3, (None, None))
    for n_rows, n_steps in ((0, 3), (2, 0)):
        states = random_states(2, n_rows, 6, 3)
        with torch.no_grad():
            outputs, after = stack(torch.zeros(n_rows, n_steps, 3), states)
        assert outputs[1].shape == (n_rows, n_steps, 3)
        torch.testing.assert_close([*after], [*states], atol=0, rtol=0)


def test_masks_do_not_hide_gradients_and_dropout() -> None:
    stack, states, inputs = random_stack(1, 6, 3, (None, None)), random_states(1, 2, 6, 3), torch.randn(2, 4, 3)
    outputs, _ = stack(inputs, states, torch.ones(2, 4, dtype=torch.bool))
    assert outputs[0].requires_grad
    with torch.no_grad():
        assert (stack.train()(inputs, states)[0][0] != stack.train()(inputs, states)[0][0]).any()
