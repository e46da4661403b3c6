"""The precisions that a model can be computed in, how one is chosen, and descriptions of computations."""

from __future__ import annotations

import os
from typing import Any, Literal, NamedTuple, get_args

from elmokit.config import check_choice
from elmokit.errors import SettingError

Precision = Literal["float32", "bfloat16", "int8", "int7"]
"""The minimum precision of the weights; see :data:`PRECISIONS`."""


class PrecisionInfo(NamedTuple):
    """What a precision rounds."""

    bytes_per_weight: int
    rounds: str


# In the order of their numbers in `packed_product.h`, most precise first. That file has their products, `matrix.c`
# packs their weights, and `engine.c` decides which is faster.
PRECISIONS: dict[Precision, PrecisionInfo] = {
    "float32": PrecisionInfo(4, "nothing"),
    "bfloat16": PrecisionInfo(2, "each weight to 8 binary digits; with AMX or AVX-512 BF16, each input too"),
    "int8": PrecisionInfo(1, "each row of weights to 255 levels, and the inputs of each product likewise"),
    "int7": PrecisionInfo(1, "each row of weights to 127 levels or more, and the inputs of each product to 255"),
}
NAMES: tuple[Precision, ...] = get_args(Precision)

VARIABLE = "ELMOKIT_BACKEND"
BackendRequest = Literal["reference"] | Precision
"""The minimum precision; or "reference" for the plain formulas, slow and exact, against which all else is tested."""
REQUESTS: tuple[BackendRequest, ...] = ("reference", *NAMES)


def check_precision(precision: str | None) -> None:
    """Check that a precision exists; None means the model's."""
    if precision is not None:
        check_choice("precision", precision, PRECISIONS)


def requested_backend(precision: Precision | None = None) -> BackendRequest:
    """Resolve the request: ``ELMOKIT_BACKEND`` if set, else the given precision, else float32.

    The environment variable is for users who cannot change the call. It is ``auto`` (no override), a precision, or
    ``reference``.

    Raises:
        ConfigError: ``ELMOKIT_BACKEND`` has an unknown value.
    """
    # Read on every call, because tests and notebooks may change the variable while the process runs.
    override = os.environ.get(VARIABLE) or "auto"
    if override == "auto":
        return precision or "float32"
    for request in REQUESTS:
        if override == request:
            return request
    raise SettingError(VARIABLE, f"is {override!r}; it must be one of auto, {', '.join(REQUESTS)}.")


Backend = str
"""How a layer is computed: a name in :data:`NATIVE`, or "reference" for the plain formulas in NumPy or PyTorch."""
NATIVE: dict[Backend, Precision] = {
    "native" if precision == "float32" else f"native-{precision}": precision for precision in PRECISIONS
}
"""The backends in C, with the precision of their packed weights."""


class Kernels(NamedTuple):
    """How a model is computed without gradients. Equal kernels give equal bits."""

    token_layer: Precision
    """The precision of the token layer, which may be higher than requested if that is faster."""
    lstm: Precision
    """The precision of the LSTM layers, likewise."""
    instructions: str
    """The C functions' instruction set; without C functions, NumPy's version."""


class LayerKernel(NamedTuple):
    """How a layer is computed when no gradient is needed."""

    backend: Backend
    precision: Precision  # of the weights
    instructions: str | None  # for a ``native`` backend, the C functions' instruction set


PLAIN_KERNEL = LayerKernel("reference", "float32", None)


def native_kernel(instructions: str, precision: Precision) -> LayerKernel:
    """Return the C kernel for an instruction set and precision."""
    (backend,) = (name for name, of_backend in NATIVE.items() if of_backend == precision)
    return LayerKernel(backend, precision, instructions)


class Computation(NamedTuple):
    """How all layers of a model are computed when no gradient is needed.

    A model gives the same bits wherever its computation is the same. Different instruction sets differ in the last bits
    of float32, and more in the lower precisions, because some of them also round inputs.
    """

    device: str
    """The type of the device, such as "cpu"."""
    instructions: str | None
    """The C functions' instruction set; without C functions, NumPy's or PyTorch's; None on a GPU."""
    precision: Precision
    """The lowest precision of any layer."""
    kernels: tuple[Backend, ...]
    """The backend of the token layer and of each LSTM layer: the forward layers, then the backward layers."""

    def __str__(self) -> str:
        """Return a short description, such as "int8 (native-int8, avx512-vnni, cpu)"."""
        parts = [*dict.fromkeys(self.kernels), self.instructions, self.device]
        return f"{self.precision} ({', '.join(part for part in parts if part is not None)})"

    def settings(self) -> dict[str, Any]:
        """Return everything as JSON values, for stores that must not mix computations."""
        return {**self._asdict(), "kernels": list(self.kernels)}


def computation_of(
    token_layer: LayerKernel,
    lstm_layers: list[LayerKernel],
    device: str,  # its type
    fallback: str,  # what the CPU uses without C functions
) -> Computation:
    """Combine the kernels of all layers."""
    kernels = [token_layer, *lstm_layers]
    native = {kernel.instructions for kernel in kernels} - {None}
    return Computation(
        device=device,
        # All C functions come from one library.
        instructions=native.pop() if native else fallback if device == "cpu" else None,
        precision=max((kernel.precision for kernel in kernels), key=NAMES.index),
        kernels=tuple(kernel.backend for kernel in kernels),
    )


def engine_computation(
    kernels: Kernels,  # what the engine chose
    n_layers: int,  # LSTM layers, in all directions
    looks_up: bool,  # the token layer is a table lookup
) -> Computation:
    """Describe how the engine computes a model."""
    own = native_kernel(kernels.instructions, kernels.token_layer)
    token_layer = PLAIN_KERNEL if looks_up else own
    lstm_layers = [native_kernel(kernels.instructions, kernels.lstm)] * n_layers
    return computation_of(token_layer, lstm_layers, "cpu", kernels.instructions)
