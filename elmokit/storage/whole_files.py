"""Files that are read whole, up to a limit."""

from __future__ import annotations

from pathlib import Path

MAX_RECORD_BYTES = 1 << 28
"""The limit on a file that elmokit writes itself and that grows with a run, such as a journal."""


def is_file(path: Path) -> bool:
    """Whether there is a file; none for what cannot be a name, such as one of 5,000 letters from a strange config."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_bounded(path: str | Path, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """Read a whole file; one that is larger than ``max_bytes`` is a ValueError."""
    if Path(path).stat().st_size > max_bytes:
        raise ValueError(f"it is larger than {max_bytes:,} bytes")
    return Path(path).read_bytes()
