"""The kernels of every instruction set and precision: products, layers, and rows that do not depend on each other.

Sets that this processor lacks are skipped by name. ``emulated`` has plain C in place of the special instructions and
runs everywhere.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.errors import ConfigError
from elmokit.nn.kernels import instruction_sets, lstm_inference
from elmokit.nn.kernels.lstm_inference import LayerWeights, NativeLayer, pack_native_layer, run_native_layer
from elmokit.nn.kernels.native import PRECISIONS, NativeLibrary, Precision
from tests.helpers.instruction_sets import build
from tests.helpers.rounding import FUNCTION_UNITS, Rounded, assert_rounded

WITH_DOT = ("amx", "avx512-bf16", "avx512-vnni", "avx512", "avx2-vnni", "avx2", "neon-dotprod", "emulated")
WITH_TILES = ("amx", "emulated")


def rounded_weight(weight: torch.Tensor, precision: Precision) -> torch.Tensor:
    if precision == "int8":
        scales = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
        return (weight / scales).round() * scales
    return weight.bfloat16().float() if precision == "bfloat16" else weight


def rounds_inputs(library: NativeLibrary, precision: Precision) -> bool:
    return library.instructions in {"float32": (), "bfloat16": WITH_TILES, "int8": WITH_DOT}[precision]


def product(library: NativeLibrary, inputs: torch.Tensor, weight: torch.Tensor, precision: Precision) -> torch.Tensor:
    panels = library.pack(weight, precision)
    return library.product(inputs, panels, torch.zeros(len(panels) * library.wide), len(weight), precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_product_equals_that_of_the_rounded_weights(library: NativeLibrary, precision: Precision) -> None:
    @settings(max_examples=20)
    @given(n_rows=st.integers(1, 130), n_inputs=st.integers(1, 600), n_outputs=st.integers(1, 150))
    def check(n_rows: int, n_inputs: int, n_outputs: int) -> None:
        torch.manual_seed(n_inputs)
        inputs, weight = torch.randn(n_rows, n_inputs), torch.randn(n_outputs, n_inputs) / n_inputs**0.5
        digits = precision if rounds_inputs(library, precision) else "float32"
        weights = Rounded.exact(rounded_weight(weight, precision))
        assert_rounded(product(library, inputs, weight, precision), Rounded.exact(inputs).product(weights, digits))

    check()


def test_sums_of_bytes_are_exact(library: NativeLibrary) -> None:
    if not rounds_inputs(library, "int8"):
        pytest.skip(f"{library.instructions} does not round inputs")
    torch.manual_seed(0)
    for n_rows, n_inputs, n_outputs in ((1, 64, 32), (2, 70, 40), (5, 1, 3), (33, 300, 130), (70, 1300, 33)):
        inputs, weight = torch.randint(-127, 128, (n_rows, n_inputs)), torch.randint(-127, 128, (n_outputs, n_inputs))
        inputs[:, 0] = weight[:, 0] = -127  # so that all scales are 1
        result = product(library, inputs.float(), weight.float(), "int8")
        assert torch.equal(result, (inputs @ weight.T).float())
    largest = torch.full((3, 4096), 127)
    result = product(library, largest.float(), -largest.float(), "int8")
    assert torch.equal(result, (largest @ -largest.T).float())  # no sum of bytes overflows on the way


@pytest.mark.slow
def test_tiles_of_bfloat16_equal_their_emulation() -> None:
    if "amx" not in instruction_sets.available_sets():
        pytest.skip("this processor lacks amx")
    torch.manual_seed(0)
    inputs, weight = torch.randn(45, 200), torch.randn(70, 200) / 200**0.5
    first, second = (product(build(name), inputs, weight, "bfloat16") for name in WITH_TILES)
    torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-6)


def run(layer: NativeLayer, inputs: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Run ``inputs`` (rows, steps, dim) from a state of ones and ``cell``."""
    n_rows, n_steps, _ = inputs.shape
    outputs, cell = run_native_layer(
        layer,
        torch.full((n_steps,), n_rows),
        inputs.transpose(0, 1).flatten(0, 1).contiguous(),
        torch.ones(n_rows, 45),
        cell.clone(),
    )
    return outputs.view(n_steps, n_rows, -1).transpose(0, 1), cell


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("projected", [True, False])
def test_a_row_of_a_layer_does_not_depend_on_the_others(
    library: NativeLibrary, precision: Precision, projected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    hidden = 150 if projected else 45
    layer = LayerWeights(
        *(torch.randn(4 * hidden, 90) / 8, torch.randn(4 * hidden), torch.randn(45, hidden) / 9 if projected else None),
        *(3.0, 3.0),
    )
    monkeypatch.setattr(lstm_inference, "MIN_WIDENED", 0)
    packed = pack_native_layer(library, precision, layer, 45)
    inputs, cells = torch.randn(70, 3, 45) * torch.arange(1, 71).view(-1, 1, 1) / 20, torch.randn(70, hidden)
    together, cells_together = run(packed, inputs, cells)
    for n_rows in (1, 2, 3, 7, 13, 17, 33, 64):
        first = 70 - n_rows
        outputs, cells_after = run(packed, inputs[first:], cells[first:])
        assert torch.equal(outputs, together[first:])
        assert torch.equal(cells_after, cells_together[first:])


def test_a_small_layer_is_not_widened(library: NativeLibrary) -> None:
    layer = LayerWeights(torch.randn(60, 90), torch.randn(60), None, 3.0, 3.0)
    for precision in PRECISIONS:
        packed = pack_native_layer(library, precision, layer, 75)
        assert packed.precision == (precision if rounds_inputs(library, precision) else "float32")


def test_a_product_of_denormal_numbers_does_not_depend_on_the_number_of_rows(library: NativeLibrary) -> None:
    torch.manual_seed(0)
    inputs, weight = torch.randn(40, 100), torch.randn(40, 100)
    for scale in (1e-37, 1e-39):  # of sums, and of inputs
        together = product(library, inputs * scale, weight, "bfloat16")
        for n_rows in (1, 2, 3, 17):
            assert torch.equal(product(library, inputs[:n_rows] * scale, weight, "bfloat16"), together[:n_rows])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_layer_equals_the_formulas(library: NativeLibrary, precision: Precision) -> None:
    torch.manual_seed(0)
    weight, bias, projection = torch.randn(600, 90) / 8, torch.randn(600), torch.randn(45, 150) / 9
    packed = pack_native_layer(library, precision, LayerWeights(weight, bias, projection, 3.0, 3.0), 45)
    inputs, cell = torch.randn(20, 1, 45) * 3, torch.randn(20, 150)
    for n_rows in (1, 20):
        outputs, new_cell = run(packed, inputs[:n_rows], cell[:n_rows])
        gates = torch.cat([inputs[:n_rows, 0], torch.ones(n_rows, 45)], dim=1) @ weight.T + bias
        i, g, f, o = gates.chunk(4, dim=1)
        expected = (f.sigmoid() * cell[:n_rows] + i.sigmoid() * g.tanh()).clamp(-3, 3)
        tolerance = {"float32": 1e-5, "bfloat16": 0.1, "int8": 0.3}[packed.precision]
        torch.testing.assert_close(new_cell, expected, atol=tolerance, rtol=0)
        expected = ((o.sigmoid() * expected.tanh()) @ projection.T).clamp(-3, 3)
        torch.testing.assert_close(outputs[:, 0], expected, atol=tolerance, rtol=0)


def test_activations_of_rounded_weights_are_exact_to_six_digits(library: NativeLibrary) -> None:
    # Weights of 0: the gates are the bias, whatever the precision. They reach far beyond where sigmoid and tanh end.
    gates = torch.linspace(-120, 120, 4 * 600).view(4, 600)
    bias = torch.stack(
        [gate[torch.randperm(600, generator=torch.Generator().manual_seed(n))] for n, gate in enumerate(gates)]
    )
    bias[:, :100] = torch.linspace(-4, 4, 400).view(100, 4).T
    weights = LayerWeights(torch.zeros(2400, 600 + 600), bias.flatten(), None, math.inf, math.inf)
    packed = dataclasses.replace(pack_native_layer(library, "float32", weights, 600), precision="bfloat16")
    cell = torch.linspace(-50, 50, 600)[None]
    outputs, new_cell = run_native_layer(
        packed, torch.ones(1, dtype=torch.int64), torch.zeros(1, 600), cell, cell.clone()
    )
    i, g, f, o = bias.double()
    expected = f.sigmoid() * cell[0] + i.sigmoid() * g.tanh()
    torch.testing.assert_close(new_cell[0].double(), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(outputs[0].double(), o.sigmoid() * expected.tanh(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_threads_do_not_change_a_bit(
    library: NativeLibrary, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = LayerWeights(torch.randn(600, 90) / 8, torch.randn(600), torch.randn(45, 150) / 9, 3.0, 3.0)
    monkeypatch.setattr(lstm_inference, "MIN_WIDENED", 0)
    packed = pack_native_layer(library, precision, layer, 45)
    inputs, cells = torch.randn(5, 3, 45), torch.randn(5, 150)
    n_threads = torch.get_num_threads()
    results = []
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            results.append(run(packed, inputs, cells)[0])
    finally:
        torch.set_num_threads(n_threads)
    assert torch.equal(*results)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_stays_in_its_row(library: NativeLibrary, precision: Precision) -> None:
    inputs = torch.ones(40, 100)
    inputs[3, 97] = torch.nan
    is_nan = product(library, inputs, torch.ones(5, 100), precision).isnan()
    assert is_nan[3].all()
    assert is_nan.sum() == 5


def log_sum_exp(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Rounded:
    scores = Rounded.exact(hidden).product(Rounded.exact(weight)) + Rounded.exact(bias)
    error = (scores.value.softmax(dim=1) * scores.error).square().sum(dim=1).sqrt()
    # The exponents are functions of scores, and their errors are relative to the sum: absolute ones of its logarithm.
    return Rounded(scores.value.logsumexp(dim=1), error + FUNCTION_UNITS * scores.unit, scores.unit)


@pytest.mark.parametrize("digits", [torch.float16, torch.float32])
def test_log_sum_exp_is_as_exact_as_one_over_all_scores(library: NativeLibrary, digits: torch.dtype) -> None:
    @settings(max_examples=10)
    @given(n_rows=st.integers(1, 70), dim=st.integers(1, 140), n_words=st.sampled_from([1, 31, 97, 300, 1537]))
    def check(n_rows: int, dim: int, n_words: int) -> None:
        torch.manual_seed(dim)
        # Weights in float16 are two numbers in bfloat16, others three. Scores have a standard deviation of 5.
        hidden, weight = torch.randn(n_rows, dim), (5 * torch.randn(n_words, dim) / dim**0.5).to(digits).float()
        bias = 3 * torch.randn(n_words)
        found = library.log_sum_exp(hidden, weight, bias)
        # A quarter of the usual bound. Two numbers in bfloat16 instead of three would exceed only this one.
        assert_rounded(found, log_sum_exp(hidden, weight, bias), deviations=2)
        lower = library.log_sum_exp(hidden, weight, bias, "bfloat16")
        if library.has_bfloat16:
            assert_rounded(lower, log_sum_exp(hidden.bfloat16().float(), weight.bfloat16().float(), bias), deviations=2)
        else:
            assert torch.equal(lower, found)

    check()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_log_sum_exp_of_a_row_does_not_depend_on_the_others_or_on_threads(
    library: NativeLibrary, precision: Precision
) -> None:
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(70, 45), torch.randn(1600, 45), torch.randn(1600)
    together = library.log_sum_exp(hidden, weight, bias, precision)
    for n_rows in (1, 2, 17, 33):
        assert torch.equal(library.log_sum_exp(hidden[-n_rows:].clone(), weight, bias, precision), together[-n_rows:])
    n_threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert torch.equal(library.log_sum_exp(hidden, weight, bias, precision), together)
    finally:
        torch.set_num_threads(n_threads)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_log_sum_exp_keeps_improbable_words_infinities_and_nan_apart(
    library: NativeLibrary, precision: Precision
) -> None:
    hidden, weight, bias = torch.ones(3, 8), torch.zeros(1500, 8), torch.zeros(1500)
    bias[1] = 17.0  # next to e^17 in one float32 sum, each other word's 1 would be rounded to 0 or 2
    bias[700] = -torch.inf  # a word that never occurs
    hidden[2, 5] = torch.nan
    found = library.log_sum_exp(hidden, weight, bias, precision)
    expected = torch.tensor(17.0, dtype=torch.float64).exp().add(1498).log()
    torch.testing.assert_close(found[:2], expected.expand(2), atol=6e-6, rtol=0)  # without sums of blocks 6e-5
    assert found[2].isnan()
    # Scores too far apart for float32, in any order.
    steep = torch.linspace(-3e4, 3e4, 1500)
    for order in (steep, steep.flip(0)):
        assert library.log_sum_exp(hidden[:1], weight, order).item() == pytest.approx(3e4, rel=1e-7)


def test_the_environment_variable_chooses_an_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    available = instruction_sets.available_sets()
    assert available[-1] == "portable"
    monkeypatch.delenv(instruction_sets.VARIABLE, raising=False)
    assert instruction_sets.requested_sets() == available
    monkeypatch.setenv(instruction_sets.VARIABLE, "portable")
    assert instruction_sets.requested_sets() == ["portable"]
    monkeypatch.setenv(instruction_sets.VARIABLE, "sse9")
    with pytest.raises(ConfigError, match="ELMOKIT_INSTRUCTIONS is 'sse9'"):
        instruction_sets.requested_sets()
    monkeypatch.setattr(instruction_sets, "_features", lambda: frozenset({"avx2"}))
    monkeypatch.setenv(instruction_sets.VARIABLE, "amx")
    with pytest.raises(ConfigError, match="this processor has only portable"):
        instruction_sets.requested_sets()
