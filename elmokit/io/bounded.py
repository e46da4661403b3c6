"""Read a whole file, but not without limit: a link to ``/dev/zero`` would fill all memory."""

from __future__ import annotations

import os
from pathlib import Path

MAX_RECORD_BYTES = 1 << 28
"""The limit on a file of records that elmokit writes itself, such as a journal."""


def read_bounded(path: str | Path, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """Read a whole file.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is larger than ``max_bytes``.
    """
    with Path(path).open("rb") as file:
        # `read` allocates as much as it is asked for. A file without a size, such as a device, has more than one byte.
        data = file.read(min(os.fstat(file.fileno()).st_size, max_bytes) + 1)
        if more := file.read(1):
            data += more + file.read(max(0, max_bytes - len(data)))
    if len(data) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes:,} bytes")
    return data
