from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elmokit.network.lstm_module import LSTMStack, LSTMState, ProjectedLSTM
from elmokit.network.lstm_training import reorder, reversed_positions
from elmokit.network.operators import LSTMWeights, lstm_formulas, run_lstm
from tests.helpers import rounding
from tests.helpers.rounding import Rounded, assert_rounded

CLIPS = st.sampled_from([None, 0.1, 0.5])


def exact_stack(
    stack: LSTMStack, inputs: Tensor, states: list[LSTMState], mask: Tensor, reverse: bool, upstream: Tensor
) -> list[Rounded]:
    """The outputs and states of a stack, and the gradients of its inputs and parameters.

    Args:
        stack: Its dropout is off.
        inputs: ``(batch, time, dim)``.
        states: Of each layer.
        mask: ``(batch, time)``, padded on the right.
        reverse: As in ``LSTMStack``.
        upstream: ``(layers, batch, time, dim)``: the gradient of the outputs.
    """

    def reordered(values: Rounded) -> Rounded:
        return values.rearranged(lambda tensor: reorder(tensor, reversed_positions(mask))) if reverse else values

    values, outputs, after, runs = reordered(Rounded.exact(inputs)), [], [], []
    layers = [layer for layer in stack.layers if isinstance(layer, ProjectedLSTM)]
    for layer, state in zip(layers, states, strict=True):
        run = rounding.lstm(layer, values, state, mask)
        values = (run.outputs + values).masked(mask) if stack.skip_connections and runs else run.outputs
        runs.append(run)
        outputs.append(reordered(values))
        after += [run.hidden, run.cell]
    to_parameters: list[Rounded] = []
    to_values = values.zeros()
    for index in reversed(range(len(layers))):
        to_outputs = to_values + reordered(Rounded.exact(upstream[index])).masked(mask)
        to_values, *gradients = rounding.lstm_gradients(layers[index], runs[index], to_outputs)
        if stack.skip_connections and index > 0:
            to_values = to_values + to_outputs
        to_parameters = gradients + to_parameters
    return [*outputs, *after, reordered(to_values), *to_parameters]


@settings(max_examples=40)
@given(
    n_rows=st.integers(1, 4),
    n_steps=st.integers(1, 7),
    input_dim=st.integers(1, 6),
    projection_dim=st.integers(1, 5),
    extra=st.integers(0, 30),
    cell_clip=CLIPS,
    projection_clip=CLIPS,
    seed=st.integers(0, 1000),
    precision=st.sampled_from([torch.float64, torch.float32]),  # the elementwise part is native in float32
)
def test_a_window_equals_the_reference_in_values_and_gradients(
    n_rows: int,
    n_steps: int,
    input_dim: int,
    projection_dim: int,
    extra: int,
    cell_clip: float | None,
    projection_clip: float | None,
    seed: int,
    precision: torch.dtype,
) -> None:
    torch.manual_seed(seed)
    layer = ProjectedLSTM(input_dim, projection_dim + extra, projection_dim, cell_clip, projection_clip).to(precision)
    layer.reset_parameters()
    inputs = torch.randn(n_rows, n_steps, input_dim, dtype=precision, requires_grad=True)
    start = LSTMState(
        0.1 * torch.randn(n_rows, projection_dim, dtype=precision),
        0.1 * torch.randn(n_rows, projection_dim + extra, dtype=precision),
    )
    upstream = torch.randn(n_rows, n_steps, projection_dim, dtype=precision)
    wanted = [inputs, *layer.parameters()]

    fast, fast_state = layer(inputs, start)
    everywhere = torch.ones(n_rows, n_steps, dtype=torch.bool)
    reference, *reference_state = lstm_formulas(inputs, *start, layer.weights, None, reverse=False)

    exact = rounding.lstm(layer, Rounded.exact(inputs), start, everywhere)
    gradients = rounding.lstm_gradients(layer, exact, Rounded.exact(upstream))
    for outputs, state in ((fast, fast_state), (reference, reference_state)):
        found = [outputs, *state, *torch.autograd.grad((outputs * upstream).sum(), wanted)]
        for one, expected in zip(found, [exact.outputs, exact.hidden, exact.cell, *gradients], strict=True):
            assert_rounded(one, expected)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 7), min_size=1, max_size=4),
    reverse=st.booleans(),
    extra=st.sampled_from([0, 5]),
    cell_clip=CLIPS,
    projection_clip=CLIPS,
    skip_connections=st.booleans(),
    seed=st.integers(0, 1000),
    precision=st.sampled_from([torch.float64, torch.float32]),
)
def test_a_padded_batch_equals_the_reference_in_values_states_and_gradients(
    lengths: list[int],
    reverse: bool,
    extra: int,
    cell_clip: float | None,
    projection_clip: float | None,
    skip_connections: bool,
    seed: int,
    precision: torch.dtype,
) -> None:
    torch.manual_seed(seed)
    stack = LSTMStack(3, 4 + extra, 4, cell_clip, projection_clip, skip_connections, dropout=0.5).to(precision).eval()
    stack.reset_parameters()
    mask = torch.arange(max(lengths) + 1) < torch.tensor(lengths)[:, None]
    inputs = torch.randn(*mask.shape, 4, dtype=precision, requires_grad=True)
    states = [
        LSTMState(*(0.1 * torch.randn(len(mask), size, dtype=precision) for size in (4, 4 + extra))) for _ in range(3)
    ]
    upstream = torch.randn(3, *mask.shape, 4, dtype=precision)
    wanted = [inputs, *stack.parameters()]
    exact = exact_stack(stack, inputs, states, mask, reverse, upstream)
    for backend in ("auto", "reference"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ELMOKIT_BACKEND", backend)
            outputs, after = stack(inputs, states, mask, reverse)
        gradients = torch.autograd.grad((torch.stack(outputs) * upstream).sum(), wanted)
        found = [*outputs, *(part for state in after for part in state), *gradients]
        for one, expected in zip(found, exact, strict=True):
            assert_rounded(one, expected)
        assert not gradients[0][~mask].any()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("projects", [False, True])
def test_gradients_equal_finite_differences(projects: bool, reverse: bool) -> None:
    torch.manual_seed(0)
    dim, hidden_dim = 2 if projects else 3, 3
    sizes = [(3, 4, dim), (3, dim), (3, hidden_dim), (4 * hidden_dim, 2 * dim), (4 * hidden_dim,)]
    tensors = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    if projects:
        tensors.append(torch.randn(dim, hidden_dim, dtype=torch.float64, requires_grad=True))
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]]).bool()  # with a gap, which keeps the state

    def run(inputs: Tensor, hidden: Tensor, cell: Tensor, weight: Tensor, bias: Tensor, *projection: Tensor) -> object:
        weights = LSTMWeights(weight, bias, projection[0] if projection else None, 1.5, 0.9)
        return run_lstm(inputs, hidden, cell, weights, mask, reverse, adds_inputs=True)

    assert torch.autograd.gradcheck(run, tensors)


