"""Directories with growing files that survive interruptions.

A :class:`Workspace` is a directory with a lock, data files that only grow, and a journal. The journal records the
settings that the data was made with, the complete size of each file, and what the owner needs to continue (its
*progress*). A commit first flushes the data to disk, then replaces the journal. After SIGKILL, a power loss or a full
disk, the journal therefore describes a valid prefix of each file, and the next run continues from there::

    journal.json     {"workspace": 1, "settings": ..., "progress": ..., "sizes": ..., "state": ...}
    lock             held by the process that writes
    state-0, -1      bytes that belong to the last commit, such as an LSTM state (the journal says which)
    ...              the owner's files

Workspaces are used by ``elmokit embed`` (``OUT.partial``), the index of word occurrences, the cache of layers, the
vectors of the part-of-speech probe, training runs (``training/training_run.py``), and other long, resumable work.

Why not an HDF5 file or a database? An HDF5 file often becomes unreadable if the process dies while it is open, and a
flat file of vectors can be memory-mapped by any number of readers while one process appends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Any

import msgspec
import numpy as np
from msgspec.structs import asdict, replace
from numpy.typing import DTypeLike, NDArray

from elmokit.errors import OutputError, WriteError, write_failure
from elmokit.storage.atomic import (
    LOCK,
    check_writable,
    file_lock,
    real_path,
    recover_interrupted,
    replace_file,
    sync,
)

JOURNAL = "journal.json"
WHAT = "what"
"""The optional setting for the kind of data in a workspace."""
_NEW_JOURNAL = "journal.new"
_STATES = ("state-0", "state-1")
_VERSION = 1
COMMIT_SECONDS = 2.0
"""Minimum time between two timed commits. Waiting for the disk takes time, so not every batch is committed."""


FORMER_FILES = ("checksums", "settings.json", "curves.png", "curves.svg")
"""Files that only version 0.2 wrote. Starting over in one of its directories deletes them."""


class OtherSettingsError(OutputError):
    """A workspace was started with different settings."""


class OtherVersionError(OutputError):
    """Another version of elmokit started what is in a directory.

    Args:
        folder: The directory.
        recorded: Its journal, for the settings and the names of files; empty if it has none.
        remedy: How to start over.
    """

    def __init__(self, folder: Path, recorded: Mapping[str, Any], remedy: str) -> None:
        self.folder, self.recorded, self.remedy = folder, recorded, remedy
        super().__init__(f"{folder} was started by another version of elmokit: {remedy}.")

    def __reduce__(self) -> tuple[type[OtherVersionError], tuple[Path, Mapping[str, Any], str]]:
        # Makes it picklable: in distributed training, the main process sends errors to the others.
        return OtherVersionError, (self.folder, self.recorded, self.remedy)

    def as_committed(self) -> Committed:
        """Return what is needed to start over: the settings and the names of files."""
        settings, sizes = self.recorded.get("settings"), self.recorded.get("sizes")
        committed = Committed(self.folder, {}, {}, {})
        if isinstance(settings, dict):
            committed.settings.update(settings)
        if isinstance(sizes, dict):
            committed.sizes.update(dict.fromkeys(sizes, 0))
        return committed


class Committed(msgspec.Struct, frozen=True):
    """The committed state of a workspace, from :func:`read_workspace` or :attr:`Workspace.committed`."""

    # It stays valid while another process appends, because committed data never changes. Everything but the folder
    # comes from the journal.

    folder: Path
    settings: dict[str, Any]
    progress: dict[str, Any]
    """The record of the last commit; empty if nothing is committed."""
    sizes: dict[str, Annotated[int, msgspec.Meta(ge=0)]]
    state: str | None = None
    published: str | None = None
    """The file that is about to be moved to its final path."""

    @property
    def can_continue(self) -> bool:
        """Whether there is something to continue. After its file was published, a workspace has nothing left."""
        return bool(self.progress) and (self.published is None or (self.folder / self.published).exists())

    def memory_map(self, name: str, dtype: DTypeLike, width: int | None = None) -> NDArray[Any]:
        """Map a file of numbers into memory: ``(rows, width)`` or ``(rows,)``; empty if it was never written."""
        n_bytes = self.sizes.get(name, 0)
        shape: tuple[int, ...] = (n_bytes // np.dtype(dtype).itemsize,)
        if width is not None:
            shape = (shape[0] // width, width)
        if not n_bytes:
            return np.zeros(shape, dtype)  # an empty file cannot be mapped
        try:
            # With an explicit shape, only committed data is mapped, so readers never see what a writer appends.
            return np.memmap(self.folder / name, dtype=dtype, mode="r", shape=shape)
        except (OSError, ValueError) as error:
            raise _damaged(self.folder / name, error) from None

    def read_bytes(self, name: str) -> bytes:
        """Read the committed part of a file; empty if it was never written."""
        return self.memory_map(name, np.uint8).tobytes()

    def read_state(self) -> bytes | None:
        """Read the ``state`` of the last commit."""
        return None if self.state is None else (self.folder / self.state).read_bytes()


def read_workspace(folder: str | Path, remedy: str = "") -> Committed | None:
    """Read the committed state of a directory, without locking it; None if it is not a workspace.

    Args:
        folder: The directory.
        remedy: What to do if another version of elmokit started it; by default, delete it.

    Raises:
        OtherVersionError: Another version of elmokit started it.
        OutputError: The journal is damaged.
    """
    folder = Path(folder)
    path = folder / JOURNAL
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        journal = msgspec.json.decode(content, type=dict[str, Any])
        if journal.get("workspace") != _VERSION:
            raise OtherVersionError(folder, journal, remedy or _restart(folder))
        return msgspec.convert({**journal, "folder": folder}, Committed)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, error) from None


class Workspace:
    """A directory with growing files that survives interruptions.

    Use it as a context manager. Call :meth:`append` or :meth:`write_at` for new data, and :meth:`commit` whenever the
    data written so far should survive an interruption. Only one process can have a workspace open at a time; others can
    read the committed data with :func:`read_workspace`.

    An ``OSError`` inside the ``with`` block (for example, a full disk) becomes an ``OutputError`` that says what was
    saved. If the block ends before the first commit, the directory is removed.

    Args:
        folder: The directory. It is created if missing.
        settings: JSON values that the contents depend on, such as the model's fingerprint. A workspace with different
            settings is refused, because its data would not match the data still to come; the error names the first
            difference. If ``what`` differs, the data is of another kind and is not overwritten. Pass None if the
            settings are only known after long work under the lock; then call :meth:`continues` with them, and
            :meth:`start` if that returns False. Until then, the directory is not changed.
        others: Name patterns of files and directories that the owner writes by other means while the workspace is open.
            Starting over deletes them.
        former: Names of files in a directory of the same kind from version 0.2, which had no journal. ``overwrite``
            replaces such a directory, too.
        overwrite: Discard existing contents instead of continuing. None for a cache, which nobody restarts explicitly:
            what another version started is then replaced, and error messages say to delete the directory.
        locked_message: The error message if another process is writing.
        wait: Wait for another process to finish writing, instead of raising an error.

    Raises:
        LockedError: Another process is writing.
        OutputError: The directory holds other files or data with different settings, or is damaged.

    Example:
        >>> with Workspace(folder, {"model": fingerprint}) as workspace:
        ...     n_done = workspace.progress.get("n_done", 0)
        ...     for sentence in sentences[n_done:]:
        ...         workspace.append("vectors", embed(sentence))
        ...         n_done += 1
        ...         if workspace.commit_is_due():
        ...             workspace.commit({"n_done": n_done})
        ...     workspace.commit({"n_done": n_done})
        >>> vectors = read_workspace(folder).memory_map("vectors", np.float32, width=1024)
    """

    def __init__(
        self,
        folder: str | Path,
        settings: Mapping[str, Any] | None,
        *,
        others: Collection[str] = (),
        former: Collection[str] = (),
        overwrite: bool | None = None,
        locked_message: str | None = None,
        wait: bool = False,
    ) -> None:
        self.folder = Path(folder)
        self.committed = Committed(self.folder, {}, {}, {})
        self._settings, self._is_started = settings, False
        self._others, self._former, self._overwrite = tuple(others), former, overwrite
        self._locked_message, self._wait = locked_message, wait
        self._files: dict[str, IO[bytes]] = {}
        self._names: set[str] = set()
        self._unsaved: set[str] = set()
        self._committed_at = time.monotonic()
        self._open = contextlib.ExitStack()

    @property
    def progress(self) -> dict[str, Any]:
        """The record of the last commit; empty if nothing is committed."""
        return self.committed.progress

    def __enter__(self) -> Workspace:
        # Before the lock, because taking the lock creates the directory and a file in it.
        check_folder(self.folder, self._former, self._overwrite)
        with contextlib.ExitStack() as stack:
            stack.enter_context(file_lock(self.folder / LOCK, self._locked_message, wait=self._wait))
            stack.callback(self._close)
            try:
                recover_interrupted(self.folder)
                if self._settings is not None and not self.continues(self._settings):
                    self.start()
            except OSError as error:
                if not self.progress:
                    self._remove()
                raise self._failure(write_failure(error) or str(error)) from error
            # From here on, `__exit__` releases the lock; before, any error does.
            self._open = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # Files are closed and leftovers removed while the lock is still held: it was pushed on the stack first, so it
        # is released last.
        with self._open:
            self._close()
            if not self.progress:
                self._remove()
        if error is not None and (reason := self._reason(error)) is not None:
            raise self._failure(reason) from error

    def continues(self, settings: Mapping[str, Any]) -> bool:
        """Compare the settings with the journal's, open the files to continue, and return whether there are any.

        Raises:
            OtherSettingsError: There is something to continue, but it was started with different settings.
        """
        # Through JSON, which has no tuples, so they compare equal to those in a journal.
        self.committed = replace(self.committed, settings=json.loads(json.dumps(dict(settings))))
        recorded = self._recorded()
        if recorded is None:
            return False
        self._is_started, self.committed = True, recorded
        # Opened now, so a file that is too short is reported before hours of computing.
        for name in recorded.sizes:
            self._file(name)
        return True

    def start(self) -> None:
        """Start over: write an empty journal, and delete the files of a previous workspace."""
        self._is_started = True
        # The journal is replaced, not deleted: a directory with data but without a journal would not be recognized.
        self._write_journal(self.committed)
        self._remove_files()

    def create(self, name: str) -> Path:
        """Create an empty file, or empty an uncommitted one, for a library to write to; return its path."""
        self._file(name)
        self._unsaved.add(name)
        return self.folder / name

    def append(self, name: str, data: bytes | NDArray[Any]) -> None:
        """Append data to a file."""
        file = self._file(name)
        self._unsaved.add(name)
        file.seek(0, os.SEEK_END)  # not in append mode, which ignores the `seek` that `write_at` needs
        _write(file, data)

    def write_at(self, name: str, offset: int, data: bytes | NDArray[Any]) -> None:
        """Write data at an offset, even beyond the end of the file, for parts that are finished out of order."""
        # Committed data must not be overwritten, except where the progress says that it does not count.
        file = self._file(name)
        self._unsaved.add(name)
        file.seek(offset)
        _write(file, data)

    def commit_is_due(self) -> bool:
        """Check whether at least ``COMMIT_SECONDS`` have passed since the last commit."""
        return time.monotonic() - self._committed_at >= COMMIT_SECONDS

    def commit(self, progress: Mapping[str, Any], state: bytes | None = None) -> None:
        """Flush everything written so far to disk and record it, so it survives an interruption.

        Args:
            progress: JSON values that the owner needs to continue after this point; not empty.
            state: Bytes to store with this point, such as a serialized LSTM state.

        Raises:
            OSError: It cannot be written.
        """
        # The order matters: data and state first, then the journal that refers to them. After a power loss in between,
        # the old journal still describes valid prefixes, because committed data is never overwritten.
        for unsaved in sorted(self._unsaved):
            os.fsync(self._files[unsaved].fileno())
        self._unsaved.clear()
        # fstat instead of seek: another thread may be about to write at the file's current position.
        sizes = dict(self.committed.sizes)
        for written, file in self._files.items():
            sizes[written] = os.fstat(file.fileno()).st_size
        name = None
        if state is not None:
            first, second = _STATES
            name = second if self.committed.state == first else first  # never the one in the journal
            (self.folder / name).write_bytes(state)
            sync(self.folder / name)
        self._write_journal(replace(self.committed, progress=dict(progress), sizes=sizes, state=name))
        self._committed_at = time.monotonic()

    def publish(self, name: str, target: Path) -> None:
        """Move a file to its final path, and delete the rest."""
        os.fsync(self._file(name).fileno())
        self.committed = replace(self.committed, published=name)
        self.commit(self.progress)  # records why the file is gone
        self._close()
        target = real_path(target)
        replace_file(self.folder / name, target)
        sync(target.parent)
        self.committed = replace(self.committed, progress={})

    def _recorded(self) -> Committed | None:
        """Read what can be continued, or None. Different settings are refused."""
        is_former = is_former_run(self.folder, self._former)
        try:
            recorded = read_workspace(self.folder)
        except OtherVersionError as error:
            recorded, is_former = error.as_committed(), True
        if is_former:
            self._names.update(FORMER_FILES)
        if recorded is None:
            return None
        if self._overwrite and recorded.settings.get(WHAT) != self.committed.settings.get(WHAT):
            raise OutputError(f"{self.folder} holds data of another kind, which --overwrite does not replace.")
        if self._overwrite or is_former or not recorded.can_continue:
            self._names.update(recorded.sizes)
            return None
        difference = first_difference(recorded.settings, self.committed.settings)
        if difference is not None:
            restart = _restart(self.folder, self._overwrite)
            raise OtherSettingsError(f"{self.folder} was started with {difference}: {restart}.")
        return recorded

    def _file(self, name: str) -> IO[bytes]:
        """Open a file on first use, truncated to its committed part."""
        if name not in self._files:
            path, size = self.folder / name, self.committed.sizes.get(name, 0)
            self._names.add(name)
            # "r+b" does not create a file, "wb" would empty it, and "ab" could not write in the middle. Unbuffered, so
            # `fsync` and `fstat` see everything that was written.
            path.touch()
            file = self._files[name] = path.open("r+b", buffering=0)
            n_bytes = os.fstat(file.fileno()).st_size
            if n_bytes < size:
                raise _damaged(path, f"it has {n_bytes:,} bytes instead of {size:,}")
            # Data written after the last commit is not described by the journal, and may be incomplete.
            file.truncate(size)
        return self._files[name]

    def _write_journal(self, contents: Committed) -> None:
        """Replace the journal so that it survives a power loss."""
        journal = {**asdict(contents), "workspace": _VERSION}
        del journal["folder"]
        temporary = self.folder / _NEW_JOURNAL
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(journal), indent=1))
        # Without this, the file system may store the new name before the content, and a power loss leaves it empty.
        sync(temporary)
        temporary.replace(self.folder / JOURNAL)
        sync(self.folder)
        self.committed = contents

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _remove_files(self) -> None:
        """Remove the files of the workspace and its owner, but no files that a user has put there."""
        for path in self.folder.iterdir():
            if not self._is_own(path.name):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _is_own(self, name: str) -> bool:
        """Check whether the workspace or its owner wrote a file."""
        if name in self._names or name in _STATES:
            return True
        return any(fnmatchcase(name, pattern) for pattern in self._others)

    def _remove(self) -> None:
        """Remove the directory, unless it has a user's files or contents that were not yet replaced."""
        with contextlib.suppress(OSError):
            if self._is_started:
                self._remove_files()
                recover_interrupted(self.folder)  # Ctrl-C may have ended the cleanup of an atomic write
                (self.folder / JOURNAL).unlink(missing_ok=True)
            if (self.folder / JOURNAL).exists():
                return
            for name in (_NEW_JOURNAL, LOCK):
                (self.folder / name).unlink(missing_ok=True)
            self.folder.rmdir()

    def _reason(self, error: BaseException) -> str | None:
        """Return the system's reason for refusing a write to this directory; None if the error has another cause."""
        if isinstance(error, WriteError) and not error.path.absolute().is_relative_to(self.folder.absolute()):
            return None
        return write_failure(error)

    def _failure(self, reason: str) -> WriteError:
        is_kept = self.progress and (self.folder / JOURNAL).exists()
        kept = "Completed work was saved: run the same command again to resume." if is_kept else "Nothing was saved."
        return WriteError(self.folder, reason, kept)


