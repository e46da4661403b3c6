"""How much time a call takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def less_time_than(seconds: float) -> Iterator[None]:
    """Fail if the block takes more processor time than this."""
    started = time.process_time()
    yield
    assert time.process_time() - started < seconds
