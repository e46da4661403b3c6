"""Give weights to C: what all packed layers have in common."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from elmokit.engine.computation import Kernels
from elmokit.engine.library import Library, address
from elmokit.engine.network import UNKNOWN_IDS, WRONG_SIZES
from elmokit.engine.precision import NAMES, Precision
from elmokit.engine.state import Floats


def choose_kernels(library: Library, precision: Precision, n_weights: int) -> Kernels:
    """Return what computes a model where a precision was requested.

    Args:
        library: The C functions.
        precision: The lowest precision that is accepted.
        n_weights: Weights of an LSTM layer, without its projection.
    """
    chosen = library.structs["kernels"]()
    library.choose_kernels(NAMES.index(precision), n_weights, ctypes.byref(chosen))
    return Kernels(NAMES[chosen.token_layer], NAMES[chosen.lstm], library.instructions)


def pointers(weights: Mapping[str, Floats], names: Sequence[str]) -> list[int | None]:
    """Return where arrays begin, which must stay alive for as long as C reads them; None for those that are missing."""
    return [address(name, weights.get(name), np.float32) for name in names]


def open_packed(owner: object, library: Library, kind: str, struct: Any, precision: Precision) -> int | None:
    """Call the C function that opens packed weights of a kind, and have them freed with their owner.

    Returns:
        What C calls them by.
    """
    handle = ctypes.c_void_p()
    open_kind = getattr(library, f"open_{kind}")
    check(library, open_kind(ctypes.byref(struct), NAMES.index(precision), ctypes.byref(handle)))
    weakref.finalize(owner, getattr(library, f"close_{kind}"), handle.value)
    return handle.value


def check(library: Library, reason: int) -> None:
    """Raise the error that a C function returned the reason of; do nothing for 0, which means success."""
    if reason == library.constants["NO_MEMORY"]:
        raise MemoryError("There is too little memory for the model or the batch.")
    if reason == library.constants["BAD_IDS"]:
        raise ValueError(UNKNOWN_IDS)
    if reason == library.constants["BAD_LAYER"]:
        raise ValueError("A layer is packed twice, or computed before all layers are packed.")
    if reason:
        raise ValueError(WRONG_SIZES)
