"""Read a small file into memory without trusting its size."""

from __future__ import annotations

from pathlib import Path


def read_bounded(path: str | Path, max_bytes: int) -> bytes:
    """Read a whole file, but not one that is larger than it can reasonably be, such as ``/dev/zero``.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is larger than ``max_bytes``.
    """
    with Path(path).open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes:,} bytes")
    return data
