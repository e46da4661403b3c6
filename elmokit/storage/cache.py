"""The directory for downloads and compiled kernels."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from elmokit.errors import OutputError


def cache_dir() -> Path:
    """Return the cache directory: ``ELMOKIT_CACHE`` if set, else the platform's usual place for caches."""
    chosen = os.environ.get("ELMOKIT_CACHE")
    # There is no home directory if the user id is not in the password database, as in some containers, or the user in
    # "~user" does not exist. platformdirs 4.0 then returns a directory named ~.
    with suppress(RuntimeError):
        if chosen:
            return Path(chosen).expanduser()
        import platformdirs  # imported here because a wheel with your own model needs no cache

        path = platformdirs.user_cache_path("elmokit", appauthor=False)
        if path.is_absolute():
            return path
    raise OutputError("No home directory for the cache was found. Set ELMOKIT_CACHE to a writable directory.")