def test_a_state_that_requires_a_gradient_gets_one() -> None:
    layer = ProjectedLSTM(2, 3, 2, None, None)
    layer.reset_parameters(torch.Generator().manual_seed(0))
    start = LSTMState(torch.zeros(1, 2, requires_grad=True), torch.ones(1, 3))
    layer(torch.ones(1, 3, 2), start)[0].sum().backward()
    assert start.hidden.grad.any()


@pytest.mark.parametrize("extra", [0, 5])
def test_autocast_rounds_only_the_products(extra: int) -> None:
    torch.manual_seed(0)
    layer = ProjectedLSTM(8, 16 + extra, 16, 0.5, 0.5)
    layer.reset_parameters()
    start = LSTMState(torch.zeros(3, 16), torch.zeros(3, 16 + extra))
    inputs = torch.randn(3, 6, 8, requires_grad=True)
    upstream = torch.randn(3, 6, 16)
    wanted = [inputs, *layer.parameters()]
    exact, _ = layer(inputs, start)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, state = layer(inputs, start)
    assert rounded.dtype == state.cell.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 0.02
    exact_gradients = torch.autograd.grad((exact * upstream).sum(), wanted)
    for ours, theirs in zip(torch.autograd.grad((rounded * upstream).sum(), wanted), exact_gradients, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.05 * theirs.norm()


def test_a_backward_pass_inside_autocast_stays_exact() -> None:
    torch.manual_seed(0)
    layer = ProjectedLSTM(4, 12, 4, 0.5, 0.5)
    layer.reset_parameters()
    start = LSTMState(torch.zeros(2, 4), torch.zeros(2, 12))
    outputs, _ = layer(torch.randn(2, 5, 4), start)
    exact = torch.autograd.grad(outputs.sum(), [*layer.parameters()], retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        inside = torch.autograd.grad(outputs.sum(), [*layer.parameters()])
    for ours, theirs in zip(inside, exact, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("sizes", [(4, 3), (4, 40), (3, 12), (9, 12)])
def test_a_state_of_wrong_size_is_an_error(sizes: tuple[int, int]) -> None:
    layer = ProjectedLSTM(4, 12, 4, None, None)
    start = LSTMState(torch.zeros(2, sizes[0]), torch.zeros(2, sizes[1]))
    with pytest.raises(RuntimeError, match="size"):
        layer(torch.randn(2, 5, 4), start)


def test_a_gradient_of_a_gradient_is_an_error() -> None:
    layer = ProjectedLSTM(2, 3, 2, None, None)
    layer.reset_parameters()
    inputs = torch.ones(1, 3, 2, requires_grad=True)
    outputs, _ = layer(inputs, LSTMState(torch.zeros(1, 2), torch.zeros(1, 3)))
    (gradient,) = torch.autograd.grad(outputs.square().sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        gradient.sum().backward()
