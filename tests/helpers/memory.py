"""How much memory a call takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def less_memory_than(n_bytes: float) -> Iterator[None]:
    """Fail if Python allocates as much as this at any moment inside the block."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < n_bytes
