"""How much memory a call takes."""

from __future__ import annotations

import resource
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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


def resident_bytes() -> int:
    """Return the memory that this process has now, as Linux counts it."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
