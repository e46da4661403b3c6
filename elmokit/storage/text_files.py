"""Find text files by name, directory or pattern, decompress them, and read them line by line."""

from __future__ import annotations

import codecs
import contextlib
import glob
import gzip
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from elmokit.errors import ConfigError, ElmoError, MissingExtraError, OutputError, TextError

TextPaths = str | Path | Iterable[str | Path]
"""A text file, a directory or a glob pattern, or several of them."""
STDIN = "-"
PACKED_SUFFIXES = (".gz", ".xz", ".zst")


def or_packed(*suffixes: str) -> tuple[str, ...]:
    """Return these file name suffixes, and those of the compressed files."""
    return tuple(suffix + packed for suffix in suffixes for packed in ("", *PACKED_SUFFIXES))


TEXT_SUFFIXES = or_packed(".txt")
"""Suffixes of the files used from a directory. A file given by name or matched by a pattern can have any suffix."""

MAX_LINE_BYTES = 1 << 24
"""Default limit on the length of a line, which is a sentence."""
LARGEST_LINE_LIMIT = 1 << 40
"""The largest value for the limit on the length of a line."""
MAX_LINE_VARIABLE = "ELMOKIT_MAX_LINE_BYTES"
"""The environment variable that changes the limit."""
LINES_BETWEEN_PROGRESS = 1000
_NO_TEXT = (
    (b"\x1f\x8b", "compressed with gzip, but its name does not end in .gz"),
    (b"\xfd7zXZ\0", "compressed with xz, but its name does not end in .xz"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd, but its name does not end in .zst"),
    (b"BZh91AY&SY", "compressed with bzip2, which is not read here"),
    (b"PK\x03\x04", "a ZIP archive, as .docx, .odt, .epub and .xlsx are"),
    (b"\xd0\xcf\x11\xe0", "a document of an old Office program"),
    (b"%PDF-", "PDF"),
    (b"{\\rtf", "RTF"),
)
"""The first bytes of compressed files and documents, and descriptions of them."""


def expand_user(path: str | Path, error: type[ElmoError] = TextError) -> Path:
    """Replace ``~`` and ``~user`` with the home directory; raise ``error`` for an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise error(f"{path}: this user has no home directory.") from None


def check_input_file(source: str | Path, output: str | Path) -> None:
    """Check, before any work is done, that a text exists and that the output does not replace it."""
    if str(source) == STDIN:
        return
    try:
        is_folder = stat.S_ISDIR(Path(source).stat().st_mode)
    except OSError as error:
        raise _unreadable(source, error) from None
    if is_folder:
        raise TextError(f"Cannot read {source}: it is a directory; expected a file.")
    check_not_input(output, [source])


def _unreadable(path: str | Path, error: OSError) -> TextError:
    return TextError(f"Cannot read {path}: {error.strerror}.")


def check_not_input(output: str | Path, sources: Iterable[str | Path]) -> None:
    """Check, before any work is done, that an output replaces none of the inputs, even under another name."""
    for source in sources:
        both_exist = Path(output).exists() and Path(source).exists()
        if both_exist and Path(source).samefile(output):
            raise OutputError(f"{output} is both the input and the output.")


def path_list(paths: TextPaths) -> list[str | Path]:
    """Return one path or several as a list."""
    return [paths] if isinstance(paths, str | Path) else list(paths)


def find_text_files(names: TextPaths, reread: bool = False, suffixes: tuple[str, ...] = TEXT_SUFFIXES) -> list[Path]:
    """Find the text files given by paths, directories and glob patterns, each once.

    Args:
        names: One path or several: files; directories, which are searched at any depth for files named ``*.txt``,
            ``*.txt.gz``, ``*.txt.xz`` and ``*.txt.zst`` (in capitals, too), except hidden ones; glob patterns (``**``
            matches any depth); ``-`` for standard input. The files of a directory or pattern are sorted.
        reread: Whether the text is read more than once, which is impossible for standard input and pipes.
        suffixes: Suffixes of the files to use from directories, in lower case.

    Raises:
        TextError: A file does not exist, a directory contains no text, a pattern matches nothing, or a text can be read
            only once.
    """
    by_real_path: dict[Path, Path] = {}
    for name in path_list(names):
        for path in _files_of(name, suffixes):
            if reread:
                check_can_reread(path)
            # `Path.resolve` would raise for a loop of symbolic links; here, opening the file will.
            by_real_path.setdefault(path if str(path) == STDIN else Path(os.path.realpath(path)), path)
    return list(by_real_path.values())


def _files_of(name: str | Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Find the files of one path, directory or pattern."""
    if not str(name):  # from an unset variable, for example; not the current directory
        raise TextError("No file matches ''.")
    path = expand_user(name)
    if str(path) == STDIN:
        return [path]
    files: list[Path] = []
    for match in _matches(path):
        files += _files_inside(match, suffixes) if match.is_dir() else [match]
    if not files and path.is_dir():
        wanted = ", ".join(f"*{suffix}" for suffix in suffixes)
        raise TextError(
            f"The directory {path} contains no file named {wanted}. For other files, pass a pattern: '{path}/**/*'"
        )
    if not files:
        raise TextError(f"No file matches {str(name)!r}.")
    return files


def _matches(path: Path) -> list[Path]:
    """List the file or directory at a path, or else those that match it as a pattern, sorted by name."""
    if path.exists():
        return [path]
    return list(map(Path, sorted(glob.glob(str(path), recursive=True))))


def folders_of(names: TextPaths) -> list[Path]:
    """List the directories that :func:`find_text_files` searches."""
    folders: list[Path] = []
    for path in map(expand_user, path_list(names)):
        folders += filter(Path.is_dir, _matches(path))
    return folders


def _files_inside(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    files = []
    for path in sorted(folder.rglob("*")):
        is_hidden = "/." in f"/{path.relative_to(folder).as_posix()}"
        has_suffix = path.name.lower().endswith(suffixes)  # ``BOOK.TXT``, too
        if has_suffix and not is_hidden and path.is_file():
            files.append(path)
    return files


def can_reread(path: str | Path) -> bool:
    """Check whether a text can be read twice. Pipes and ``-`` (even if there is such a file) cannot."""
    return str(path) != STDIN and Path(path).is_file()


def check_can_reread(path: str | Path) -> None:
    """Refuse standard input and pipes, before any work is done, for a text that is read more than once."""
    what = ""
    if str(path) == STDIN:
        what = "Standard input"
    elif Path(path).is_fifo() or Path(path).is_char_device():  # others are refused by the reader
        what = f"{path} is a pipe, which"
    if what:
        raise TextError(f"{what} can be read only once, but this text is read again: write it to a file.")


def check_names(names: Iterable[str | Path]) -> None:
    """Refuse file names that are not UTF-8, before any work is done, because a run records them."""
    for name in map(str, names):
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            raise TextError(f"The name {name!r} is not UTF-8, so a run cannot record it.") from None


def unpacked_name(path: str | Path) -> str:
    """Return a file name in lower case and without the compression suffix, so it ends with the format's suffix."""
    path = Path(str(path).lower())
    return path.stem if path.suffix in PACKED_SUFFIXES else path.name


def total_bytes(paths: Iterable[Path]) -> int | None:
    """Return the total size of files on disk, or None if one is a pipe, whose size is unknown."""
    total = 0
    for path in paths:
        if not can_reread(path):
            return None
        total += path.stat().st_size
    return total


def _open(path: str | Path) -> tuple[IO[bytes], IO[bytes] | None, tuple[type[Exception], ...]]:
    """Return the decompressed content, the file on disk (None for standard input), and the errors of damaged files."""
    if str(path) == STDIN:
        # The reader of a text closes it.
        if sys.stdin is None or sys.stdin.closed:
            raise TextError("Standard input is closed or was already read: it can be used for only one text.")
        return sys.stdin.buffer, None, (OSError,)
    decompressed, damage = _decompressor(path)
    try:
        raw = Path(path).open("rb")  # noqa: SIM115 (the caller closes it)
    except OSError as error:
        raise _unreadable(path, error) from None
    return decompressed(raw), raw, (OSError, EOFError, damage)


def _decompressor(path: str | Path) -> tuple[Callable[[IO[bytes]], Any], type[Exception]]:
    """Return the function that decompresses a file with this name, and the error of damaged content."""
    suffix = Path(path).suffix.lower()
    if suffix == ".gz":
        return gzip.open, zlib.error
    if suffix == ".xz":
        return lzma.open, lzma.LZMAError
    if suffix == ".zst":
        zstd = _zstandard(path)
        return zstd.ZstdFile, zstd.ZstdError
    return lambda file: file, OSError


@contextlib.contextmanager
def open_binary(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes, decompressed as in ``read_lines``."""
    with _opened(path) as (content, _):
        yield content


@contextlib.contextmanager
def _opened(path: str | Path) -> Iterator[tuple[IO[bytes], IO[bytes] | None]]:
    """Open a file, and yield its decompressed content and the file on disk, as in ``_open``."""
    content, raw, damage = _open(path)
    with content, raw or contextlib.nullcontext():
        try:
            yield content, raw
        except damage as error:
            raise TextError(f"{path} cannot be read to its end: {error}") from None


def _zstandard(path: str | Path) -> Any:
    """Return the module for Zstandard: in the standard library since Python 3.14, before that an optional package."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise MissingExtraError(f"Reading {path}", "zstd") from None
    return zstd


def read_lines(path: str | Path, on_bytes: Callable[[int], object] | None = None) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, without line ends and without a byte order mark.

    Files ending in ``.gz``, ``.xz`` and ``.zst``, in any case, are decompressed. ``-`` is standard input.

    Args:
        path: The file.
        on_bytes: Called regularly with the number of bytes on disk that were read since the last call.

    Raises:
        TextError: The file does not exist, is damaged, or a line is not UTF-8, has a NUL character or is longer than
            ``max_line_bytes()``.
        MissingExtraError: The name ends in ``.zst`` and no package that can read it is installed.
    """
    for number, line in enumerate(_read_byte_lines(path, on_bytes), start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
            _refuse_old_line_ends(line, path)
        text = _decoded(line, path, number)
        check_no_nul(text, path, number)
        yield text.rstrip("\r\n")


def read_lines_like_python(path: str | Path, on_bytes: Callable[[int], object] | None = None) -> Iterator[str]:
    """Yield the lines of a text file like :func:`read_lines`, but with line ends as in Python's ``open``.

    A carriage return ends a line, and byte order marks and NUL characters are characters.
    """
    for number, line in enumerate(_read_byte_lines(path, on_bytes), start=1):
        text = _decoded(line, path, number)
        yield from text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")


def _read_byte_lines(path: str | Path, on_bytes: Callable[[int], object] | None) -> Iterator[bytes]:
    n_reported = n_bytes = 0
    with _opened(path) as (lines, raw):
        for number, line in enumerate(bounded_lines(lines, path), start=1):
            if number == 1:
                _refuse_no_text(line, path)
            yield line
            n_bytes += len(line)
            if on_bytes is not None and number % LINES_BETWEEN_PROGRESS == 0:
                n_read = _position(raw, n_bytes)
                on_bytes(n_read - n_reported)
                n_reported = n_read
        if on_bytes is not None:
            on_bytes(_position(raw, n_bytes) - n_reported)


def read_text(path: str | Path) -> str:
    """Read a whole text file, as in ``read_lines``."""
    with open_binary(path) as file:
        data = file.read()
    _refuse_no_text(data, path)
    text = _decoded(data.removeprefix(codecs.BOM_UTF8), path)
    check_no_nul(text, path)
    return text


def _refuse_no_text(start: bytes, path: str | Path) -> None:
    """Refuse a file whose first bytes show that it is not plain text, or compressed without a matching suffix."""
    for magic, what in _NO_TEXT:
        if start.startswith(magic):
            raise TextError(f"{path} is {what}; expected plain text.")


def _refuse_old_line_ends(line: bytes, path: str | Path) -> None:
    """Refuse a file that is a single line with carriage returns, which are its line ends."""
    if not line.endswith(b"\n") and b"\r" in line.rstrip(b"\r"):
        raise TextError(
            f"{text_name(path)} has the line ends of old Macs (CR), so it is one line. Convert them: "
            "tr '\\r' '\\n' < OLD > NEW"
        )


def check_no_nul(text: str, path: str | Path, line: int | None = None) -> None:
    """Refuse a line or file with a NUL character. UTF-16 without a byte order mark has many."""
    if "\0" not in text:
        return
    number = text.count("\n", 0, text.index("\0")) + 1 if line is None else line
    raise TextError(
        f"{text_name(path)}, line {number}: NUL character; is it UTF-16? "
        "Convert it: iconv -f UTF-16LE -t UTF-8 OLD > NEW"
    )


def _decoded(data: bytes, path: str | Path, line: int | None = None) -> str:
    """Decode a line or file, or raise an error that locates what is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        where = path if line is None else f"{path}, line {line}"
        raise TextError(f"{where}: not UTF-8 ({error.reason} at byte {error.start}). Save it as UTF-8.") from None


def bounded_lines(file: IO[bytes], path: str | Path, first: int = 1) -> Iterator[bytes]:
    """Yield the lines of a file with their line ends; ``path`` and the number of the ``first`` line are for errors."""
    limit, number = max_line_bytes(), first
    while line := file.readline(limit + 1):
        if len(line) > limit and not line.endswith(b"\n"):
            cure = "put each sentence on its own line, or at least shorten the lines: fold -s -w 1000 OLD > NEW"
            if b"\r" in line:
                cure = "its lines may end as on old Macs (CR): tr '\\r' '\\n' < OLD > NEW"
            raise TextError(
                f"{path}, line {number} is longer than {limit:,} bytes. If the text is one line, {cure}. "
                f"{MAX_LINE_VARIABLE} and elmokit --max-line-bytes set the limit."
            )
        yield line
        number += 1


def max_line_bytes() -> int:
    """Return the limit on the length of a line: ``ELMOKIT_MAX_LINE_BYTES`` if set, else ``MAX_LINE_BYTES``."""
    chosen = os.environ.get(MAX_LINE_VARIABLE)
    if not chosen:
        return MAX_LINE_BYTES
    if not chosen.isdecimal() or not 0 < int(chosen) <= LARGEST_LINE_LIMIT:
        raise ConfigError(f"{MAX_LINE_VARIABLE} is {chosen!r}; it must be a whole number of bytes above 0.")
    return int(chosen)


def _position(raw: IO[bytes] | None, n_bytes: int) -> int:
    """Return the number of bytes read from a file, or from a stream without a position (``n_bytes``)."""
    if raw is None or not raw.seekable():
        return n_bytes
    return raw.tell()


def text_name(path: str | Path) -> str:
    """Return the name of a text for messages."""
    return "Standard input" if str(path) == STDIN else str(path)