def check_folder(folder: Path, former: Collection[str] = (), overwrite: bool | None = None) -> None:
    """Check, before any work is done, that a directory can hold a workspace and is writable.

    Other directories are protected: nothing in them is touched, not even to create the lock.

    Raises:
        OtherVersionError: Another version started it, and it is not overwritten. ``former`` are the files of a run of
            version 0.2, as in :class:`Workspace`.
        OutputError: It holds something else, or is not writable.
    """
    if not folder.exists():
        check_writable(folder)
    elif _is_workspace(folder):
        check_writable(folder)
        if overwrite is False:
            read_workspace(folder, _restart(folder, overwrite))  # raises if it is from another version
    elif not is_former_run(folder, former):
        raise OutputError(
            f"{folder} already exists and has no {JOURNAL} of this version of elmokit. Choose another directory."
        )
    elif not overwrite:
        raise OtherVersionError(folder, {}, _restart(folder, overwrite))


def _is_workspace(folder: Path) -> bool:
    """Check for a directory with a journal, or with only leftovers of a process that died before writing one."""
    if not folder.is_dir():
        return False
    # Listed once: another process may write the first journal and more right now.
    names = {path.name for path in folder.iterdir()}
    return JOURNAL in names or names <= {LOCK, _NEW_JOURNAL}


