"""Choose the backend that computes the network.

Three families of backends compute the same formulas:

- ``reference``: PyTorch operations, one step at a time. Slow and simple; every other backend is tested against it.
- ``torch...``: one loop in Python around matrix products on packed weights. The products come from the libraries inside
  PyTorch (oneDNN, FBGEMM), some of them in a lower precision.
- ``native...``: C functions (``nn/kernels/*.c``), from the wheel or built with the available C compiler when they are
  first needed, for the best instruction set of the processor (``instruction_sets.py``, ``compiler.py``).

A model asks for the lowest *precision* that it accepts (``Elmo.from_pretrained(precision=...)``). The first available
backend in that precision's row of ``ON_CPU`` or ``ON_GPU`` computes; each row falls back to backends that are at
least as exact. Only weights and inputs of the matrix products of the LSTMs and of the token layer are ever rounded:
states and sums stay in float32. The token layer is rounded by the C functions only.

The environment variable ``ELMOKIT_BACKEND`` overrides the model's precision, for those who cannot change the call. It
is ``auto`` (no override), a precision, or ``reference``.
"""

from __future__ import annotations

import os
from typing import Literal

import torch
from torch import Tensor

from elmokit.errors import ConfigError
from elmokit.nn.kernels import torch_products
from elmokit.nn.kernels.native import NativeLibrary, Precision

VARIABLE = "ELMOKIT_BACKEND"
BackendRequest = Literal["reference"] | Precision
Backend = Literal[
    "reference",
    "native",
    "native-bfloat16",
    "native-int8",
    "torch",
    "torch-onednn",
    "torch-onednn-bfloat16",
    "torch-fbgemm-float16",
    "torch-bfloat16",
    "torch-fbgemm-int8",
]

# The backends that are C functions, with the precision of their packed weights.
NATIVE: dict[Backend, Precision] = {"native": "float32", "native-bfloat16": "bfloat16", "native-int8": "int8"}

# Each tuple is an order of preference, by measured speed. For the main shape of the original model, PyTorch's ordinary
# product reached 89 GFLOP/s, oneDNN with packed weights 136, and a whole layer in C 150 (docs/about/log/kernels.md).
_FLOAT32: tuple[Backend, ...] = ("native", "torch-onednn", "torch")
# The C functions widen weights to float32 on any processor, or use AMX.
# Weights in float16 have more digits than in bfloat16; FBGEMM multiplies and adds them in float32.
_BFLOAT16: tuple[Backend, ...] = ("native-bfloat16", "torch-onednn-bfloat16", "torch-fbgemm-float16", *_FLOAT32)
ON_CPU: dict[BackendRequest, tuple[Backend, ...]] = {
    "reference": ("reference",),
    "float32": _FLOAT32,
    "bfloat16": _BFLOAT16,
    # A request names the lowest precision that is acceptable, so its fallbacks are always at least as exact.
    "int8": ("native-int8", "torch-fbgemm-int8", *_BFLOAT16),
}
# A GPU runs neither FBGEMM nor the C functions, and there is no int8 backend for it: int8 falls back to bfloat16.
ON_GPU: dict[BackendRequest, tuple[Backend, ...]] = {
    "reference": ("reference",),
    "float32": ("torch",),
    "bfloat16": ("torch-bfloat16",),
    "int8": ("torch-bfloat16",),
}


def check_precision(precision: str | None) -> None:
    """Check a precision that a user asked for.

    Raises:
        ConfigError: It is neither a known precision nor None.
    """
    # "reference" is a backend for tests, not a precision; it is reachable through ELMOKIT_BACKEND only.
    if precision is not None and (precision not in ON_CPU or precision == "reference"):
        raise ConfigError(f"precision is {precision!r}. Use 'float32', 'bfloat16', 'int8' or None.")


def requested_backend(precision: Precision | None = None) -> BackendRequest:
    """Return the requested backend or precision: ``ELMOKIT_BACKEND`` if set, else the model's precision, else float32.

    Raises:
        ConfigError: ``ELMOKIT_BACKEND`` has an unknown value.
    """
    # Read on every call, not on import: tests and notebooks change the variable while the process runs.
    override = os.environ.get(VARIABLE) or "auto"
    if override == "auto":
        return precision or "float32"
    if override not in ON_CPU:
        raise ConfigError(f"{VARIABLE} is {override!r}. Use one of auto, {', '.join(ON_CPU)}.")
    return override


def select_backend(device: torch.device, request: BackendRequest) -> Backend:
    """Return the first available backend for a request on a device."""
    preferences = ON_CPU if device.type == "cpu" else ON_GPU
    return next((backend for backend in preferences[request] if is_available(backend)), "reference")


def is_available(backend: Backend) -> bool:
    """Return whether this processor, this PyTorch and (for ``native...``) this system can run a backend."""
    if backend in NATIVE:
        return native_library() is not None
    return backend == "reference" or torch_products.works(backend)


def native_library() -> NativeLibrary | None:
    """Return the C functions, loaded or built on the first call; None if neither is possible."""
    # Imported here because the compiler needs the cache directory, and importing the network must not touch either.
    from elmokit.nn.kernels import compiler

    return compiler.load_library()


def native_library_for(tensor: Tensor) -> NativeLibrary | None:
    """Return the C functions if they can compute on this tensor and ``reference`` was not requested."""
    # Its callers, the token layer and training, do not use the precision of inference: only "reference" matters.
    if tensor.device.type != "cpu" or tensor.dtype != torch.float32 or requested_backend() == "reference":
        return None
    return native_library()


def multiplies_bfloat16() -> bool:
    """Return whether the C functions can multiply bfloat16 numbers (AMX, AVX-512 BF16), for training."""
    if requested_backend() == "reference":
        return False
    library = native_library()
    return library is not None and library.has_bfloat16


def tile_library_for(tensor: Tensor) -> NativeLibrary | None:
    """Return the C functions if autocast asks for bfloat16 and they can multiply such numbers."""
    if not torch.is_autocast_enabled("cpu") or torch.get_autocast_dtype("cpu") != torch.bfloat16:
        return None
    return native_library_for(tensor) if multiplies_bfloat16() else None


def describe_backends(device: str = "cpu") -> str:
    """Return a table of the backends for a device: which are available, and which requests select them."""
    from elmokit.nn.kernels import compiler

    preferences = ON_CPU if device == "cpu" else ON_GPU
    selected = {request: select_backend(torch.device(device), request) for request in preferences}
    lines = [f"{'backend':<22} {'available':<10} selected for"]
    for backend in dict.fromkeys(backend for row in preferences.values() for backend in row):
        requests = ", ".join(request for request, choice in selected.items() if choice == backend)
        lines.append(f"{backend:<22} {'yes' if is_available(backend) else 'no':<10} {requests}".rstrip())
    if (library := compiler.load_library()) is not None:
        lines.append(f"native is built for {library.instructions}")
    if reason := compiler.why_unavailable():
        lines.append(f"native is unavailable: {reason}")
    return "\n".join(lines)
