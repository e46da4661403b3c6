from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from elmokit.nn.kernels import torch_products
from tests.helpers.rounding import Digits, Rounded, assert_rounded

DIGITS: dict[str, Digits] = {
    "torch": "float32",
    "torch-onednn": "float32",
    "torch-fbgemm-float16": "float16",
    "torch-bfloat16": "bfloat16",
    "torch-onednn-bfloat16": "bfloat16",
    "torch-fbgemm-int8": "int8",
}


@pytest.mark.parametrize("backend", ["torch-onednn", "torch-fbgemm-float16", "torch-fbgemm-int8"])
def test_this_pytorch_still_has_the_private_calls(backend: str) -> None:
    """When this fails on a new PyTorch, elmokit still works, slower: see ``torch_products.pack`` for another way."""
    if torch.backends.mkldnn.is_available() and "fbgemm" in torch.backends.quantized.supported_engines:
        assert torch_products.works(backend)


@pytest.mark.parametrize("backend", DIGITS)
def test_a_packed_product_is_the_product(backend: str) -> None:
    if not torch_products.works(backend):
        pytest.skip(f"this machine lacks {backend}")

    @settings(max_examples=25)
    @given(rows=st.integers(1, 70), n_in=st.integers(1, 70), n_out=st.integers(1, 70), biased=st.booleans())
    def check(rows: int, n_in: int, n_out: int, biased: bool) -> None:
        torch.manual_seed(rows)
        weight, inputs = torch.randn(n_out, n_in) / n_in**0.5, torch.randn(rows, n_in)
        bias = torch.randn(n_out) if biased else None
        expected = Rounded.exact(inputs).product(Rounded.exact(weight), DIGITS[backend])
        expected = expected if bias is None else expected + Rounded.exact(bias)
        assert_rounded(torch_products.pack(backend, weight, bias)(inputs), expected)

    check()


@pytest.mark.parametrize("error", [RuntimeError, AttributeError, NotImplementedError])
def test_a_call_that_fails_is_unavailable(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(weight: torch.Tensor, bias: torch.Tensor | None) -> torch_products.Product:
        raise error("no such operator")

    monkeypatch.setitem(torch_products.PACKERS, "gone", gone)
    assert not torch_products.works("gone")


def test_a_call_with_wrong_results_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        torch_products.PACKERS, "changed", lambda weight, bias: lambda inputs: F.linear(inputs, -weight, bias)
    )
    assert not torch_products.works("changed")
