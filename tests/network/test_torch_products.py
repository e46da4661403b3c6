from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.engine.precision import Backend
from elmokit.network.lstm_inference import fixed_product
from tests.helpers.rounding import Digits, Rounded, assert_rounded

DIGITS: dict[Backend, Digits] = {"torch": "float32", "torch-bfloat16": "bfloat16"}


@pytest.mark.parametrize("backend", DIGITS)
def test_a_fixed_product_is_the_product(backend: Backend) -> None:
    @settings(max_examples=25)
    @given(rows=st.integers(1, 70), n_in=st.integers(1, 70), n_out=st.integers(1, 70), biased=st.booleans())
    def check(rows: int, n_in: int, n_out: int, biased: bool) -> None:
        torch.manual_seed(rows)
        weight, inputs = torch.randn(n_out, n_in) / n_in**0.5, torch.randn(rows, n_in)
        bias = torch.randn(n_out) if biased else None
        expected = Rounded.exact(inputs).product(Rounded.exact(weight), DIGITS[backend])
        expected = expected if bias is None else expected + Rounded.exact(bias)
        assert_rounded(fixed_product(backend, weight, bias)(inputs), expected)

    check()