def is_former_run(folder: Path, former: Collection[str]) -> bool:
    """Check for a run of version 0.2, which had no journal, by the files of such a run."""
    return bool(former) and not (folder / JOURNAL).exists() and all((folder / name).is_file() for name in former)


def first_difference(recorded: Mapping[str, Any], settings: Mapping[str, Any], table: str = "") -> str | None:
    """Describe the first difference between settings; None if they are equal. Names in nested tables get dots."""
    for name in [*settings, *recorded]:
        old, new = recorded.get(name), settings.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            difference = first_difference(old, new, f"{table}{name}.")
            if difference is not None:
                return difference
            continue
        if old == new:
            continue
        what = f"{table}{name}"
        if not table and name.isidentifier():
            # File names, and names of settings in tables of a config, stay unchanged.
            what = name.replace("_", " ")
        if _is_digest(old) and _is_digest(new):
            return f"another {what.removeprefix('the ')}"
        return f"{what} {_shown(old)}, and now it is {_shown(new)}"
    return None


def _is_digest(value: object) -> bool:
    """Check whether a value looks like a hexadecimal hash, which means nothing to people."""
    return isinstance(value, str) and len(value) >= 16 and not value.strip("0123456789abcdef-")


def _shown(value: object) -> str:
    """Return a setting's value for a message, cut to 80 characters."""
    if value is None:
        return "not set"
    if _is_digest(value):
        return "set"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _restart(folder: Path, overwrite: bool | None = None) -> str:
    """Describe how to start over; see :class:`Workspace` for ``overwrite``."""
    if overwrite is None:
        return f"to start over, delete {folder}"
    return "to start over, pass --overwrite"


def _damaged(path: Path, how: object) -> OutputError:
    return OutputError(f"{path} is damaged ({how}): {_restart(path.parent)}.")


def _write(file: IO[bytes], data: bytes | NDArray[Any]) -> None:
    """Write everything, because an unbuffered file may accept only part of it at a time."""
    if isinstance(data, bytes):
        rest = memoryview(data)
    else:
        # A view of the array's memory, not a copy.
        rest = memoryview(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)
    # Linux writes at most 2 GiB per call, and less if the disk is nearly full.
    while rest:
        rest = rest[file.write(rest) :]
