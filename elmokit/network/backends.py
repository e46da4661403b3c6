"""The C functions, for the PyTorch modules."""

from __future__ import annotations

from elmokit.engine.library import Library
from elmokit.engine.precision import requested_backend


def native_library() -> Library | None:
    """Return the C functions, loaded or compiled on the first call; None if neither is possible."""
    # Imported here so that importing the network needs neither a compiler nor the cache directory.
    from elmokit.engine import compiler

    return compiler.load_library()


def multiplies_bfloat16() -> bool:
    """Check whether the C functions can multiply in bfloat16 (AMX, AVX-512 BF16), for training."""
    if requested_backend() == "reference":
        return False
    library = native_library()
    return library is not None and bool(library.has_bfloat16())
