"""Read a whole file or number, but not without limit: a link to ``/dev/zero`` would fill all memory."""

from __future__ import annotations

import os
from pathlib import Path

MIB = 1 << 20
MAX_RECORD_BYTES = 1 << 28
"""The limit on a file that elmokit writes itself and that grows with a run, such as a journal."""
LARGEST_LINE_LIMIT = 1 << 40
"""The largest limit on the length of a line that can be chosen."""
_CHUNK_BYTES = 1 << 20
_MAX_DIGITS = 18  # such numbers fit into 64 bits


def is_file(path: Path) -> bool:
    """Whether there is a file; none for what cannot be a name, such as one of 5,000 letters from a strange config."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_bounded(path: str | Path, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """Read a whole file; one that is larger than ``max_bytes`` is a ValueError."""
    with Path(path).open("rb") as file:
        # `read` allocates as much as it is asked for. A device or a pipe has no size: the rest is read in chunks, so
        # that it takes no more memory than the limit.
        size = os.fstat(file.fileno()).st_size
        chunks = [file.read(min(size, max_bytes) + 1)]
        n_bytes = len(chunks[0])
        while chunks[-1] and size < n_bytes <= max_bytes:
            chunks.append(file.read(_CHUNK_BYTES))
            n_bytes += len(chunks[-1])
    if n_bytes > max_bytes:
        raise ValueError(f"it is larger than {max_bytes:,} bytes")
    return b"".join(filter(None, chunks))  # does not copy a single chunk


def whole_number(text: str) -> int | None:
    """Return the number that a text of decimal digits is; None for any other text, or more than 18 digits."""
    # Python refuses to read or print numbers of more than 4,300 digits. ``isdigit`` accepts "²", which is no number.
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else None
