"""The directory for downloads and compiled kernels."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from elmokit.errors import OutputError


def cache_dir() -> Path:
    """Return the cache directory: ``ELMOKIT_CACHE`` if set, else the platform's usual place for caches."""
    if chosen := os.environ.get("ELMOKIT_CACHE"):
        try:
            return Path(chosen).expanduser()
        except RuntimeError:
            raise OutputError(f"ELMOKIT_CACHE is {chosen!r}, but that user does not exist. Use a full path.") from None
    import platformdirs  # here, because an installed wheel with a model of one's own needs no cache

    # A user id without an entry in the password database, as in some containers, has no home. platformdirs 4.0 then
    # returns a directory named ~.
    with suppress(RuntimeError):
        if (path := platformdirs.user_cache_path("elmokit", appauthor=False)).is_absolute():
            return path
    raise OutputError("There is no home directory for the cache. Set ELMOKIT_CACHE to a writable directory.")
