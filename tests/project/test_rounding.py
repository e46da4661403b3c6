"""The helper that bounds rounding errors, and the summary of skipped tests."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.rounding import DEVIATIONS, Rounded, assert_rounded


def test_a_product_in_float32_is_within_its_bound_and_a_missing_term_is_not() -> None:
    torch.manual_seed(0)
    inputs, weight = torch.randn(50, 300), torch.randn(40, 300)
    exact = Rounded.exact(inputs).product(Rounded.exact(weight))
    assert_rounded(inputs @ weight.T, exact)
    for digits, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        rounded = Rounded.exact(inputs).product(Rounded.exact(weight), digits)  # type: ignore[arg-type]
        assert_rounded(inputs.to(dtype).float() @ weight.to(dtype).float().T, rounded)
        with pytest.raises(AssertionError, match="rounding explains a difference of"):
            assert_rounded(inputs.to(dtype).float() @ weight.T, exact)
    with pytest.raises(AssertionError, match=r"Number \d+ of \(50, 40\) is"):
        assert_rounded(inputs[:, 1:] @ weight[:, 1:].T, exact)


def test_nan_is_within_no_bound() -> None:
    exact = Rounded.exact(torch.ones(3))
    with pytest.raises(AssertionError, match="Number 1 of"):
        assert_rounded(torch.tensor([1.0, torch.nan, 1.0]), exact)


def test_the_gradient_of_a_clip_is_uncertain_next_to_its_bound() -> None:
    numbers = Rounded(torch.tensor([0.1, 0.5, -0.5 - 1e-6, 0.6], dtype=torch.float64), torch.full((4,), 1e-6), 2.0**-24)
    gradient = numbers.clip_gradient(0.5)
    assert gradient.value.tolist() == [1, 1, 0, 0]
    assert (gradient.error * DEVIATIONS > 1).tolist() == [False, True, True, False]
