"""Files written whole or not at all; text files found, and read line by line."""

from __future__ import annotations

import codecs
import contextlib
import fnmatch
import glob
import gzip
import json
import lzma
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from elmokit.errors import ElmoError, MissingExtraError, OutputError, TextError, TrainingError

STDIN = "-"
TEXT_SUFFIXES = tuple(f".txt{packed}" for packed in ("", ".gz", ".xz", ".zst"))
"""What a folder is searched for; a file that is named, or matches a pattern, may be called anything."""

LINES_BETWEEN_PROGRESS = 1000


MARK_LENGTH = 8  # random characters at the end of a temporary folder's name
ABANDONED_SECONDS = 24 * 3600.0


def cache_dir() -> Path:
    """Where downloads and built kernels are kept: ``ELMOKIT_CACHE``, else the usual place for caches on this platform.

    Raises:
        OutputError: ``ELMOKIT_CACHE`` begins with the home of a user that there is not; or there is no home folder.
    """
    if chosen := os.environ.get("ELMOKIT_CACHE"):
        try:
            return Path(chosen).expanduser()
        except RuntimeError:
            raise OutputError(f"ELMOKIT_CACHE is {chosen}, and there is no such user. Give the whole path.") from None
    try:
        if sys.platform == "win32":
            base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user id without an entry in the system's list, as in some containers
        raise OutputError("There is no home folder to keep a cache in. Name a folder in ELMOKIT_CACHE.") from None
    return base / "elmokit"


@contextlib.contextmanager
def atomic_write(path: str | Path, overwrite: bool = False, folder: bool = False) -> Iterator[Path]:
    """A path beside ``path`` to write to; renamed to ``path`` if the block ends well, removed if not.

    Args:
        folder: make a folder at the path to write to; else a file's path is handed out.

    Raises:
        OutputError: ``path`` exists and may not be overwritten, or it cannot be written.
    """
    path = Path(path)
    refuse_existing(path, overwrite, folder)
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
    return [path for path, name, _, mark in parts if name and len(mark) == MARK_LENGTH and path.is_dir()]


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


