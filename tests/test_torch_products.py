from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from elmokit.nn.kernels import products

TOLERANCE = {"library": 1e-5, "onednn": 1e-5, "fbgemm-float16": 5e-3, "library-bf16": 0.03, "onednn-bf16": 0.03}


@pytest.mark.parametrize("kernels", ["onednn", "fbgemm-float16", "fbgemm-int8"])
def test_this_pytorch_still_has_the_private_calls(kernels: str) -> None:
    """When this fails on a new PyTorch, elmokit still works, slower: see ``products.pack`` for another way."""
    if torch.backends.mkldnn.is_available() and "fbgemm" in torch.backends.quantized.supported_engines:
        assert products.offers(kernels)


@pytest.mark.parametrize("kernels", [*TOLERANCE, "fbgemm-int8"])
def test_a_packed_product_is_the_product(kernels: str) -> None:
    if not products.offers(kernels):
        pytest.skip(f"this machine does not offer {kernels}")

    @settings(max_examples=25, deadline=None)
    @given(rows=st.integers(1, 70), n_in=st.integers(1, 70), n_out=st.integers(1, 70), biased=st.booleans())
    def check(rows: int, n_in: int, n_out: int, biased: bool) -> None:
        torch.manual_seed(rows)
        weight, inputs = torch.randn(n_out, n_in) / n_in**0.5, torch.randn(rows, n_in)
        bias = torch.randn(n_out) if biased else None
        found, expected = products.pack(kernels, weight, bias)(inputs), F.linear(inputs, weight, bias)
        within = TOLERANCE.get(kernels, 0.03 * float(inputs.abs().max()))  # int8: half a step of 1/64 of the largest
        torch.testing.assert_close(found, expected, atol=within, rtol=within)

    check()


@pytest.mark.parametrize("error", [RuntimeError, AttributeError, NotImplementedError])
def test_a_call_that_fails_is_not_offered(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(weight: torch.Tensor, bias: torch.Tensor | None) -> products.Product:
        raise error("no such operator")

    monkeypatch.setitem(products.PACKERS, "gone", gone)
    assert not products.offers("gone")


def test_a_call_that_gives_something_else_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        products.PACKERS, "changed", lambda weight, bias: lambda inputs: F.linear(inputs, -weight, bias)
    )
    assert not products.offers("changed")
