"""The kernels of every instruction set and precision: products, layers, and rows that do not depend on each other.

``emulated`` has plain C in place of the special instructions and runs everywhere.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.engine import compiler, instruction_sets, softmax
from elmokit.engine.architecture import BiLMConfig
from elmokit.engine.interface import NetworkInput
from elmokit.engine.library import Library, choose_kernels
from elmokit.engine.lstm import LSTM
from elmokit.engine.precision import NAMES, PRECISIONS, Precision
from elmokit.engine.softmax import Matrix
from elmokit.engine.state import State
from elmokit.errors import ConfigError
from tests.helpers.engine_lstm import (
    LARGE_LAYERS,
    WIDENED_LAYERS,
    lstm_config,
    one_layer,
    random_lstm,
    run_rows,
)
from tests.helpers.instruction_sets import build, lacking_sets, most_precise, one_per_set, rounds_inputs
from tests.helpers.rounding import FUNCTION_UNITS, Rounded, assert_rounded


@pytest.mark.parametrize("name", lacking_sets())
def test_a_set_is_left_out_of_all_tests_where_the_processor_lacks_it(name: str) -> None:
    pytest.skip(f"this processor lacks {name}")


def rounded_weight(weight: torch.Tensor, precision: Precision) -> torch.Tensor:
    if precision in ("int8", "int7"):
        largest = weight.abs().amax(dim=1, keepdim=True)
        if precision == "int7":  # sums of two weights must not exceed 128
            pairs = torch.nn.functional.pad(weight, (0, weight.shape[1] % 2)).unflatten(1, (-1, 2)).sum(dim=2)
            largest = torch.maximum(largest, pairs.abs().amax(dim=1, keepdim=True))
        scales = largest.clamp(min=1e-30) / 127
        return (weight / scales).round() * scales
    return weight.bfloat16().float() if precision == "bfloat16" else weight


def product(library: Library, inputs: torch.Tensor, weight: torch.Tensor, precision: Precision) -> torch.Tensor:
    return torch.from_numpy(Matrix(weight.numpy(), precision, library)(inputs.numpy()))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_product_equals_that_of_the_rounded_weights(library: Library, precision: Precision) -> None:
    @settings(max_examples=20)
    @given(n_rows=st.integers(1, 130), n_inputs=st.integers(1, 600), n_outputs=st.integers(1, 150))
    def check(n_rows: int, n_inputs: int, n_outputs: int) -> None:
        torch.manual_seed(n_inputs)
        inputs, weight = torch.randn(n_rows, n_inputs), torch.randn(n_outputs, n_inputs) / n_inputs**0.5
        digits = precision if rounds_inputs(library, precision) else "float32"
        weights = Rounded.exact(rounded_weight(weight, precision))
        assert_rounded(product(library, inputs, weight, precision), Rounded.exact(inputs).product(weights, digits))

    check()


@pytest.mark.parametrize("precision", ["int8", "int7"])
def test_sums_of_bytes_are_exact(library: Library, precision: Precision) -> None:
    if not rounds_inputs(library, precision):
        pytest.skip(f"{library.instructions} does not round inputs")
    torch.manual_seed(0)
    for n_rows, n_inputs, n_outputs in ((1, 64, 32), (2, 70, 40), (5, 2, 3), (33, 300, 130), (70, 1300, 33)):
        inputs, weight = torch.randint(-127, 128, (n_rows, n_inputs)), torch.randint(-127, 128, (n_outputs, n_inputs))
        inputs[:, 0] = weight[:, 0] = -127  # so that all scales are 1
        if precision == "int7":
            weight = weight.clamp(-63, 63)
            weight[:, :2] = torch.tensor([-64, -63])
        result = product(library, inputs.float(), weight.float(), precision)
        assert torch.equal(result, (inputs @ weight.T).float())
    # No sum of bytes overflows on the way.
    pattern = {"int8": [127, 127], "int7": [64, 63]}[precision]
    largest, weight = torch.full((3, 4096), 127), torch.tensor(pattern).repeat(3, 2048)
    for sign in (1, -1):
        result = product(library, largest.float(), sign * weight.float(), precision)
        assert torch.equal(result, (largest @ (sign * weight).T).float())


def test_pairs_of_seven_bits_never_saturate(library: Library) -> None:
    # Both become 64 with a scale of 1 / 127 of their sum: ties round to even.
    inputs, weight = torch.full((2, 64), 127.0), torch.full((2, 64), 63.5)
    result = product(library, inputs, weight, "int7")
    assert torch.equal(result, torch.full((2, 2), 64 * 127 * 64.0))


def test_the_precisions_have_the_numbers_of_their_order(library: Library) -> None:
    assert [library.precision(name.encode()) for name in (*PRECISIONS, "float16")] == [*range(len(PRECISIONS)), -1]


@pytest.mark.slow
def test_tiles_of_bfloat16_equal_their_emulation() -> None:
    if "amx" not in instruction_sets.available_sets():
        pytest.skip("this processor lacks amx")
    torch.manual_seed(0)
    inputs, weight = torch.randn(45, 200), torch.randn(70, 200) / 200**0.5
    first, second = (product(build(name), inputs, weight, "bfloat16") for name in ("amx", "emulated"))
    torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", one_per_set("avx512-bf16", "emulated-pairs"))
def test_pairs_of_bfloat16_are_summed_in_the_order_of_the_instruction(name: str) -> None:
    torch.manual_seed(0)
    inputs, weight = torch.randn(29, 1101), torch.randn(70, 1101)
    factors = [torch.nn.functional.pad(part, (0, 1)).bfloat16().float().numpy() for part in (inputs, weight)]
    total = np.zeros((29, 70), np.float32)
    for first in range(0, 1102, 2):
        for number in (first + 1, first):  # a product of such numbers has no rounding
            total += np.multiply.outer(factors[0][:, number], factors[1][:, number])
    assert np.array_equal(product(build(name), inputs, weight, "bfloat16").numpy(), total)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", ["small", "unprojected", "widened", "widened unprojected", "large"])
def test_a_row_of_a_layer_does_not_depend_on_the_others_or_on_threads(
    library: Library, precision: Precision, size: str
) -> None:
    sizes = {
        "small": (150, 45),
        "unprojected": (45, 45),
        "widened": WIDENED_LAYERS[0],
        "widened unprojected": WIDENED_LAYERS[1],
        "large": LARGE_LAYERS[precision],
    }
    hidden, dim = sizes[size]
    torch.manual_seed(0)
    lstm = random_lstm(library, precision, lstm_config(hidden, dim))
    n_steps = 2 if size == "large" else 3
    is_small = size in ("small", "unprojected")  # blocks of rows are the same in layers of any size
    n_all = 70 if is_small else 33
    inputs = torch.randn(n_all, n_steps, dim) * torch.arange(1, n_all + 1).view(-1, 1, 1) / 20
    cells, ones = torch.randn(n_all, hidden), torch.ones(n_all, dim)
    together, cells_together = run_rows(lstm, inputs, cells, ones)
    for n_rows in (1, 2, 3, 7, 13, 17, 33, 64) if is_small else (1, 7):
        first = n_all - n_rows
        outputs, cells_after = run_rows(lstm, inputs[first:], cells[first:], ones[first:])
        assert torch.equal(outputs, together[first:])
        assert torch.equal(cells_after, cells_together[first:])
    for n_rows in (1, 5, n_all) if is_small else (1, n_all):
        for threads in (3,) if size == "large" else (2, 3):
            outputs, cells_after = run_rows(lstm, inputs[:n_rows], cells[:n_rows], ones[:n_rows], threads)
            assert torch.equal(outputs, together[:n_rows])
            assert torch.equal(cells_after, cells_together[:n_rows])


def test_a_small_layer_is_not_widened(library: Library) -> None:
    for precision in PRECISIONS:
        expected = most_precise(library, precision) if rounds_inputs(library, precision) else "float32"
        assert choose_kernels(library, precision, 8 * 45 * 15).lstm == expected


def test_a_large_layer_whose_weights_would_be_widened_has_bfloat16_weights(library: Library) -> None:
    # Plain C is limited by arithmetic and not by memory.
    widened = "float32" if library.instructions == "portable" else "bfloat16"
    for precision in NAMES[1:]:
        expected = most_precise(library, precision) if rounds_inputs(library, precision) else widened
        assert choose_kernels(library, precision, 4_000_000).lstm == expected


def test_a_product_of_denormal_numbers_does_not_depend_on_the_number_of_rows(library: Library) -> None:
    torch.manual_seed(0)
    inputs, weight = torch.randn(40, 100), torch.randn(40, 100)
    for scale in (1e-37, 1e-39):  # of sums, and of inputs
        together = product(library, inputs * scale, weight, "bfloat16")
        for n_rows in (1, 2, 3, 17):
            assert torch.equal(product(library, inputs[:n_rows] * scale, weight, "bfloat16"), together[:n_rows])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", ["small", "widened"])
def test_a_layer_equals_the_formulas(library: Library, precision: Precision, size: str) -> None:
    hidden, dim = (150, 45) if size == "small" else WIDENED_LAYERS[0]
    torch.manual_seed(0)
    weight, bias = torch.randn(4 * hidden, 2 * dim) / (dim + 19) ** 0.5, torch.randn(4 * hidden)
    projection = torch.randn(dim, hidden) * (1.85 / hidden) ** 0.5
    lstm = one_layer(library, precision, weight, bias, projection)
    inputs, cell = torch.randn(20, 1, dim) * 3, torch.randn(20, hidden)
    computed_in = choose_kernels(library, precision, weight.numel()).lstm
    tolerance = {"float32": 1e-5, "bfloat16": 0.1, "int8": 0.3, "int7": 0.3}[computed_in]
    for n_rows in (1, 20):
        outputs, new_cell = run_rows(lstm, inputs[:n_rows], cell[:n_rows], torch.ones(n_rows, dim))
        gates = torch.cat([inputs[:n_rows, 0], torch.ones(n_rows, dim)], dim=1) @ weight.T + bias
        i, g, f, o = gates.chunk(4, dim=1)
        expected = ((f + 1).sigmoid() * cell[:n_rows] + i.sigmoid() * g.tanh()).clamp(-3, 3)
        torch.testing.assert_close(new_cell, expected, atol=tolerance, rtol=0)
        expected = ((o.sigmoid() * expected.tanh()) @ projection.T).clamp(-3, 3)
        torch.testing.assert_close(outputs[:, 0], expected, atol=tolerance, rtol=0)


def test_activations_of_rounded_weights_are_exact_to_six_digits(library: Library) -> None:
    # Weights of 0: the gates are the bias, whatever the precision. They reach far beyond where sigmoid and tanh end.
    gates = torch.linspace(-120, 120, 4 * 600).view(4, 600)
    bias = torch.stack(
        [gate[torch.randperm(600, generator=torch.Generator().manual_seed(n))] for n, gate in enumerate(gates)]
    )
    bias[:, :100] = torch.linspace(-4, 4, 400).view(100, 4).T
    lstm = one_layer(library, "bfloat16", torch.zeros(2400, 600 + 600), bias.flatten(), None, (None, None))
    cell = torch.linspace(-50, 50, 600)[None]
    outputs, new_cell = run_rows(lstm, torch.zeros(1, 1, 600), cell, cell)
    bias[2] += 1
    i, g, f, o = bias.double()
    expected = f.sigmoid() * cell[0] + i.sigmoid() * g.tanh()
    torch.testing.assert_close(new_cell[0].double(), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(outputs[0, 0].double(), o.sigmoid() * expected.tanh(), atol=1e-6, rtol=0)


def test_the_activations_are_good_to_a_few_units_in_the_last_place(library: Library) -> None:
    points = [np.linspace(-30, 30, 40_000), np.logspace(-30, 1, 4_000), -np.logspace(-30, 1, 4_000), [0.0, 1e4, -1e4]]
    x = np.concatenate(points).astype(np.float32)
    wide = np.full_like(x, 60)

    def cells(*gates: np.ndarray) -> np.ndarray:
        """Return the cells after a step from a state of zeros, whose gate sums are the bias: i, g, f, o."""
        config = BiLMConfig(
            None, n_words=1, projection_dim=1, hidden_dim=len(x), n_layers=1, cell_clip=None, bidirectional=False
        )
        arrays = {
            "weight": np.zeros((4 * len(x), 2)),
            "bias": np.concatenate(gates),
            "projection": np.zeros((1, len(x))),
        }
        lstm = LSTM(config, {f"directions.0.layers.0.{name}": a for name, a in arrays.items()}, "float32", library)
        one = np.zeros(1, np.int64)
        start = State.zero(config, 1)
        _, state = lstm.layers(NetworkInput(np.zeros((1, 1), np.float32), one, one + 1, start), [], returns_state=True)
        return state.cell.reshape(-1)

    # The forget gate is shut. With i open, the cell becomes tanh(g); with tanh(g) at 1, it becomes sigmoid(i).
    for found, expected in (
        (cells(wide, x, -wide, wide), np.tanh(x.astype(np.float64))),
        (cells(x, wide, -wide, wide), torch.from_numpy(x).double().sigmoid().numpy()),
    ):
        shown = (abs(expected) > 1e-37) | (expected == 0)
        assert (abs(found - expected) / abs(expected).clip(min=1e-30))[shown].max() < 4e-7


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_stays_in_its_row(library: Library, precision: Precision) -> None:
    inputs = torch.ones(40, 100)
    inputs[3, 97] = torch.nan
    is_nan = product(library, inputs, torch.ones(5, 100), precision).isnan()
    assert is_nan[3].all()
    assert is_nan.sum() == 5


def log_sum_exp(
    library: Library,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    precision: Precision = "float32",
    threads: int = 1,
) -> torch.Tensor:
    arrays = (tensor.numpy() for tensor in (hidden, weight, bias))
    return torch.from_numpy(softmax.log_sum_exp(library, *arrays, precision, threads))


def exact_log_sum_exp(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Rounded:
    scores = Rounded.exact(hidden).product(Rounded.exact(weight)) + Rounded.exact(bias)
    error = (scores.value.softmax(dim=1) * scores.error).square().sum(dim=1).sqrt()
    # The exponents are functions of scores, and their errors are relative to the sum: absolute ones of its logarithm.
    return Rounded(scores.value.logsumexp(dim=1), error + FUNCTION_UNITS * scores.unit, scores.unit)


@pytest.mark.parametrize("digits", [torch.float16, torch.float32])
def test_log_sum_exp_is_as_exact_as_one_over_all_scores(library: Library, digits: torch.dtype) -> None:
    @settings(max_examples=10)
    @given(n_rows=st.integers(1, 70), dim=st.integers(1, 140), n_words=st.sampled_from([1, 31, 97, 300, 1537]))
    def check(n_rows: int, dim: int, n_words: int) -> None:
        torch.manual_seed(dim)
        # Weights in float16 are two numbers in bfloat16, others three. Scores have a standard deviation of 5.
        hidden, weight = torch.randn(n_rows, dim), (5 * torch.randn(n_words, dim) / dim**0.5).to(digits).float()
        bias = 3 * torch.randn(n_words)
        found = log_sum_exp(library, hidden, weight, bias)
        # A quarter of the usual bound. Two numbers in bfloat16 instead of three would exceed only this one.
        assert_rounded(found, exact_log_sum_exp(hidden, weight, bias), deviations=2)
        lower = log_sum_exp(library, hidden, weight, bias, "bfloat16")
        if library.has_bfloat16():
            exact = exact_log_sum_exp(hidden.bfloat16().float(), weight.bfloat16().float(), bias)
            assert_rounded(lower, exact, deviations=2)
        else:
            assert torch.equal(lower, found)

    check()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_log_sum_exp_of_a_row_does_not_depend_on_the_others_or_on_threads(
    library: Library, precision: Precision
) -> None:
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(70, 45), torch.randn(1600, 45), torch.randn(1600)
    together = log_sum_exp(library, hidden, weight, bias, precision)
    for n_rows in (1, 2, 17, 33):
        assert torch.equal(log_sum_exp(library, hidden[-n_rows:].clone(), weight, bias, precision), together[-n_rows:])
    for threads in (2, 3, 7):
        assert torch.equal(log_sum_exp(library, hidden, weight, bias, precision, threads), together)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_log_sum_exp_keeps_improbable_words_infinities_and_nan_apart(library: Library, precision: Precision) -> None:
    hidden, weight, bias = torch.ones(3, 8), torch.zeros(1500, 8), torch.zeros(1500)
    bias[1] = 17.0  # next to e^17 in one float32 sum, each other word's 1 would be rounded to 0 or 2
    bias[700] = -torch.inf  # a word that never occurs
    hidden[2, 5] = torch.nan
    found = log_sum_exp(library, hidden, weight, bias, precision)
    expected = torch.tensor(17.0, dtype=torch.float64).exp().add(1498).log()
    torch.testing.assert_close(found[:2], expected.expand(2), atol=6e-6, rtol=0)  # without sums of blocks 6e-5
    assert found[2].isnan()
    # Scores too far apart for float32, in any order.
    steep = torch.linspace(-3e4, 3e4, 1500)
    for order in (steep, steep.flip(0)):
        assert log_sum_exp(library, hidden[:1], weight, order).item() == pytest.approx(3e4, rel=1e-7)


def test_the_environment_variable_chooses_an_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    available = instruction_sets.available_sets()
    assert available[-1] == "portable"
    monkeypatch.delenv(instruction_sets.VARIABLE, raising=False)
    assert instruction_sets.requested_sets() == available
    monkeypatch.setenv(instruction_sets.VARIABLE, "portable")
    assert instruction_sets.requested_sets() == ["portable"]
    monkeypatch.setenv(instruction_sets.VARIABLE, "sse9")
    with pytest.raises(ConfigError, match="ELMOKIT_INSTRUCTIONS is 'sse9'"):
        compiler._load.__wrapped__()  # rather than another way to compute, with other numbers
    monkeypatch.setattr(instruction_sets, "_features", lambda: frozenset({"avx2"}))
    monkeypatch.setenv(instruction_sets.VARIABLE, "amx")
    with pytest.raises(ConfigError, match="auto, portable"):
        instruction_sets.requested_sets()
