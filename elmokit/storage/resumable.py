"""Files that grow on disk so that an interrupted run can be resumed.

A :class:`ResumableStore` is a directory of data files and a journal (``storage/store_journal.py``), which records how
much of each file is complete, and what the owner of the data needs to continue (its *progress*). A commit first flushes
the data to disk and then replaces the journal. After an interruption (SIGKILL, power loss, a full disk) the journal
therefore describes a valid prefix of every file. On resume the files are truncated to these prefixes, so an
interruption costs at most the work since the last commit. The file ``checksums`` has a checksum for every part that was
written; all of them are verified on resume, because a byte that a failing disk has changed would otherwise end in the
finished output.

Whatever takes long and can be continued is built on it, such as the vectors of ``elmokit embed``, the index of word
occurrences and the cache of layers for training tasks.

Why not one HDF5 file or a database? An HDF5 file whose process dies while it is open often cannot be read again, and
vectors that lie consecutively in a flat file can be memory-mapped by any number of readers while one process appends.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import OutputError
from elmokit.storage.atomic import real_path, replace_file, sync
from elmokit.storage.checksums import WrittenExtents, as_read_back, is_digest
from elmokit.storage.lock import LOCK, file_lock
from elmokit.storage.store_journal import CHECKSUMS, JOURNAL, NEW_JOURNAL, StoreContents, read_journal, write_journal

COMMIT_SECONDS = 2.0
"""The least time between two timed commits. Waiting for the disk costs time, so not every batch is committed."""


class ResumableStore:
    """A directory of growing files that survives interruption.

    Use it as a context manager. Call :meth:`append` or :meth:`write_at` for new data, and :meth:`commit` whenever the
    data written so far should survive an interruption. One process can have a store open at a time; others can read
    what is committed with :func:`read_store`.

    An ``OSError`` inside the ``with`` block (a full disk, for example) becomes an ``OutputError`` that says what is
    kept. If the block ends before anything was committed, the directory is removed.

    Args:
        folder: The directory. It is created if missing.
        settings: JSON values that identify the contents, such as the fingerprint of the model. A store with different
            settings is rejected, because its data would not match the data still to come. Of several that differ, the
            error names the first.
        restore: For a setting, a function that returns how to get its recorded value again, for the error message.
        overwrite: Discard what the directory already holds, instead of continuing it. None if the user has no such
            option: error messages then say to delete the directory.
        locked_message: The error text if another process is writing to the store.
        wait: Wait for another process that is writing, instead of raising an error.
        unverified: Names of files that are not compared with their checksums, because the owner verifies what it reads.

    Raises:
        LockedError: Another process is writing to the store.
        OutputError: The directory holds other files; or data of other settings; or damaged data.

    Example:
        >>> with ResumableStore(folder, {"model": fingerprint}) as store:
        ...     n_done = store.progress.get("n_done", 0)
        ...     for sentence in sentences[n_done:]:
        ...         store.append("vectors", embed(sentence))
        ...         n_done += 1
        ...         if store.commit_is_due():
        ...             store.commit({"n_done": n_done})
        ...     store.commit({"n_done": n_done}, finished=True)
        >>> vectors = read_store(folder).memory_map("vectors", np.float32, width=1024)
    """

    def __init__(
        self,
        folder: str | Path,
        settings: Mapping[str, Any],
        *,
        restore: Mapping[str, Callable[[Any], str]] = {},
        overwrite: bool | None = None,
        locked_message: str | None = None,
        wait: bool = False,
        unverified: Collection[str] = (),
    ) -> None:
        self.folder = Path(folder)
        # So that the settings compare equal to those of a journal.
        self.committed = StoreContents(as_read_back(settings), folder=self.folder)
        self._restore = restore
        self._overwrite = overwrite
        self._how_to_restart = f"delete {self.folder}" if overwrite is None else "pass --overwrite"
        self._locked_message, self._wait, self._unverified = locked_message, wait, unverified
        self._files: dict[str, IO[bytes]] = {}
        self._written = WrittenExtents()
        self._names: set[str] = set()
        self._n_commits = 0
        self._committed_at = time.monotonic()
        self._open = contextlib.ExitStack()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that identify the contents."""
        return self.committed.settings

    @property
    def progress(self) -> dict[str, Any]:
        """The record of the last commit; empty if nothing is committed."""
        return self.committed.progress

    @property
    def finished(self) -> bool:
        """Whether the store was declared complete."""
        return self.committed.finished

    def __enter__(self) -> ResumableStore:
        # Before the lock, because taking the lock creates the directory and a file in it.
        self._refuse_other_files()
        with contextlib.ExitStack() as stack:
            stack.enter_context(file_lock(self.folder / LOCK, self._locked_message, wait=self._wait))
            stack.callback(self._close)
            try:
                self._load()
            except OSError as error:
                if not self.progress:
                    self._remove()
                raise self._failure(error) from error
            # From here on `__exit__` releases the lock; until here, any error does.
            self._open = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # Files are closed and leftovers removed while the lock is still held: it is the first entry on the stack, so it
        # is released last.
        with self._open:
            self._close()
            if not self.progress:
                self._remove()
        if isinstance(error, OSError):
            raise self._failure(error) from error

    def append(self, name: str, data: bytes | NDArray[Any]) -> None:
        """Write data at the end of a file."""
        file = self._file(name)
        # Not opened in append mode: there the system ignores `seek`, which `write_at` needs.
        offset = file.seek(0, os.SEEK_END)
        self._written.add(name, offset, _write(file, data), continues=True)

    def write_at(self, name: str, offset: int, data: bytes | NDArray[Any]) -> None:
        """Write data at an offset, also beyond the end of the file: for parts that are complete in another order."""
        # Data that is committed must not be overwritten, except where the progress says that it does not count.
        file = self._file(name)
        file.seek(offset)
        self._written.add(name, offset, _write(file, data))

    def size(self, name: str) -> int:
        """Return the length of a file in bytes, data that is not yet committed included."""
        return os.fstat(self._file(name).fileno()).st_size

    def commit_is_due(self) -> bool:
        """Check whether the last commit is ``COMMIT_SECONDS`` ago or more."""
        return time.monotonic() - self._committed_at >= COMMIT_SECONDS

    def commit(
        self,
        progress: Mapping[str, Any],
        *,
        state: bytes | None = None,
        finished: bool = False,
        truncate: dict[str, int] | None = None,
    ) -> None:
        """Flush everything written so far to disk and record it. From here on it survives an interruption.

        Args:
            progress: JSON values that the owner needs to continue after this point; not empty.
            state: Bytes that belong to this point, such as a serialized LSTM state.
            finished: Declare the store complete.
            truncate: Files to cut, with their new sizes.

        Raises:
            OSError: It cannot be written.
        """
        # The order matters: data and state first, then the journal that refers to them. If power fails in between, the
        # old journal still describes valid prefixes, because committed data is never overwritten.
        truncate = truncate or {}
        for name, size in truncate.items():
            if self.size(name) < size:  # a file that grows must do so before the journal says that it did
                self._file(name).truncate(size)
        for file in self._files.values():
            os.fsync(file.fileno())
        # fstat, not seek: another thread may be about to write at the file's current position.
        sizes = {name: os.fstat(file.fileno()).st_size for name, file in self._files.items()}
        sizes = self.committed.sizes | sizes | truncate
        # Extents refer to files by their position in `sizes`, where new names are added at the end.
        extents = self._written.take(list(sizes), truncate)
        with (self.folder / CHECKSUMS).open("r+b" if self.committed.checksums_size else "wb") as file:
            file.seek(self.committed.checksums_size)
            file.write(extents)
            file.flush()
            os.fsync(file.fileno())
        state_file = None
        if state is not None:
            # Never the name in the journal: that file must stay intact until the journal is replaced.
            self._n_commits += 1 + (self.committed.state_file == f"state-{self._n_commits + 1}")
            state_file = f"state-{self._n_commits}"
            (self.folder / state_file).write_bytes(state)
            sync(self.folder / state_file)
        # Before the files are cut: one that is longer than recorded is truncated on resume, a shorter one is an error.
        self._write_journal(
            replace(
                self.committed,
                progress=dict(progress),
                sizes=sizes,
                finished=finished,
                checksums_size=self.committed.checksums_size + len(extents),
                checksums_crc32=zlib.crc32(extents, self.committed.checksums_crc32),
                state_file=state_file,
                state_crc32=zlib.crc32(state or b""),
            )
        )
        for name, size in truncate.items():
            self._file(name).truncate(size)
        # Only now that no journal refers to them any more.
        for old in self.folder.glob("state-*"):
            if old.name != state_file:
                old.unlink()
        self._committed_at = time.monotonic()

    def publish(self, name: str, target: Path) -> None:
        """Move a file to its final place, and delete the rest of the store."""
        os.fsync(self._file(name).fileno())
        # If the process dies between the move and the removal, the journal shows that the leftovers are not a partial
        # output.
        self._write_journal(replace(self.committed, published=name))
        self._close()
        target = real_path(target)
        replace_file(self.folder / name, target)
        sync(target.parent)
        self.committed = replace(self.committed, progress={})

    def _load(self) -> None:
        """Read the journal and bring the files to the sizes it records."""
        if self._overwrite:
            recorded = None
            with contextlib.suppress(OutputError):  # a damaged journal does not matter any more
                self._names.update((read_journal(self.folder) or self.committed).sizes)
        else:
            recorded = read_journal(self.folder)
        # The process died between the move and the removal: the output is complete, and what is left counts for
        # nothing.
        if recorded is not None and recorded.published is not None and not (self.folder / recorded.published).exists():
            recorded = None
        if recorded is None or not recorded.progress:
            # Replaced and not deleted first: a directory with data but without a journal would not be recognized.
            self._write_journal(self.committed)
            for name in (*self._names, CHECKSUMS):
                (self.folder / name).unlink(missing_ok=True)
            return
        for name in [*self.settings, *recorded.settings]:
            old, new = recorded.settings.get(name), self.settings.get(name)
            if old != new:
                how = self._restore[name](old) if name in self._restore else "Use the same"
                what = name.replace("_", " ")
                differ = f"{self.folder} was created with {what} {_value(old)}, but this run has {what} {_value(new)}"
                if is_digest(old) and is_digest(new):
                    differ = f"{self.folder}: the {what.removeprefix('the ')} is not the one that it was created with"
                raise OutputError(f"{differ}. {how}, or start from scratch: {self._how_to_restart}.")
        self.committed = recorded
        # Opened at once, not when first needed, so that a missing or short file is reported before hours of computing.
        for name in recorded.sizes:
            self._file(name)
        names = [name for name in self.committed.sizes if name not in self._unverified]
        self.committed.verify(names, self._how_to_restart)

    def _refuse_other_files(self) -> None:
        """Protect a directory that is not a store: nothing in it is touched, not even to create the lock."""
        if not self.folder.exists() or (self.folder / JOURNAL).exists():
            return
        if self.folder.is_dir() and {path.name for path in self.folder.iterdir()} <= {LOCK, NEW_JOURNAL}:
            return  # the process died before it wrote the first journal
        raise OutputError(f"{self.folder} already exists and is not an elmokit output.")

    def _file(self, name: str) -> IO[bytes]:
        """Open a file when it is first needed, truncated to what is committed of it."""
        if name not in self._files:
            path, size = self.folder / name, self.committed.sizes.get(name, 0)
            self._names.add(name)
            # "r+b" does not create a file, "wb" would empty it, and "ab" could not write in the middle. Unbuffered, so
            # that `fsync` and `fstat` see everything that was written.
            path.touch()
            file = self._files[name] = path.open("r+b", buffering=0)
            n_bytes = os.fstat(file.fileno()).st_size
            if n_bytes < size:
                raise self.committed.damaged(
                    name, f"it has {n_bytes:,} bytes, but {size:,} were recorded", self._how_to_restart
                )
            # What was written after the last commit is not described by the journal, and may be incomplete.
            file.truncate(size)
        return self._files[name]

    def _write_journal(self, contents: StoreContents) -> None:
        write_journal(contents)
        self.committed = contents

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _remove(self) -> None:
        """Remove the files of the store, and its directory if nothing else is in it."""
        with contextlib.suppress(OSError):
            # Only files of the store are removed: `rmdir` fails, as it should, if the user has put others next to them.
            names = [*self._names, CHECKSUMS, JOURNAL, NEW_JOURNAL, LOCK]
            for path in [*self.folder.glob("state-*"), *(self.folder / name for name in names)]:
                path.unlink(missing_ok=True)
            self.folder.rmdir()

    def _failure(self, error: OSError) -> OutputError:
        kept = "Nothing was committed; existing outputs are unchanged."
        if self.progress and not (self.folder / JOURNAL).exists():
            kept = "The directory was deleted or moved while it was written to, so its contents are lost. Start again."
        elif self.progress:
            kept = "Completed work is kept there. Fix the cause, then run the same command again."
        return OutputError(f"Writing to {self.folder} failed: {error.strerror or error}. {kept}")


def _value(value: object) -> str:
    return "none" if value is None else repr(value)


def _write(file: IO[bytes], data: bytes | NDArray[Any]) -> memoryview:
    """Write everything, because an unbuffered file may take only a part at a time, and return it as bytes."""
    # A view of the array's memory, not a copy.
    content = memoryview(
        data if isinstance(data, bytes) else np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    )
    rest = content
    # Linux writes at most 2 GiB per call, and less when the disk is nearly full.
    while rest:
        rest = rest[file.write(rest) :]
    return content
