"""Open the network without gradients: in C where that is possible, else in NumPy."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping

from elmokit.engine import compiler
from elmokit.engine.config import BiLMConfig
from elmokit.engine.engine import Engine
from elmokit.engine.network import Network
from elmokit.engine.precision import BackendRequest
from elmokit.engine.state import Floats


def open_engine(
    config: BiLMConfig, arrays: Mapping[str, Floats], request: BackendRequest, threads: int | None = None
) -> Network:
    """Return a biLM that is ready to compute.

    Args:
        config: The architecture.
        arrays: The weights, by the names of :func:`~elmokit.engine.config.tensor_shapes`. Each is asked for once, so a
            mapping may read it from a file at that moment. Without C functions, NumPy computes with arrays in float32
            where they are; they must not change then.
        request: The lowest precision in which weights may be computed; or "reference", which computes in NumPy even if
            there are C functions. NumPy computes in float32 in any case.
        threads: As in :class:`~elmokit.engine.engine.Engine`.

    Raises:
        MemoryError: There is too little memory for the weights.
        ValueError: An array has the wrong shape.
    """
    library = None if request == "reference" else compiler.load_library()
    if library is not None and request != "reference":
        return Engine(config, arrays, request, library, threads)
    # Imported here, because few need it.
    from elmokit.engine.reference import ReferenceEngine

    if request != "reference":
        _warn_once(compiler.why_unavailable())
    return ReferenceEngine(config, arrays)


@functools.cache
def _warn_once(why: str) -> None:
    """Warn that there are no C functions: not for every model that a process opens."""
    warnings.warn(
        f"The C functions are unavailable: {why}. NumPy computes the network instead, in float32 and some three to "
        "five times slower. On Linux, install a wheel of elmokit or a C compiler.",
        stacklevel=3,
    )
