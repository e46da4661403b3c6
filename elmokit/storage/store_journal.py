"""What is committed in a resumable store: its journal, and access to the data that the journal describes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from elmokit.errors import OutputError
from elmokit.storage.atomic import sync
from elmokit.storage.checksums import as_read_back, extents_of, find_damage, json_crc32

JOURNAL = "journal.json"
NEW_JOURNAL = "journal.new"
CHECKSUMS = "checksums"
_Progress = TypeVar("_Progress")


@dataclass(frozen=True)
class _Journal:
    settings: dict[str, Any]
    progress: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    finished: bool = False
    checksums_size: int = 0
    checksums_crc32: int = 0
    state_file: str | None = None
    state_crc32: int = 0
    published: str | None = None


@dataclass(frozen=True)
class StoreContents(_Journal):
    """The committed contents of a store, from :func:`read_store` or :attr:`ResumableStore.committed`."""

    # They stay valid while another process appends to the store, because committed data never changes.

    folder: Path = Path()

    def damaged(self, name: str, how: object, remedy: str | None = None) -> OutputError:
        """Return an error about a file; ``remedy`` is how to start from scratch."""
        remedy = remedy or f"delete the directory {self.folder}"
        return OutputError(f"{self.folder / name} is damaged ({how}). To start from scratch, {remedy}.")

    def memory_map(self, name: str, dtype: DTypeLike, width: int | None = None) -> NDArray[Any]:
        """Map a file of numbers into memory: ``(rows, width)`` or ``(rows,)``; empty if it was never written."""
        n_bytes = self.sizes.get(name, 0)
        shape: tuple[int, ...] = (n_bytes // np.dtype(dtype).itemsize,)
        if width is not None:
            shape = (shape[0] // width, width)
        if not n_bytes:
            return np.zeros(shape, dtype)
        try:
            # An empty file cannot be mapped, hence the case above. With an explicit shape only the committed prefix is
            # mapped, so a reader never sees what a writer is appending.
            return np.memmap(self.folder / name, dtype=dtype, mode="r", shape=shape)
        except (OSError, ValueError, OverflowError):
            raise self.damaged(name, "it is missing or cut short") from None

    def read_bytes(self, name: str) -> bytes:
        """Read the committed contents of a file; empty if it was never written."""
        return self.memory_map(name, np.uint8).tobytes()

    def read_state(self) -> bytes | None:
        """Read the bytes that the last commit was given as ``state``."""
        return None if self.state_file is None else self._read_checked(self.state_file, None, self.state_crc32)

    def verify(self, files: Collection[str] | None = None, remedy: str | None = None) -> None:
        """Compare files, or all, with the checksums of what was written; ``remedy`` is as in :meth:`damaged`."""
        checksums = self._read_checked(CHECKSUMS, self.checksums_size, self.checksums_crc32, remedy)
        for number, name in enumerate(self.sizes):
            if files is not None and name not in files:
                continue
            try:
                damage = find_damage(self.folder / name, extents_of(checksums, number))
            except OSError as error:
                damage = error.strerror
            if damage is not None:
                raise self.damaged(name, damage, remedy)

    def _read_checked(self, name: str, size: int | None, crc32: int, remedy: str | None = None) -> bytes:
        """Read the first bytes of a file, or all, and compare them with their checksum."""
        try:
            content = (self.folder / name).read_bytes()[:size]
        except OSError:
            content = b""  # as if cut short; what was never written has the checksum of nothing
        if zlib.crc32(content) != crc32:
            raise self.damaged(name, "it is not what was written", remedy)
        return content

    def progress_as(self, kind: type[_Progress]) -> _Progress:
        """Convert the progress to a dataclass whose fields all have defaults."""
        try:
            return msgspec.convert(self.progress, kind)
        except msgspec.ValidationError as error:
            raise self.damaged(JOURNAL, error) from None


def read_store(folder: str | Path) -> StoreContents:
    """Read what is committed in a store, without locking it."""
    contents = read_journal(Path(folder))
    if contents is None:
        raise OutputError(f"{folder} has no {JOURNAL}, so it was not created by elmokit.")
    return contents


def read_journal(folder: Path) -> StoreContents | None:
    """Read what a journal records; None if there is none."""
    try:
        table = msgspec.json.decode((folder / JOURNAL).read_bytes(), type=dict[str, Any])
        if table.pop("crc32", None) != json_crc32(table):
            raise ValueError("its checksum is wrong")
        journal = msgspec.convert(table, _Journal)
        for name, size in journal.sizes.items():
            # The journal may have been edited; a name with a slash would lead out of the directory.
            if size < 0 or Path(name).name != name:
                raise ValueError(f"{name!r} has size {size!r}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise StoreContents({}, folder=folder).damaged(JOURNAL, error) from None
    return StoreContents(**vars(journal), folder=folder)


def write_journal(contents: StoreContents) -> None:
    """Replace the journal of a store, so that it survives a power loss."""
    table = asdict(contents)
    del table["folder"]
    table = as_read_back(table)  # which has the checksum that the file will be checked for
    table["crc32"] = json_crc32(table)
    # Without the `fsync` before the rename, a file system may store the new name before the new content, and a power
    # loss leaves an empty journal.
    temporary = contents.folder / NEW_JOURNAL
    temporary.write_text(json.dumps(table, indent=1), encoding="utf-8")
    sync(temporary)
    temporary.replace(contents.folder / JOURNAL)
    sync(contents.folder)
