"""One packed matrix, for products outside of the network: a row gets the same bits in any batch."""

from __future__ import annotations

import ctypes

import numpy as np

from elmokit.engine.library import Library, address, check, close_with
from elmokit.engine.precision import NAMES, Precision
from elmokit.engine.state import Floats


class Matrix:
    """A packed matrix: ``rows @ weight.T + bias`` for a weight ``(outputs, inputs)`` and a bias ``(outputs,)`` or 0."""

    def __init__(self, weight: Floats, precision: Precision, library: Library, bias: Floats | None = None) -> None:
        self._library, self._shape = library, weight.shape
        handle = ctypes.c_void_p()
        weight = np.ascontiguousarray(weight, np.float32)
        given = None if bias is None else address("bias", bias, np.float32, weight.shape[:1])
        reason = library.open_matrix(
            NAMES.index(precision), *weight.shape, address("weight", weight, np.float32), given, ctypes.byref(handle)
        )
        check(library, reason)
        close_with(self, library.close_matrix, handle)
        self._handle = handle.value

    def __call__(self, rows: Floats, threads: int = 1) -> Floats:
        """Return ``(rows, outputs)`` for ``(rows, inputs)``."""
        outputs = np.empty((len(rows), self._shape[0]), np.float32)
        given = address("rows", rows, np.float32, (-1, self._shape[1]))
        to = address("outputs", outputs, np.float32)
        check(self._library, self._library.multiply(self._handle, threads, len(rows), given, to))
        return outputs
