"""Choose the backend that computes the network, and keep the weights that are prepared for it.

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

import functools
from collections.abc import Callable, Sequence
from typing import Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from elmokit.engine.computation import NATIVE, Backend
from elmokit.engine.library import Library
from elmokit.engine.precision import PRECISIONS, BackendRequest, requested_backend

T = TypeVar("T")
P = ParamSpec("P")
N_SAMPLED = 16  # numbers of each parameter that are compared on every call
_State = tuple[list[int], list[list[float]]]

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
    """Check whether this system can run a backend."""
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
    """Check whether the C functions can multiply bfloat16 numbers (AMX, AVX-512 BF16), for training."""
    if requested_backend() == "reference":
        return False
    library = native_library()
    return library is not None and bool(library.has_bfloat16())


def tile_library_for(tensor: Tensor) -> Library | None:
    """Return the C functions if autocast asks for bfloat16 and they can multiply such numbers."""
    if not torch.is_autocast_enabled("cpu") or torch.get_autocast_dtype("cpu") != torch.bfloat16:
        return None
    return native_library_for(tensor) if multiplies_bfloat16() else None


def never_compiled(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that ``torch.compile`` must call as it is: it cannot trace C functions."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        # Not `torch.compiler.disable` as the decorator: it imports `torch._dynamo`, which takes seconds.
        if torch.compiler.is_compiling():
            return torch.compiler.disable(function)(*args, **kwargs)  # type: ignore[no-any-return, no-untyped-call]
        return function(*args, **kwargs)

    return call


class ParameterCache(Generic[T]):
    """A value derived from parameters, such as packed weights, that is derived again when a parameter changes.

    PyTorch counts most in-place writes to a tensor (``_version``), but neither those of fused optimizers nor those
    through ``.data``. So we also compare the memory address and a few of the numbers of every parameter. Only a write
    of other single numbers through ``.data`` goes unnoticed.

    Copying or pickling a module does not copy the value: the copy derives its own.
    """

    def __init__(self) -> None:
        self._kept: tuple[str, list[Tensor], _State, T] | None = None

    def get(self, key: str, parameters: Sequence[Tensor], make: Callable[[], T]) -> T:
        """Return the kept value; if ``key`` or a parameter has changed, call ``make`` and keep its result."""
        kept = self._kept
        state = _state(parameters)
        # The address detects a tensor that was replaced (`.data = ...`, `.to(...)`), the version most in-place writes,
        # and the sample the others: `Adam(fused=True)` does not count its writes, so that every evaluation of a
        # training after the first once used outdated weights.
        if kept is not None and kept[0] == key and kept[2] == state and _same_memory(kept[1], parameters):
            return kept[3]
        self._kept = None  # free the old value before the new one takes memory
        value = make()
        # Holding on to the parameters keeps their memory from being reused for others at the same address.
        self._kept = (key, [parameter.detach() for parameter in parameters], state, value)
        return value

    @property
    def value(self) -> T | None:
        """The kept value, or None."""
        return None if self._kept is None else self._kept[3]

    def __reduce__(self) -> tuple[type[ParameterCache[T]], tuple[()]]:
        return ParameterCache, ()


def _same_memory(these: Sequence[Tensor], those: Sequence[Tensor]) -> bool:
    return all(this.data_ptr() == that.data_ptr() for this, that in zip(these, those, strict=True))


def _state(parameters: Sequence[Tensor]) -> _State:
    # Tensors made in inference mode have no version counter.
    versions = [0 if parameter.is_inference() else parameter._version for parameter in parameters]
    samples = [_sample(parameter.detach().flatten()) for parameter in parameters]
    if all(sample.device.type == "cpu" for sample in samples):
        return versions, [sample.tolist() for sample in samples]
    return versions, _read_at_once(samples)


def _sample(numbers: Tensor) -> Tensor:
    # Spread evenly over the tensor, because an optimizer changes nearly all numbers at once: any few of them will do.
    return numbers[:: max(1, len(numbers) // N_SAMPLED)]


def _read_at_once(samples: Sequence[Tensor]) -> list[list[float]]:
    """Copy all samples from a GPU at once: each copy waits until the GPU has computed everything before it."""
    return [torch.cat([sample.double() for sample in samples]).tolist()]
