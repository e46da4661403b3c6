"""Locks, and atomic writes of files and directories that survive a power loss.

Output goes to a temporary directory ``.NAME.xxxxxxxx`` next to its destination, so the final rename stays on one file
system and is atomic. A killed process leaves that directory behind; :func:`recover_interrupted` cleans up.

A rename alone does not protect against power loss: the file system may store the new name before the content, which
would leave an empty file under the final name. So the content is flushed to disk first (``fsync``), and the directory
after the rename.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from elmokit.errors import LockedError, OutputError, WriteError, cannot_write, write_failure

LOCK = "lock"
"""The name of the lock file in a directory that only one process may write to."""


@contextlib.contextmanager
def file_lock(path: Path, message: str | None = None, wait: bool = False) -> Iterator[None]:
    """Hold an exclusive lock during the block. If it is taken, wait (``wait``) or raise a LockedError (``message``)."""
    # The operating system releases it when the process ends. File systems without locks (some network mounts) grant
    # every lock. The lock file is created with its directory if missing, and left in place afterwards.
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise cannot_write(path.parent, error.strerror) from None
    import filelock  # imported here because it is slow to import and rarely needed

    lock = filelock.FileLock(path, timeout=-1 if wait else 0)
    try:
        lock.acquire()
    except (filelock.Timeout, PermissionError):  # some network file systems report a held lock as EPERM
        raise LockedError(message or f"Another process is writing to {path.parent}.") from None
    except (NotImplementedError, OSError):
        pass  # granted without a lock
    try:
        yield
    finally:
        lock.release()


START_LENGTH = 40  # characters of the output's name at the start of the temporary directory's name
SUFFIX_LENGTH = 8  # random characters at its end, as in tempfile.mkdtemp


@contextlib.contextmanager
def atomic_write(path: str | Path, overwrite: bool = False, folder: bool = False) -> Iterator[Path]:
    """Yield a temporary path; at the end of the block, flush it and rename it to ``path``, or remove it on errors."""
    check_output_path(path, overwrite, folder)
    path = real_path(path)
    try:
        _make_folder(path.parent)
        # A directory with a file of the final name, not a temporary file: libraries choose the format by the suffix,
        # and `mkstemp` would make the file readable by its owner only.
        start = path.name[:START_LENGTH]  # identifies the output; the whole name might exceed the system's limit
        workspace = Path(tempfile.mkdtemp(prefix=f".{start}.", dir=path.parent))
    except OSError as error:
        raise cannot_write(path, error.strerror) from None
    try:
        # Both under their full names, in separate directories, so the old one can be restored.
        temporary, old = workspace / "new" / path.name, workspace / "old" / path.name
        temporary.parent.mkdir()
        if folder:
            temporary.mkdir()
        yield temporary
        for written in temporary.rglob("*"):
            sync(written)
        sync(temporary)
        _move_into_place(temporary, path, old)
        sync(path.parent)
    except Exception as error:
        reason = write_failure(error)
        if reason is None:
            raise
        # Also replaces errors that name a file in the directory by its temporary path.
        raise WriteError(path, reason, "Its old content is unchanged.") from error
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def _move_into_place(temporary: Path, path: Path, old: Path) -> None:
    # A directory cannot be renamed over a non-empty one, so the existing one is moved out of the way first.
    if not path.is_dir():
        replace_file(temporary, path)
        return
    old.parent.mkdir()
    path.rename(old)
    try:
        temporary.replace(path)
    # Also on Ctrl-C: the existing directory must come back.
    except BaseException:
        old.rename(path)
        raise


def real_path(path: str | Path) -> Path:
    """Return the path that an output replaces: the target of a symbolic link, so the link stays."""
    return Path(os.path.realpath(path)) if Path(path).is_symlink() else Path(path)


def replace_file(new: Path, path: Path) -> None:
    """Move a file to a path, keeping the mode of an existing file."""
    if path.exists():
        shutil.copymode(path, new)
    new.replace(path)


def _make_folder(folder: Path) -> None:
    """Create a directory and its missing parents so that they survive a power loss."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file, or the list of names in a directory, to disk, so it survives a power loss."""
    if path.is_dir():
        with contextlib.suppress(OSError):  # Windows and some network file systems cannot flush directories
            _sync(os.open(path, os.O_RDONLY))
    else:
        _sync(os.open(path, os.O_RDWR))  # Windows only flushes files that are open for writing


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def recover_interrupted(folder: Path) -> None:
    """Remove leftovers of killed processes from a directory that nobody writes to; restore what they moved away."""
    for workspace in folder.glob(f".?*.{'?' * SUFFIX_LENGTH}/"):
        # Other hidden directories may have such names, too; their content differs.
        if not {inside.name for inside in workspace.iterdir()} <= {"new", "old"}:
            continue
        # If the process died between the two renames of `_move_into_place`, put the old directory back.
        for old in (workspace / "old").glob("*"):
            if not (folder / old.name).exists():
                old.rename(folder / old.name)
        shutil.rmtree(workspace)


def check_parent(path: str | Path) -> None:
    """Raise an OutputError unless an output's parent directory exists."""
    parent = Path(path).parent
    if not parent.is_dir():
        problem = f"{parent} is not a directory" if parent.exists() else f"the directory {parent} does not exist"
        raise cannot_write(path, problem)


def check_writable(folder: Path) -> None:
    """Check, before any work is done, that a directory is writable or can be created."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise cannot_write(folder, error.strerror) from None


def check_extension(path: str | Path, extensions: Sequence[str], otherwise: str = "") -> None:
    """Refuse an extension other than ``extensions``; ``otherwise`` is appended to the suggestions in the message."""
    # The part after the last dot is an extension if it starts with two letters or is in `extensions`. Names such as
    # `elmo-v1.5` and `corpus.2019` have none.
    suffix = Path(path).suffix
    if suffix in extensions or not re.match(r"\.[A-Za-z]{2}", suffix):
        return
    *others, last = extensions
    known = f"{', '.join(others)} or {last}" if others else last
    if otherwise:
        known += f", {otherwise}"
    raise OutputError(f"{path} ends in {suffix}, but files of that format are not written here. Use {known}.")


def check_has_name(path: str | Path) -> None:
    """Refuse an output path without a name, such as an empty one or the current directory."""
    if not Path(path).name:
        raise OutputError(f"The output path {str(path)!r} has no name.")


def check_output_path(
    path: str | Path, overwrite: bool, folder: bool = False, parts: Sequence[str] | None = None
) -> None:
    """Check, before any work is done, that an output can be written to a path."""
    # A directory with files other than `parts` (name patterns) is not overwritten, because they would be lost.
    check_has_name(path)
    path = Path(path)
    if not path.exists():
        return
    kind, expected = _kind(path), "directory" if folder else "file"
    if kind != expected:
        raise OutputError(f"{path} is a {kind}, but the output is a {expected}.")
    if not overwrite:
        raise OutputError(f"{path} already exists; pass --overwrite (overwrite=True) to replace it.")
    if parts is None:
        return
    for name in sorted(inside.name for inside in path.iterdir()):
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in parts):
            raise OutputError(f"{path} contains {name}, which overwriting would delete.")


def _kind(path: Path) -> str:
    """Return the kind of a path, for error messages."""
    if path.is_dir():
        return "directory"
    return "file" if path.is_file() else "device, a pipe or a socket"
