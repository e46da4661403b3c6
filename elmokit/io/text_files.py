"""Text files: found by name, directory or pattern, decompressed, and read line by line."""

from __future__ import annotations

import codecs
import contextlib
import glob
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from elmokit.errors import ElmoError, MissingExtraError, OutputError, TextError

STDIN = "-"
TEXT_SUFFIXES = tuple(f".txt{packed}" for packed in ("", ".gz", ".xz", ".zst"))
"""File names searched for in a directory. A file given by name, or matched by a pattern, can have any name."""

LINES_BETWEEN_PROGRESS = 1000


def expand_user(path: str | Path, error: type[ElmoError] = TextError) -> Path:
    """A path whose ``~`` is spelt out.

    Raises:
        ElmoError: ``error``, where there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise error(f"{path}: there is no such user's home folder. Give the whole path.") from None


def check_input_file(source: str | Path, output: str | Path) -> None:
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