def refuse_existing(
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


def expand_user(path: str | Path, error: type[ElmoError] = TextError) -> Path:
    """A path whose ``~`` is spelt out.

    Raises:
        ElmoError: ``error``, where there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise error(f"{path}: there is no such user's home folder. Give the whole path.") from None


def refuse_unreadable(source: str | Path, output: str | Path) -> None:
    """Say before any work is done that a text is not there, or is about to be replaced by what is made of it.

    Raises:
        TextError: there is no such file, or it is a folder.
        OutputError: the text and the output are one file.
    """
    if str(source) == STDIN:
        return
    if not Path(source).exists():
        raise TextError(f"Cannot read {source}: there is no such file.")
    if Path(source).is_dir():
        raise TextError(f"Cannot read {source}: it is a folder. Name a file in it.")
    if Path(output).exists() and Path(source).samefile(output):
        raise OutputError(f"{output} is the text itself, which would be lost. Choose another name.")


def find_text_files(names: Iterable[str | Path], reread: bool = False) -> list[Path]:
    """The text files that paths, folders and glob patterns stand for, in sorted order within each, none twice.

    Args:
        names: files; folders, of which every ``.txt``, ``.txt.gz``, ``.txt.xz`` and ``.txt.zst`` inside is taken, at
            any depth, but nothing hidden; glob patterns (``**`` for any depth); ``-`` for standard input.
        reread: the text will be read more than once, which standard input and pipes cannot be.

    Raises:
        TextError: there is no such file, a folder holds no text, a pattern matches nothing, or a text can be read
            only once.
    """
    found: dict[Path, Path] = {}
    for name in names:
        for path in _texts_of(name):
            if reread and not path.is_file():
                what = "Standard input" if str(path) == STDIN else f"{path} is a pipe, which"
                raise TextError(f"{what} can be read only once, and this text is read again. Write it to a file first.")
            found.setdefault(path if str(path) == STDIN else path.resolve(), path)
    return list(found.values())


def _texts_of(name: str | Path) -> list[Path]:
    path = expand_user(name)
    if str(path) == STDIN:
        return [path]
    if path.is_dir():
        if not (inside := _texts_inside(path)):
            raise TextError(
                f"The folder {path} holds no text ({', '.join(TEXT_SUFFIXES)}). "
                f"Name files that are called otherwise by a pattern: '{path}/*'"
            )
        return inside
    if path.exists():
        return [path]
    matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
    # A folder among the matches counts as it would if the shell had spelled the pattern out.
    files = [file for match in matches for file in (_texts_inside(match) if match.is_dir() else [match])]
    if not files:
        raise TextError(f"No file matches {path}.")
    return files


def _texts_inside(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*.txt*")
        if path.name.endswith(TEXT_SUFFIXES)
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _opened(path: str | Path) -> tuple[IO[bytes], IO[bytes] | None, tuple[type[Exception], ...]]:
    """The content, decompressed; the file as it stands on disk, None for standard input; what damage raises."""
    if str(path) == STDIN:
        return sys.stdin.buffer, None, (OSError,)
    suffix = Path(path).suffix
    zstd = _zstandard(path) if suffix == ".zst" else None
    try:
        raw = Path(path).open("rb")  # noqa: SIM115 (whoever reads it closes it)
    except OSError as error:
        raise TextError(f"Cannot read {path}: {error.strerror}.") from None
    if suffix == ".gz":
        return cast(IO[bytes], gzip.GzipFile(fileobj=raw)), raw, (OSError, EOFError, zlib.error)
    if suffix == ".xz":
        return cast(IO[bytes], lzma.LZMAFile(raw)), raw, (OSError, EOFError, lzma.LZMAError)
    if zstd is not None:
        return zstd.ZstdFile(raw), raw, (OSError, EOFError, zstd.ZstdError)
    return raw, raw, (OSError,)


@contextlib.contextmanager
def open_binary(path: str | Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, decompressed as in ``read_lines``.

    Raises:
        TextError, MissingExtraError: as in ``read_lines``.
    """
    content, raw, damage = _opened(path)
    with content, raw or contextlib.nullcontext():
        try:
            yield content
        except damage as error:
            raise TextError(f"{path} cannot be read to its end: {error}") from None


def _zstandard(path: str | Path) -> Any:
    """Python's module for Zstandard: in its library from 3.14 on, before that an extra with the same names."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise MissingExtraError(f"Reading {path}", "zstd") from None
    return zstd


def read_lines(path: str | Path, progress: Callable[[int], object] | None = None) -> Iterator[str]:
    """The lines of a UTF-8 text file without their line ends, nor the mark that some editors put first (BOM).

    ``.gz``, ``.xz`` and ``.zst`` are decompressed on the way; ``-`` is standard input.

    Args:
        progress: called now and then with the bytes, as they stand on disk, that were read since the last call.

    Raises:
        TextError: the file is not there, is damaged, or a line is not UTF-8.
        MissingExtraError: it ends in ``.zst``, and nothing is installed that reads it.
    """
    number, n_told, n_bytes = 1, 0, 0
    lines, raw, damage = _opened(path)
    with lines, raw or contextlib.nullcontext():
        try:
            for line in lines:
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                yield line.decode("utf-8").rstrip("\r\n")
                number += 1
                if progress is not None:
                    n_bytes += len(line)
                    if number % LINES_BETWEEN_PROGRESS == 0:
                        n_here = _n_read(raw, n_bytes)
                        progress(n_here - n_told)
                        n_told = n_here
        except UnicodeDecodeError as error:
            raise TextError(
                f"{path}, line {number}: not UTF-8 ({error.reason} at byte {error.start}). Convert the file to UTF-8, "
                "for example with: iconv -f latin1 -t utf-8"
            ) from None
        except damage as error:
            raise TextError(f"{path}: reading stopped at line {number}: {error}") from None
        if progress is not None:
            progress(_n_read(raw, n_bytes) - n_told)


def _n_read(raw: IO[bytes] | None, n_bytes: int) -> int:
    """How far a file has been read; of a stream that knows no place, how much came out of it."""
    return raw.tell() if raw is not None and raw.seekable() else n_bytes


def read_sentences(path: str | Path, progress: Callable[[int], object] | None = None) -> Iterator[list[str]]:
    """The sentences of a tokenised text, one a line; blank lines are passed over. Arguments as in ``read_lines``.

    Raises:
        TextError: as in ``read_lines``; or there is no sentence in the file.
    """
    is_empty = True
    for line in read_lines(path, progress):
        if tokens := split_tokens(line):
            is_empty = False
            yield tokens
    if is_empty:
        name = "Standard input" if str(path) == STDIN else str(path)
        raise TextError(f"{name} holds no sentence: it is empty or blank. Leave it out, or fill it.")


def split_tokens(line: str) -> list[str]:
    """Tokens of a tokenised line: split at blanks and tabs, never inside a token that holds another Unicode space."""
    return [part for part in line.replace("\t", " ").split(" ") if part]


@contextlib.contextmanager
def held(path: Path) -> Iterator[bool]:
    """Whether a lock is ours while the block runs; it is freed with the process, however that ends.

    Where the system or the file system knows no such locks, it is always ours.

    Args:
        path: of the lock's file, made with its folder where it is not there, and left there.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError as error:
        raise OutputError(
            f"Cannot write to {path.parent}: {error.strerror}. Choose a place that you may write to."
        ) from None
    with file:
        yield _lock(file)


def busy(run: Path) -> TrainingError:
    """The error where another process holds a run's lock."""
    return TrainingError(f"Another process is training in {run}. Wait until it is over, or choose another folder.")


def _lock(file: IO[str]) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows: nothing is held
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # some network file systems say the latter of a lock that is held
        return False
    except OSError:  # a file system without locks
        return True
    return True
