"""Files and directories that are written completely or not at all."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from elmokit.errors import OutputError

SUFFIX_LENGTH = 8  # random characters at the end of a temporary directory's name, as tempfile.mkdtemp makes them
ABANDONED_SECONDS = 24 * 3600.0


@contextlib.contextmanager
def atomic_write(path: str | Path, overwrite: bool = False, folder: bool = False) -> Iterator[Path]:
    """A path beside ``path`` to write to; renamed to ``path`` if the block ends well, removed if not.

    Args:
        folder: make a folder at the path to write to; else a file's path is handed out.

    Raises:
        OutputError: ``path`` exists and may not be overwritten, or it cannot be written.
    """
    path = Path(path)
    check_output_path(path, overwrite, folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        workshop = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise OutputError(f"Cannot write to {path}: {error.strerror}. Choose a place that you may write to.") from None
    try:
        beside = workshop / path.name
        if folder:
            beside.mkdir()
        yield beside
        _put_in_place(beside, path, workshop / "old")
    except OSError as error:
        raise OutputError(
            f"Writing {path} failed: {error.strerror or error}. What stood there before is untouched."
        ) from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _put_in_place(beside: Path, path: Path, old: Path) -> None:
    """Rename to ``path``; a folder cannot be renamed over a full one, so what stands there steps aside first."""
    if not path.is_dir():
        beside.replace(path)
        return
    path.rename(old)
    try:
        beside.replace(path)
    except BaseException:
        old.rename(path)
        raise


def recover_interrupted(folder: Path) -> None:
    """Clear away what writers left in a folder when they were killed, and put back what one had set aside.

    Only for a folder that no other process writes to.
    """
    for workshop in _workshops(folder):
        name = workshop.name[1:].rpartition(".")[0]
        if (workshop / "old").exists() and not (folder / name).exists():
            (workshop / "old").rename(folder / name)
        shutil.rmtree(workshop)


def remove_abandoned(folder: Path, idle_seconds: float = ABANDONED_SECONDS) -> None:
    """Clear away what killed writers left in a folder of files that are never overwritten.

    Other processes may be writing there: what was written to within the last ``idle_seconds`` stays.
    """
    latest = time.time() - idle_seconds
    for workshop in _workshops(folder):
        with contextlib.suppress(OSError):  # gone meanwhile
            if all(path.stat().st_mtime < latest for path in (workshop, *workshop.rglob("*"))):
                shutil.rmtree(workshop)


def _workshops(folder: Path) -> list[Path]:
    """The temporary folders of ``atomic_write``."""
    parts = ((path, *path.name[1:].rpartition(".")) for path in folder.glob(".*"))
    return [path for path, name, _, mark in parts if name and len(mark) == SUFFIX_LENGTH and path.is_dir()]


def truncate_log(log: Path, n_steps: int) -> None:
    """Take out of a training's log of JSON lines what was written after step ``n_steps``, or was cut short."""
    if not log.exists():
        return
    kept = []
    for line in log.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            if json.loads(line)["n_steps"] <= n_steps:
                kept.append(line + "\n")
    with atomic_write(log, overwrite=True) as beside:
        beside.write_text("".join(kept), encoding="utf-8")


def check_output_path(
    path: str | Path, overwrite: bool, folder: bool = False, parts: Sequence[str] | None = None
) -> None:
    """Say before any work is done that an output path is taken.

    Args:
        folder: a folder is to be written there; else a file.
        parts: patterns for the names of what such a folder holds. One that holds anything else, which would be lost, is
            not overwritten. None: it may hold anything.

    Raises:
        OutputError: something stands there and may not be overwritten; or the path has no name, as that of the folder
            one is in.
    """
    path = Path(path)
    if not path.name:
        raise OutputError(f"The output {str(path)!r} names nothing. Give it a name.")
    if not path.exists():
        return
    if not overwrite:
        raise OutputError(
            f"{path} exists already. Choose another name, or allow overwriting (--overwrite in the shell)."
        )
    if path.is_dir() != folder:
        kinds = ("a folder", "a file") if path.is_dir() else ("a file", "a folder")
        raise OutputError(f"{path} is {kinds[0]}, and {kinds[1]} is to be written there. Choose another name.")
    if folder and parts is not None:
        for name in sorted(inside.name for inside in path.iterdir()):
            if not any(fnmatch.fnmatchcase(name, part) for part in parts):
                raise OutputError(
                    f"{path} holds {name}, which would be lost by overwriting. Move it away, or choose another name."
                )
