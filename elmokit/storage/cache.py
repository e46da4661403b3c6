"""The directory for downloads and compiled kernels."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from elmokit.errors import OutputError


def cache_dir() -> Path:
    """Return the cache directory: ``ELMOKIT_CACHE`` if set, else the platform's usual place for caches."""
    chosen = os.environ.get("ELMOKIT_CACHE")
    # A user id without an entry in the password database, as in some containers, has no home; and there may be no user
    # of the name in a chosen "~user". platformdirs 4.0 then returns a directory named ~.
    with suppress(RuntimeError):
        if chosen:
            return Path(chosen).expanduser()
        import platformdirs  # here, because an installed wheel with a model of one's own needs no cache

        path = platformdirs.user_cache_path("elmokit", appauthor=False)
        if path.is_absolute():
            return path
    raise OutputError("There is no home directory for the cache. Set ELMOKIT_CACHE to a writable directory.")
