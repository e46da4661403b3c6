"""Choose the backend that computes the network.

Three families of backends compute the same formulas:

- ``reference``: PyTorch operations, one step at a time. Slow and simple; every other backend is tested against it.
- ``torch...``: one loop in Python around PyTorch's matrix products: on a GPU, and where there are no C functions.
- ``native...``: the engine (``elmokit/engine``), whose C functions come from the wheel or are built with the available
  C compiler when they are first needed, for the best instruction set of the processor.

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

from elmokit.engine.library import Library
from elmokit.engine.precision import Precision
from elmokit.errors import ConfigError

VARIABLE = "ELMOKIT_BACKEND"
BackendRequest = Literal["reference"] | Precision
Backend = Literal["reference", "native", "native-bfloat16", "native-int8", "torch", "torch-bfloat16"]

# The backends that are C functions, with the precision of their packed weights.
NATIVE: dict[Backend, Precision] = {"native": "float32", "native-bfloat16": "bfloat16", "native-int8": "int8"}

# Each tuple is an order of preference. A request names the lowest precision that is acceptable, so its fallbacks are
# always at least as exact.
ON_CPU: dict[BackendRequest, tuple[Backend, ...]] = {
    "reference": ("reference",),
    "float32": ("native", "torch"),
    "bfloat16": ("native-bfloat16", "torch"),
    "int8": ("native-int8", "torch"),
}
# The engine does not run on a GPU, and there is no int8 backend for it: int8 falls back to bfloat16.
ON_GPU: dict[BackendRequest, tuple[Backend, ...]] = {
    "reference": ("reference",),
    "float32": ("torch",),
    "bfloat16": ("torch-bfloat16",),
    "int8": ("torch-bfloat16",),
}


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
    """Return whether this system can run a backend."""
    return backend not in NATIVE or native_library() is not None


def native_library() -> Library | None:
    """Return the C functions, loaded or built on the first call; None if neither is possible."""
    # Imported here because the compiler needs the cache directory, and importing the network must not touch either.
    from elmokit.engine import compiler

    return compiler.load_library()


def n_threads() -> int:
    """Return the number of threads that compute a call: PyTorch's, but no more than can run at the same time."""
    from elmokit.engine.threads import available_threads  # it reads files of the system

    return min(torch.get_num_threads(), available_threads())


def native_library_for(tensor: Tensor) -> Library | None:
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
    return library is not None and bool(library.has_bfloat16())


def tile_library_for(tensor: Tensor) -> Library | None:
    """Return the C functions if autocast asks for bfloat16 and they can multiply such numbers."""
    if not torch.is_autocast_enabled("cpu") or torch.get_autocast_dtype("cpu") != torch.bfloat16:
        return None
    return native_library_for(tensor) if multiplies_bfloat16() else None


def describe_backends(device: str = "cpu") -> str:
    """Return a table of the backends for a device: which are available, and which requests select them."""
    from elmokit.engine import compiler

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
