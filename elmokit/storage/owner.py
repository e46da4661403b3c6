"""Who writes to a store: :class:`Owner`.

Some network file systems grant every lock, so two machines may write to one store. The one that opened it first stops
when it sees the name of the other, which it cannot do between looking and writing. The other one therefore compares
everything with its checksums before it is done.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from elmokit.errors import LockedError

OWNER = "owner"
"""The file that names the process that opened a store last: a random number for each time that it is opened."""


class Owner:
    """This process as the owner of a store.

    Args:
        folder: The store.
        locked_message: The error text if another process has opened the store.

    Attributes:
        is_shared: Whether another process had it open before this one: it still runs, or was interrupted.
    """

    def __init__(self, folder: Path, locked_message: str | None) -> None:
        self._folder = folder
        self._message = locked_message or f"Another process is writing to {folder}. Wait for it."
        self._name = os.urandom(8)
        self._is_lost = False
        self.is_shared = False

    def take(self) -> None:
        """Write the name of this process."""
        try:
            with (self._folder / OWNER).open("xb") as file:  # of several processes, only one creates it
                file.write(self._name)
        except FileExistsError:
            self.is_shared = True
            (self._folder / OWNER).write_bytes(self._name)

    def check(self) -> None:
        """Raise a LockedError if another process has taken the store."""
        # If the directory was deleted, the next write says so.
        if self._recorded() != self._name and self._folder.exists():
            self._is_lost = True
            raise LockedError(self._message)

    def release(self) -> None:
        """Remove the name, if it is still that of this process."""
        if self._recorded() == self._name:
            with contextlib.suppress(OSError):  # such as a disk that has become read-only
                (self._folder / OWNER).unlink()

    def others_may_use(self) -> bool:
        """Check whether another process may be writing to the store, so that nothing may be removed."""
        recorded = self._recorded()
        is_other = recorded != self._name and len(recorded) == len(self._name)  # one cut short met a full disk
        return self._is_lost or self.is_shared or is_other

    def _recorded(self) -> bytes:
        try:
            with (self._folder / OWNER).open("rb") as file:
                return file.read(len(self._name) + 1)  # whatever is there now, perhaps without an end
        except FileNotFoundError:
            return b""
