"""Matrix products with weights packed once, by the libraries inside PyTorch.

All but ``library`` go through calls that PyTorch does not promise to keep. Each is tried once, on a small product whose
result is known; what is missing, fails or gives something else is not offered, and ``choose`` takes the next.
``tests/test_products.py`` fails when a PyTorch takes one away, so that it does not go unnoticed.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Product = Callable[[Tensor], Tensor]
"""``(rows, inputs)`` in float32 to a new ``(rows, outputs)`` in float32."""

TYPICAL_ROWS = 64  # oneDNN lays weights out for a number of rows; others work too
_PROBE = (5, 64, 32)  # rows, inputs, outputs


def pack(kernels: str, weight: Tensor, bias: Tensor | None = None) -> Product:
    """``inputs @ weight.T + bias`` with the weight packed.

    Args:
        kernels: a name in ``PACKERS``.
        weight: ``(outputs, inputs)``.
    """
    with warnings.catch_warnings():
        # PyTorch's quantised tensors are deprecated; when they are gone, ``offers`` will say so.
        warnings.filterwarnings("ignore", category=UserWarning)
        return PACKERS[kernels](weight.detach(), None if bias is None else bias.detach())


@functools.cache
def offers(kernels: str) -> bool:
    """Whether the processor has the instructions and this PyTorch the calls: tried once, on a known product."""
    if not _ADVISABLE.get(kernels, lambda: True)():
        return False
    n_rows, n_inputs, n_outputs = _PROBE
    weight = torch.linspace(-1, 1, n_outputs * n_inputs).view(n_outputs, n_inputs).sin()
    inputs = torch.linspace(-1, 1, n_rows * n_inputs).view(n_rows, n_inputs).cos()
    bias = torch.linspace(-1, 1, n_outputs)
    expected = F.linear(inputs, weight, bias)
    try:
        with torch.no_grad():
            found = pack(kernels, weight, bias)(inputs)
    except (RuntimeError, AttributeError, TypeError, NotImplementedError):
        return False
    return found.dtype == torch.float32 and bool((found - expected).abs().max() <= 0.02 * expected.abs().max())


def _library(weight: Tensor, bias: Tensor | None) -> Product:
    """PyTorch's ordinary product: nothing packed, any device."""
    return lambda inputs: F.linear(inputs, weight, bias)


def _library_bf16(weight: Tensor, bias: Tensor | None) -> Product:
    half = weight.bfloat16()

    def product(inputs: Tensor) -> Tensor:
        outputs = F.linear(inputs.bfloat16(), half).float()
        return outputs if bias is None else outputs.add_(bias)

    return product


def _onednn(weight: Tensor, bias: Tensor | None) -> Product:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)
    linear = torch.ops.mkldnn._linear_pointwise
    return lambda inputs: linear(inputs, packed, bias, "none", [], "")


def _onednn_bf16(weight: Tensor, bias: Tensor | None) -> Product:
    product = _onednn(weight.bfloat16(), None)

    def with_bias(inputs: Tensor) -> Tensor:
        outputs = product(inputs.bfloat16()).float()
        return outputs if bias is None else outputs.add_(bias)  # in float32: the sum of many is not rounded twice

    return with_bias


def _fbgemm_float16(weight: Tensor, bias: Tensor | None) -> Product:
    """Weights kept in float16, products and sums in float32."""
    packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
    linear = torch.ops.quantized.linear_dynamic_fp16
    return lambda inputs: linear(inputs, packed)


def _fbgemm_int8(weight: Tensor, bias: Tensor | None) -> Product:
    """Weights in 8 bits with a scale per output; inputs quantised as they come, with a scale per row.

    FBGEMM takes one scale for all rows of a call, from the least and the greatest input. So rows are brought to a
    largest magnitude of 1, and two more inputs, 1 and -1 with weight 0, keep the range the same whatever the rows:
    what is computed for a row does not depend on the rows beside it.
    """
    n_inputs = weight.shape[1]
    scales = weight.abs().amax(dim=1).double().clamp(min=1e-12) / 127
    zeros = torch.zeros(len(weight), dtype=torch.long)
    quantised = torch.quantize_per_channel(F.pad(weight, (0, 4)), scales, zeros, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(quantised, None)
    linear = torch.ops.quantized.linear_dynamic
    frame = torch.tensor([1.0, -1.0, 0.0, 0.0])  # four, since weights are packed by four
    # Without VNNI two products are summed in 16 bits first: inputs then keep to 7 bits, so that none overflows.
    reduce_range = not _processor_has("vnni")

    def product(inputs: Tensor) -> Tensor:
        sizes = inputs.abs().amax(dim=1, keepdim=True).clamp_(min=1e-30)
        framed = inputs.new_empty(len(inputs), n_inputs + len(frame))
        torch.div(inputs, sizes, out=framed[:, :n_inputs])
        framed[:, n_inputs:] = frame
        outputs: Tensor = linear(framed, packed, reduce_range).mul_(sizes)
        return outputs if bias is None else outputs.add_(bias)

    return product


PACKERS: dict[str, Callable[[Tensor, Tensor | None], Product]] = {
    "library": _library,
    "library-bf16": _library_bf16,
    "onednn": _onednn,
    "onednn-bf16": _onednn_bf16,
    "fbgemm-float16": _fbgemm_float16,
    "fbgemm-int8": _fbgemm_int8,
}


def _processor_has(instructions: str) -> bool:
    """Whether PyTorch says that the processor has ``vnni`` or ``avx512_bf16``; no, if it does not say."""
    return bool(getattr(torch.cpu, f"_is_{instructions}_supported", lambda: False)())


# On other processors oneDNN would compute bf16 through float32, slower than float32 itself.
_ADVISABLE: dict[str, Callable[[], bool]] = {"onednn-bf16": lambda: _processor_has("avx512_bf16")}
