"""Every backend equals the reference for random sizes, masks, clips, layers, directions and states."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.engine.precision import VARIABLE, Backend
from elmokit.network import backends, lstm_inference
from elmokit.network.lstm_inference import inference_step, token_order
from elmokit.network.lstm_module import LSTMStack, LSTMState, ProjectedLSTM
from tests.helpers import rounding
from tests.helpers.rounding import Digits, Rounded, assert_rounded

EXACT: tuple[Backend, ...] = ("native", "torch")
LOWER: dict[Backend, Digits] = {
    "native-bfloat16": "bfloat16",
    "native-int8": "int8",
    "native-int7": "int7",
    "torch-bfloat16": "bfloat16",
}
CLIPS = st.sampled_from([None, 0.1, 0.5, 3.0])


def use(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> None:
    if not backends.is_available(backend):
        pytest.skip(f"this machine lacks {backend}")
    monkeypatch.setenv(VARIABLE, "float32")
    monkeypatch.setitem(backends.ON_CPU, "float32", (backend,))


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


@pytest.mark.parametrize("backend", [*EXACT, *LOWER])
def test_every_backend_equals_the_reference(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, backend)

    @settings(max_examples=10)  # for each case
    @given(
        n_rows=st.integers(1, 15),
        n_steps=st.integers(1, 9),
        n_layers=st.integers(1, 3),
        projection=st.integers(1, 40),
        extra=st.integers(0, 50),
        clips=st.tuples(CLIPS, CLIPS),
        reverse=st.booleans(),
        density=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
        at_once=st.sampled_from([1, 20, 256]),
        seed=st.integers(0, 10_000),
    )
    def check(
        n_rows: int,
        n_steps: int,
        n_layers: int,
        projection: int,
        extra: int,
        clips: tuple[float | None, float | None],
        reverse: bool,
        density: float,
        at_once: int,
        seed: int,
    ) -> None:
        torch.manual_seed(seed)
        stack = random_stack(n_layers, projection + extra, projection, clips)
        states = random_states(n_layers, n_rows, projection + extra, projection)
        inputs, mask = torch.randn(n_rows, n_steps, projection), torch.rand(n_rows, n_steps) < density
        with pytest.MonkeyPatch.context() as patch, torch.no_grad():
            patch.setattr(lstm_inference, "MAX_CHUNK_ROWS", at_once)
            fast, fast_states = stack(inputs, states, mask, reverse)
            patch.setenv(VARIABLE, "reference")
            reference, reference_states = stack(inputs, states, mask, reverse)
        for (results, after), digits in (
            ((fast, fast_states), LOWER.get(backend, "float32")),
            ((reference, reference_states), "float32"),
        ):
            found = [*results, *(part for state in after for part in state)]
            for one, exact in zip(found, exact_stack(stack, inputs, states, mask, reverse, digits), strict=True):
                assert_rounded(one, exact)

    check()


@pytest.mark.parametrize("backend", EXACT)
# With 9 rows, the C functions compute the input products of several steps together, 256 tokens at a time.
@pytest.mark.parametrize(("n_rows", "dim"), [(40, 24), (9, 96)])
def test_a_long_batch_equals_the_reference(
    backend: Backend, n_rows: int, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, backend)
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


@pytest.mark.parametrize("backend", ["native", "native-bfloat16", "native-int8", "native-int7"])
def test_the_bits_of_a_row_do_not_depend_on_the_other_rows(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, backend)
    torch.manual_seed(0)
    stack, states = random_stack(2, 300, 40, (3.0, 3.0)), random_states(2, 9, 300, 40)
    inputs = torch.randn(9, 5, 40) * torch.arange(1, 10).view(-1, 1, 1)
    with torch.no_grad():
        together, _ = stack(inputs, states)
        for row in range(9):
            alone, _ = stack(inputs[row : row + 1], [LSTMState(*(part[row : row + 1] for part in s)) for s in states])
            assert torch.equal(together[-1][row], alone[-1][0])


def test_nan_stays_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "native")
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


@given(n_rows=st.integers(1, 6), n_steps=st.integers(0, 7), reverse=st.booleans(), seed=st.integers(0, 1000))
def test_packed_order_visits_each_real_token_once_in_the_order_of_its_row(
    n_rows: int, n_steps: int, reverse: bool, seed: int
) -> None:
    mask = torch.rand(n_rows, n_steps, generator=torch.Generator().manual_seed(seed)) < 0.6
    order = token_order(mask, reverse)
    assert sorted(order.positions.tolist()) == mask.flatten().nonzero()[:, 0].tolist()
    assert order.batch_sizes == sorted(order.batch_sizes, reverse=True)
    read: dict[int, list[int]] = {row: [] for row in range(n_rows)}
    for place in order.positions.tolist():
        read[place // n_steps].append(place % n_steps)
    for row, positions in read.items():
        expected = mask[row].nonzero()[:, 0].tolist()
        assert positions == (expected[::-1] if reverse else expected)
    for rank, last in enumerate(order.last.tolist()):
        row = order.rows[rank].item()
        assert order.positions[last].item() == row * n_steps + read[int(row)][-1]


@settings(max_examples=25)
@given(n_rows=st.integers(1, 5), hidden=st.integers(1, 40), clip=CLIPS, seed=st.integers(0, 1000))
def test_a_step_equals_the_formulas(n_rows: int, hidden: int, clip: float | None, seed: int) -> None:
    torch.manual_seed(seed)
    first, second, cell = (
        8 * torch.randn(n_rows, 4 * hidden),
        torch.randn(n_rows, 4 * hidden),
        torch.randn(n_rows, hidden),
    )
    gates = Rounded.exact(first) + Rounded.exact(second)
    i, g, f, o = (gates.rearranged(lambda tensor, k=k: tensor.chunk(4, dim=1)[k]) for k in range(4))
    exact_cell = (f.sigmoid() * Rounded.exact(cell) + i.sigmoid() * g.tanh()).clip(clip)
    bound = float("inf") if clip is None else clip
    new_cell, unprojected = cell.clone(), torch.empty_like(cell)
    inference_step(first, second, new_cell, unprojected, bound)
    assert_rounded(new_cell, exact_cell)
    assert_rounded(unprojected, o.sigmoid() * exact_cell.tanh())


def test_gradients_and_dropout_use_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "int8")
    stack, states, inputs = random_stack(1, 6, 3, (None, None)), random_states(1, 2, 6, 3), torch.randn(2, 4, 3)
    outputs, _ = stack(inputs, states, torch.ones(2, 4, dtype=torch.bool))
    assert outputs[0].requires_grad
    with torch.no_grad():
        assert (stack.train()(inputs, states)[0][0] != stack.train()(inputs, states)[0][0]).any()
