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
"""

from __future__ import annotations

import torch
from torch import Tensor

from elmokit.engine.computation import NATIVE, Backend
from elmokit.engine.library import Library
from elmokit.engine.precision import PRECISIONS, BackendRequest, requested_backend

# Each tuple is an order of preference. A request names the lowest precision that is acceptable, so its fallbacks are
# always at least as exact.
ON_CPU: dict[BackendRequest, tuple[Backend, ...]] = {
    "reference": ("reference",),
    **{precision: (backend, "torch") for backend, precision in NATIVE.items()},
}
# The engine does not run on a GPU, and there are no products of bytes for it: they fall back to bfloat16.
ON_GPU: dict[BackendRequest, tuple[Backend, ...]] = {
    "reference": ("reference",),
    **{precision: ("torch" if precision == "float32" else "torch-bfloat16",) for precision in PRECISIONS},
}


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
