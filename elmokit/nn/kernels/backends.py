"""The one place that chooses kernels: by what was asked for and what the processor offers.

``ELMOKIT_KERNELS`` asks, and every name says the least precision that is allowed:

=============  ==========================================================================================
``auto``       float32 (the default)
``plain``      the formulas step by step in PyTorch's own operations; what all others are tested against
``float32``    equal to the plain path to 1e-5
``bf16``       weights of the LSTMs in 16 bits
``int8``       weights of the LSTMs in 8 bits, a scale per row; inputs of products quantised, a scale per token
=============  ==========================================================================================

What a processor (or this PyTorch, or the lack of a C compiler) does not offer is replaced by the next kernel that is at
least as exact. The recurrent state and the token layer stay in float32 throughout.
"""

from __future__ import annotations

import os
from typing import Literal

import torch
from torch import Tensor

from elmokit.errors import ConfigError
from elmokit.nn.kernels import compiler as compiled
from elmokit.nn.kernels import products
from elmokit.nn.kernels.native import Library

VARIABLE = "ELMOKIT_KERNELS"
Asked = Literal["auto", "plain", "float32", "bf16", "int8"]
Kernels = Literal[
    "plain", "compiled", "onednn", "library", "onednn-bf16", "fbgemm-float16", "library-bf16", "fbgemm-int8"
]

_FLOAT32: tuple[Kernels, ...] = ("compiled", "onednn", "library")
_HALF: tuple[Kernels, ...] = ("onednn-bf16", "fbgemm-float16", *_FLOAT32)
ON_CPU: dict[Asked, tuple[Kernels, ...]] = {
    "plain": ("plain",),
    "auto": _FLOAT32,
    "float32": _FLOAT32,
    "bf16": _HALF,
    "int8": ("fbgemm-int8", *_HALF),
}
ON_GPU: dict[Asked, tuple[Kernels, ...]] = {
    "plain": ("plain",),
    "auto": ("library",),
    "float32": ("library",),
    "bf16": ("library-bf16",),
    "int8": ("library-bf16",),
}


def asked() -> Asked:
    """What ``ELMOKIT_KERNELS`` asks for.

    Raises:
        ConfigError: it is no such name.
    """
    name = os.environ.get(VARIABLE) or "auto"
    if name not in ON_CPU:
        raise ConfigError(f"{VARIABLE} is {name!r}; it is one of {', '.join(ON_CPU)}.")
    return name


def choose(device: torch.device, asked: Asked) -> Kernels:
    """The first of the kernels that suit the request which this machine offers."""
    table = ON_CPU if device.type == "cpu" else ON_GPU
    return next((kernels for kernels in table[asked] if offers(kernels)), "plain")


def compiled_for(tensor: Tensor) -> Library | None:
    """The compiled functions, where they can compute on this tensor and nobody asked for the plain path."""
    if tensor.device.type != "cpu" or tensor.dtype != torch.float32 or asked() == "plain":
        return None
    return compiled.library()


def offers(kernels: Kernels) -> bool:
    """Whether the processor, this PyTorch and (for ``compiled``) a C compiler offer them."""
    if kernels == "compiled":
        return compiled.library() is not None
    return kernels == "plain" or products.offers(kernels)
