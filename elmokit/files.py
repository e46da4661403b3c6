"""Files written whole or not at all, and text read line by line."""

from __future__ import annotations

import contextlib
import gzip
import lzma
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from elmokit.errors import OutputError, TextError


@contextlib.contextmanager
def written_whole(path: str | Path, overwrite: bool = False, folder: bool = False) -> Iterator[Path]:
    """A path beside ``path`` to write to; renamed to ``path`` if the block ends well, removed if not.

    Args:
        folder: make a folder at the path to write to; else a file's path is handed out.

    Raises:
        OutputError: ``path`` exists and may not be overwritten, or it cannot be written.
    """
    path = Path(path)
    refuse_existing(path, overwrite)
    if path.exists() and path.is_dir() != folder:
        kinds = ("a folder", "a file") if path.is_dir() else ("a file", "a folder")
        raise OutputError(f"{path} is {kinds[0]}, and {kinds[1]} is to be written there. Choose another name.")
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


def refuse_existing(path: str | Path, overwrite: bool) -> None:
    """Say before any work is done that an output path is taken.

    Raises:
        OutputError: something stands there and may not be overwritten.
    """
    if Path(path).exists() and not overwrite:
        raise OutputError(
            f"{path} exists already. Choose another name, or allow overwriting (--overwrite in the shell)."
        )


def open_binary(path: str | Path) -> IO[bytes]:
    """Open a file for reading: ``.gz`` and ``.xz`` decompressed, ``-`` for standard input."""
    if str(path) == "-":
        return sys.stdin.buffer
    openers = {".gz": gzip.open, ".xz": lzma.open}
    opener = openers.get(Path(path).suffix, open)
    try:
        return opener(path, "rb")  # type: ignore[operator, no-any-return]
    except OSError as error:
        raise TextError(f"Cannot read {path}: {error.strerror}.") from None


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a UTF-8 text file without their line ends; ``.gz``, ``.xz`` and ``-`` as in ``open_binary``.

    Raises:
        TextError: the file is not there, is damaged, or a line is not UTF-8.
    """
    number = 1
    with open_binary(path) as lines:
        try:
            for line in lines:
                yield line.decode("utf-8").rstrip("\r\n")
                number += 1
        except UnicodeDecodeError as error:
            raise TextError(
                f"{path}, line {number}: not UTF-8 ({error.reason} at byte {error.start}). Convert the file to UTF-8, "
                "for example with: iconv -f latin1 -t utf-8"
            ) from None
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise TextError(f"{path}: reading stopped at line {number}: {error}") from None


def split_tokens(line: str) -> list[str]:
    """Tokens of a tokenised line: split at blanks and tabs, never inside a token that holds another Unicode space."""
    return [part for part in line.replace("\t", " ").split(" ") if part]
