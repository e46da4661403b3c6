"""Multiply by packed weights with the matrix libraries inside PyTorch (oneDNN, FBGEMM).

All but ``torch`` and ``torch-bfloat16`` use private or deprecated PyTorch calls. So each is tried once on a small
product whose result is known. If a call is missing, fails, or returns something else, the backend is reported as
unavailable and the next one in the table of ``backends.py`` is used. ``tests/test_torch_products.py`` fails when a
new PyTorch drops a call, so that this does not go unnoticed.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Product = Callable[[Tensor], Tensor]
"""Maps ``(rows, inputs)`` in float32 to a new tensor ``(rows, outputs)`` in float32."""

TYPICAL_ROWS = 64  # oneDNN packs weights for an expected number of rows; any other number works too
# All sizes differ, so that a transposed result cannot pass for the right one.
_TRIAL_SHAPE = (5, 64, 32)  # rows, inputs, outputs


def pack(backend: str, weight: Tensor, bias: Tensor | None = None) -> Product:
    """Return ``inputs @ weight.T + bias`` as a function with packed weights.

    Args:
        backend: A key of ``PACKERS``.
        weight: ``(outputs, inputs)``.
        bias: ``(outputs,)`` or None.
    """
    with warnings.catch_warnings():
        # PyTorch's quantized tensors are deprecated. When they are removed, ``works`` returns False for them.
        warnings.filterwarnings("ignore", category=UserWarning)
        return PACKERS[backend](weight.detach(), None if bias is None else bias.detach())


@functools.cache
def works(backend: str) -> bool:
    """Return whether a backend works: the processor has the instructions, and a trial product is right."""
    if not _WORTHWHILE.get(backend, lambda: True)():
        return False
    n_rows, n_inputs, n_outputs = _TRIAL_SHAPE
    weight = torch.linspace(-1, 1, n_outputs * n_inputs).view(n_outputs, n_inputs).sin()
    inputs = torch.linspace(-1, 1, n_rows * n_inputs).view(n_rows, n_inputs).cos()
    bias = torch.linspace(-1, 1, n_outputs)
    expected = F.linear(inputs, weight, bias)
    try:
        with torch.no_grad():
            result = pack(backend, weight, bias)(inputs)
    except (RuntimeError, AttributeError, TypeError, NotImplementedError):
        return False
    # 2 percent of the largest number: wide enough for 8 bits, narrow enough for any wrong layout.
    return result.dtype == torch.float32 and bool((result - expected).abs().max() <= 0.02 * expected.abs().max())


def _torch(weight: Tensor, bias: Tensor | None) -> Product:
    """Use PyTorch's ordinary product: nothing is packed, and any device works."""
    return lambda inputs: F.linear(inputs, weight, bias)


def _torch_bfloat16(weight: Tensor, bias: Tensor | None) -> Product:
    half = weight.bfloat16()

    def product(inputs: Tensor) -> Tensor:
        outputs = F.linear(inputs.bfloat16(), half).float()
        return outputs if bias is None else outputs.add_(bias)

    return product


def _onednn(weight: Tensor, bias: Tensor | None) -> Product:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)
    linear = torch.ops.mkldnn._linear_pointwise
    return lambda inputs: linear(inputs, packed, bias, "none", [], "")


def _onednn_bfloat16(weight: Tensor, bias: Tensor | None) -> Product:
    product = _onednn(weight.bfloat16(), None)

    def with_bias(inputs: Tensor) -> Tensor:
        outputs = product(inputs.bfloat16()).float()
        return outputs if bias is None else outputs.add_(bias)  # in float32, so that the sum is rounded only once

    return with_bias


def _fbgemm_float16(weight: Tensor, bias: Tensor | None) -> Product:
    """Keep weights in float16; multiply and add in float32."""
    packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
    linear = torch.ops.quantized.linear_dynamic_fp16
    return lambda inputs: linear(inputs, packed)


def _fbgemm_int8(weight: Tensor, bias: Tensor | None) -> Product:
    """Quantize weights to 8 bits with one scale per output, and inputs on the fly with one scale per row.

    FBGEMM uses one scale for all rows of a call, from the smallest and the largest input, so a row's result would
    depend on the other rows. To prevent that, each row is scaled to a largest magnitude of 1, and two additional
    inputs, 1 and -1 with weight 0, keep FBGEMM's range the same whatever the rows hold.
    """
    n_inputs = weight.shape[1]
    scales = weight.abs().amax(dim=1).double().clamp(min=1e-12) / 127
    zeros = torch.zeros(len(weight), dtype=torch.long)
    quantised = torch.quantize_per_channel(F.pad(weight, (0, 4)), scales, zeros, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(quantised, None)
    linear = torch.ops.quantized.linear_dynamic
    extremes = torch.tensor([1.0, -1.0, 0.0, 0.0])  # four, because weights are packed in groups of four
    # Without VNNI, pairs of products are added in 16 bits, which overflow; 7 bits for the inputs prevent that.
    reduce_range = not _processor_has("vnni")

    def product(inputs: Tensor) -> Tensor:
        sizes = inputs.abs().amax(dim=1, keepdim=True).clamp_(min=1e-30)
        extended = inputs.new_empty(len(inputs), n_inputs + len(extremes))
        torch.div(inputs, sizes, out=extended[:, :n_inputs])
        extended[:, n_inputs:] = extremes
        outputs: Tensor = linear(extended, packed, reduce_range).mul_(sizes)
        return outputs if bias is None else outputs.add_(bias)

    return product


PACKERS: dict[str, Callable[[Tensor, Tensor | None], Product]] = {
    "torch": _torch,
    "torch-bfloat16": _torch_bfloat16,
    "torch-onednn": _onednn,
    "torch-onednn-bfloat16": _onednn_bfloat16,
    "torch-fbgemm-float16": _fbgemm_float16,
    "torch-fbgemm-int8": _fbgemm_int8,
}


def _processor_has(instructions: str) -> bool:
    """Return whether PyTorch reports ``vnni`` or ``avx512_bf16``; False if it cannot tell."""
    return bool(getattr(torch.cpu, f"_is_{instructions}_supported", lambda: False)())


# Without these instructions oneDNN emulates bfloat16 through float32, which is slower than float32 itself.
_WORTHWHILE: dict[str, Callable[[], bool]] = {"torch-onednn-bfloat16": lambda: _processor_has("avx512_bf16")}
