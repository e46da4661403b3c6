"""Linear layers and highways, which every instruction set computes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.engine.library import Library
from elmokit.network.native_training import highway_backward, highway_forward, linear_rows
from elmokit.network.tile_layers import linear
from tests.helpers.rounding import Rounded, assert_rounded


def test_products_are_those_of_float64_within_rounding_whatever_the_batch_and_the_threads(library: Library) -> None:
    @settings(max_examples=15)
    @given(n_rows=st.integers(1, 40), n_inputs=st.integers(1, 70), n_outputs=st.integers(1, 40), has_bias=st.booleans())
    def check(n_rows: int, n_inputs: int, n_outputs: int, has_bias: bool) -> None:
        torch.manual_seed(0)
        inputs, weight = torch.randn(n_rows, n_inputs), torch.randn(n_outputs, n_inputs)
        bias = torch.randn(n_outputs) if has_bias else None
        outputs = linear_rows(library, inputs, weight, bias)
        exact, squares = (inputs.double() ** power @ weight.double().T ** power for power in (1, 2))
        if bias is not None:
            exact, squares = exact + bias, squares + bias.double() ** 2
        assert_rounded(outputs, Rounded.sum_of(n_inputs + 1, exact, squares, torch.finfo(torch.float32).eps / 2))
        for row in {0, n_rows // 2, n_rows - 1}:
            assert torch.equal(linear_rows(library, inputs[row : row + 1].clone(), weight, bias)[0], outputs[row])

    check()


def test_many_inputs_are_read_in_parts_without_a_changed_bit(library: Library) -> None:
    torch.manual_seed(0)
    inputs, weight = torch.randn(300, 700), torch.randn(9, 700)  # 840 KB
    outputs = linear_rows(library, inputs, weight, None)
    assert torch.equal(linear_rows(library, inputs[250:].clone(), weight, None), outputs[250:])


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_operator_takes_what_pytorch_takes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(5, 7, dtype=dtype), torch.randn(5, dtype=dtype)
    for shape in ((7,), (0, 7), (3, 7), (2, 3, 7)):
        inputs = torch.randn(shape, dtype=dtype)
        torch.testing.assert_close(linear(inputs, weight, bias), torch.nn.functional.linear(inputs, weight, bias))
    strided = torch.randn(7, 4, dtype=dtype).T
    torch.testing.assert_close(linear(strided, weight, None), torch.nn.functional.linear(strided, weight))
    with pytest.raises(RuntimeError, match="shapes"):
        linear(torch.randn(3, 6, dtype=dtype), weight, bias)


def test_a_highway_and_its_gradient_are_those_of_the_formula(library: Library) -> None:
    torch.manual_seed(0)
    inputs, transformed, gate, upstream = torch.randn(4, 3, 37)
    parts = [part.double().requires_grad_() for part in (transformed, gate, inputs)]
    opened = torch.sigmoid(parts[1])
    exact = opened * parts[0].relu() + (1 - opened) * parts[2]
    given_gate = gate.clone()
    outputs = highway_forward(library, inputs, transformed, given_gate)
    torch.testing.assert_close(outputs.double(), exact, atol=1e-6, rtol=1e-6)
    wanted = torch.autograd.grad((exact * upstream).sum(), parts)
    for ours, theirs in zip(highway_backward(library, upstream, inputs, transformed, given_gate), wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=1e-6, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of PyTorch's own code
def test_pytorch_computes_under_autocast_and_forward_derivatives() -> None:
    torch.manual_seed(0)
    inputs, weight, bias = torch.randn(3, 7), torch.randn(5, 7), torch.randn(5)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, expected = linear(inputs, weight, bias), torch.nn.functional.linear(inputs, weight, bias)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)
    _, found = torch.func.jvp(lambda values: linear(values, weight, bias), (inputs,), (inputs,))
    torch.testing.assert_close(found, inputs @ weight.T)
