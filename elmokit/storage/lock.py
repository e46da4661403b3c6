"""Locks that keep two processes from writing to the same place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from elmokit.errors import LockedError, cannot_write

LOCK = "lock"
"""The name of the lock file in a directory that one process at a time writes to."""


@contextlib.contextmanager
def file_lock(path: Path, message: str | None = None, wait: bool = False) -> Iterator[None]:
    """Hold an exclusive lock while the block runs, or raise a LockedError with ``message``; ``wait`` waits instead."""
    # The operating system releases it when the process ends. File systems without locks (some network mounts) grant
    # every lock. The lock file is created with its directory if missing, and left in place afterwards.
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise cannot_write(path.parent, error.strerror) from None
    import filelock  # here, because it loads much, and few commands lock anything

    lock = filelock.FileLock(path, timeout=-1 if wait else 0)
    granted_without_lock = False
    try:
        lock.acquire()
    except (filelock.Timeout, PermissionError):  # some network file systems report a held lock as EPERM
        raise LockedError(message or f"Another process is writing to {path.parent}.") from None
    except (NotImplementedError, OSError):
        granted_without_lock = True
    try:
        yield
    finally:
        if not granted_without_lock:
            lock.release()
