"""Text files: find them by name, directory or pattern, decompress them, and read them line by line."""

from __future__ import annotations

import codecs
import contextlib
import glob
import gzip
import lzma
import os
import re
import shlex
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from elmokit.errors import ConfigError, ElmoError, MissingExtraError, OutputError, TextError
from elmokit.storage.bounded import LARGEST_LINE_LIMIT, whole_number
from elmokit.storage.segmentation import SegmentationCheck
from elmokit.storage.text_formats import (
    CONLLU_SUFFIXES,
    HEAD_CHARACTERS,
    HEAD_LINES,
    conllu_lines,
    refuse_other_formats,
)

TextPaths = str | Path | Iterable[str | Path]
"""A text file, a directory or a glob pattern, or several of them."""
STDIN = "-"
PACKED_SUFFIXES = (".gz", ".xz", ".zst")


def or_packed(*suffixes: str) -> tuple[str, ...]:
    """Return these suffixes of file names, and those of the same files compressed."""
    return tuple(suffix + packed for suffix in suffixes for packed in ("", *PACKED_SUFFIXES))


TEXT_SUFFIXES = or_packed(".txt")
"""The files that are taken from a directory. A file given by name, or matched by a pattern, can have any name."""

MAX_LINE_BYTES = 1 << 24
"""The default limit on the length of a line. A small compressed file can hold a line that fills all memory."""
MAX_LINE_VARIABLE = "ELMOKIT_MAX_LINE_BYTES"
"""The environment variable that changes the limit."""
MAX_TEXT_BYTES = 1 << 30
"""The limit on a file that is read as a whole."""
LINES_BETWEEN_PROGRESS = 1000
HEAD_BYTES = 4096
"""How much of a file shows its encoding."""
_COMPRESSED = (
    (re.compile(rb"\x1f\x8b"), "gzip", ".gz"),
    (re.compile(rb"\xfd7zXZ\0"), "xz", ".xz"),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "zstd", ".zst"),
    (re.compile(rb"BZh[1-9]1AY&SY"), "bzip2", None),
)
"""How compressed files begin, what decompresses them, and the suffix by which they are read here, if they are."""
_DOCUMENTS = (
    (b"PK\x03\x04", "a ZIP archive, as .docx, .odt, .epub and .xlsx are"),
    (b"\xd0\xcf\x11\xe0", "a document of an old Office program"),
    (b"%PDF-", "PDF"),
    (b"{\\rtf", "RTF"),
)
"""How documents begin that hold no plain text."""


def expand_user(path: str | Path, error: type[ElmoError] = TextError) -> Path:
    """Replace ``~`` and ``~user`` by the home directory; an unknown user is an error of the given class."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise error(f"{path}: this user has no home directory. Give the full path.") from None


def check_input_file(source: str | Path, output: str | Path) -> None:
    """Check before any work is done that a text exists, and that the output does not replace it."""
    given: object = source
    if not isinstance(given, str | os.PathLike):
        raise TextError(
            f"Expected the path of a text file, but got one of type {type(given).__name__}. Write the text to a file."
        )
    if str(source) == STDIN:
        return
    if not Path(source).exists():
        _refuse_address(source)
        raise TextError(f"Cannot read {source}: the file does not exist.")
    if Path(source).is_dir():
        raise TextError(f"Cannot read {source}: it is a directory. Give a file in it.")
    check_not_input(output, [source])


def _refuse_address(source: str | Path) -> None:
    """Say that the text of a URL, whose slashes a path has merged, is not downloaded."""
    scheme, _, rest = str(source).partition(":/")
    if scheme in ("http", "https"):
        address = f"{scheme}://{rest.lstrip('/')}"
        raise TextError(f"Cannot read {address}: texts are not read from addresses. Download it first.")


def check_not_input(output: str | Path, sources: Iterable[str | Path]) -> None:
    """Check before any work is done that an output replaces nothing that is read, by another name either."""
    for source in sources:
        if Path(output).exists() and Path(source).exists() and Path(source).samefile(output):
            raise OutputError(f"{output} is both the input and the output, which would be lost. Choose another name.")


def path_list(paths: TextPaths) -> list[str | Path]:
    """Return one path or several as a list."""
    return [paths] if isinstance(paths, str | Path) else list(paths)


def find_text_files(names: TextPaths, reread: bool = False, suffixes: tuple[str, ...] = TEXT_SUFFIXES) -> list[Path]:
    """Find the text files given by paths, directories and glob patterns, each once.

    Args:
        names: One path or several: files; directories, which are searched at any depth for files named ``*.txt``,
            ``*.txt.gz``, ``*.txt.xz`` and ``*.txt.zst`` (in capitals, too), except hidden ones; glob patterns (``**``
            matches any depth); ``-`` for standard input. The files of a directory or pattern are sorted.
        reread: Whether the text is read more than once, which standard input and pipes do not allow.
        suffixes: How the names of the files of a directory end, in small letters.

    Raises:
        TextError: A file does not exist, a directory contains no text, a pattern matches nothing, or a text can be read
            only once.
    """
    by_real_path: dict[Path, Path] = {}
    for name in path_list(names):
        for path in _files_of(name, suffixes):
            if reread:
                check_can_reread(path)
            # `Path.resolve` would raise an error for symbolic links that form a loop; here, opening the file does.
            by_real_path.setdefault(path if str(path) == STDIN else Path(os.path.realpath(path)), path)
    return list(by_real_path.values())


def _files_of(name: str | Path, suffixes: tuple[str, ...]) -> list[Path]:
    path = expand_user(name)
    if str(path) == STDIN:
        return [path]
    if path.is_dir():
        if not (inside := _files_inside(path, suffixes)):
            wanted = ", ".join(f"*{suffix}" for suffix in suffixes)
            raise TextError(
                f"The directory {path} contains no file named {wanted}. "
                f"Select files with other names by a pattern: '{path}/**/*'"
            )
        return inside
    if path.exists():
        return [path]
    matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
    # A directory that matches is searched, as if the shell had expanded the pattern.
    files = [file for match in matches for file in (_files_inside(match, suffixes) if match.is_dir() else [match])]
    if not files:
        _refuse_address(path)
        raise TextError(f"No file matches {str(path)!r}.")
    return files


def folders_of(names: TextPaths) -> list[Path]:
    """List the directories that :func:`find_text_files` searches."""
    folders = []
    for path in map(expand_user, path_list(names)):
        matches = [path] if path.exists() else map(Path, glob.glob(str(path), recursive=True))
        folders += [match for match in matches if match.is_dir()]
    return folders


def _files_inside(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.name.lower().endswith(suffixes)  # ``BOOK.TXT``, too
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def can_reread(path: str | Path) -> bool:
    """Check whether a text can be read twice. Pipes and ``-`` (even where a file has that name) cannot."""
    return str(path) != STDIN and Path(path).is_file()


def check_can_reread(path: str | Path) -> None:
    """Refuse standard input and pipes before any work is done, for a text that is read more than once."""
    # What does not exist or is a directory is for the reader to refuse.
    is_stdin = str(path) == STDIN
    if is_stdin or not (can_reread(path) or Path(path).is_dir() or not Path(path).exists()):
        what = "Standard input" if is_stdin else f"{path} is a pipe, which"
        raise TextError(f"{what} can be read only once, but this text is read again. Write it to a file first.")


def check_names(names: Iterable[str | Path]) -> None:
    """Refuse names that are not UTF-8 before any work is done, for files that a run finds again by them."""
    for name in map(str, names):
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            raise TextError(f"The name {name!r} is not UTF-8, so a run cannot record it. Rename it.") from None


def unpacked_name(path: str | Path) -> str:
    """Return the name of a file in small letters and without the suffix of its compression: it ends in its format."""
    path = Path(str(path).lower())
    return path.stem if path.suffix in PACKED_SUFFIXES else path.name


def total_bytes(paths: Iterable[Path]) -> int | None:
    """Return the size of all files on disk, or None if one is a pipe, whose size is unknown."""
    paths = list(paths)
    return sum(path.stat().st_size for path in paths) if all(map(can_reread, paths)) else None


def _open(path: str | Path) -> tuple[IO[bytes], IO[bytes] | None, tuple[type[Exception], ...]]:
    """Return the decompressed content, the file on disk (None for standard input), and what a damaged file raises."""
    if str(path) == STDIN:
        # What reads a text closes it.
        if sys.stdin is None or sys.stdin.closed or sys.stdin.buffer.closed:
            raise TextError("Standard input is closed, or was read already. It can be used for only one text.")
        return sys.stdin.buffer, None, (OSError,)
    suffix = Path(path).suffix.lower()
    zstd = _zstandard(path) if suffix == ".zst" else None
    try:
        raw = Path(path).open("rb")  # noqa: SIM115 (the caller closes it)
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
    """Open a file for reading bytes, decompressed as in ``read_lines``."""
    content, raw, damage = _open(path)
    with content, raw or contextlib.nullcontext():
        try:
            yield content
        except damage as error:
            raise TextError(f"{path} cannot be read to its end: {error}") from None


def _zstandard(path: str | Path) -> Any:
    """Return Python's module for Zstandard: in the standard library since 3.14, before that an optional package."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise MissingExtraError(f"Reading {path}", "zstd") from None
    return zstd


def read_lines(
    path: str | Path, on_bytes: Callable[[int], object] | None = None, like_bilm_tf: bool = False
) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file, without line ends and without a byte order mark.

    Files ending in ``.gz``, ``.xz`` and ``.zst``, in any case, are decompressed. ``-`` is standard input.

    Args:
        path: The file.
        on_bytes: Called now and then with the number of bytes read since the last call, as they are on disk.
        like_bilm_tf: Read what Python does: a carriage return ends a line, and a byte order mark is a character.

    Raises:
        TextError: The file does not exist, is damaged, or a line is not UTF-8 or longer than ``max_line_bytes()``.
        MissingExtraError: The name ends in ``.zst`` and no package that can read it is installed.
    """
    number, n_reported, n_bytes = 1, 0, 0
    lines, raw, damage = _open(path)
    with lines, raw or contextlib.nullcontext():
        try:
            for line in bounded_lines(lines, path):
                if number == 1:
                    _refuse_compressed(line, path)
                if number == 1 and not like_bilm_tf:
                    line = line.removeprefix(codecs.BOM_UTF8)
                    if b"\r" in line and not line.endswith(b"\n") and b"\r" in line.rstrip(b"\r"):
                        raise TextError(
                            f"{path} ends its lines with carriage returns alone, as old Macs did. Convert it: "
                            f"tr '\\r' '\\n' < {path} > NEW"
                        )
                # Bytes 0 are rare in UTF-8 and half of all bytes of English in UTF-16, which would decode without an
                # error. Searching for one is fast.
                if b"\0" in line and (encoding := _wide_encoding(line, number == 1)):
                    raise _wrong_encoding(path, encoding)
                text = line.decode("utf-8")
                if like_bilm_tf:
                    yield from text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")
                else:
                    yield text.rstrip("\r\n")
                number += 1
                if on_bytes is not None:
                    n_bytes += len(line)
                    if number % LINES_BETWEEN_PROGRESS == 0:
                        n_read = _position(raw, n_bytes)
                        on_bytes(n_read - n_reported)
                        n_reported = n_read
        except UnicodeDecodeError as error:
            if encoding := _wide_encoding(line, number == 1):
                raise _wrong_encoding(path, encoding) from None
            with contextlib.suppress(*damage):
                # Only of a file: a stream may have no more yet.
                _refuse_binary(line if raw is None else line + lines.read(HEAD_BYTES), path)
            raise TextError(
                f"{path}, line {number}: not UTF-8 ({error.reason} at byte {error.start}). Convert the file to UTF-8. "
                f"If it is Western European text, use: iconv -f {_western_encoding(line)} -t UTF-8 {_named(path)}"
            ) from None
        except damage as error:
            raise TextError(
                f"{path}: reading stopped at line {number}: {error}. The file is damaged, or is not compressed as its "
                "name says. Copy it again, or rename it."
            ) from None
        if on_bytes is not None:
            on_bytes(_position(raw, n_bytes) - n_reported)


def read_text(
    path: str | Path, max_bytes: int = MAX_TEXT_BYTES, if_too_large: str = "Split it into several files"
) -> str:
    """Read a text file as a whole, as in ``read_lines``; ``if_too_large`` ends the error about a larger file."""
    with open_binary(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise TextError(f"{path} is larger than {max_bytes:,} bytes. {if_too_large}.")
    _refuse_compressed(data, path)
    if encoding := _wide_encoding(data[:HEAD_BYTES]):
        raise _wrong_encoding(path, encoding)
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse_binary(data, path)
        raise TextError(
            f"{path}: not UTF-8 ({error.reason} at byte {error.start}). Convert the file to UTF-8."
        ) from None


def _refuse_compressed(start: bytes, path: str | Path) -> None:
    """Refuse a file that is compressed and whose name does not say so, or no plain text, by its first bytes."""
    for magic, tool, suffix in _COMPRESSED:
        if magic.match(start):
            can_rename = suffix is not None and Path(path).suffix.lower() != suffix and str(path) != STDIN
            rename = f", or give it a name that ends in {suffix}" if can_rename else ""
            raise TextError(f"{path} is compressed with {tool}. Decompress it first ({tool} -d){rename}.")
    for magic_bytes, what in _DOCUMENTS:
        if start.startswith(magic_bytes):
            raise TextError(f"{path} is {what}, not plain text. Save it as plain text first.")


def _refuse_binary(data: bytes, path: str | Path) -> None:
    """Say that data that is not UTF-8 is no text in another encoding either, if it has bytes 0."""
    if b"\0" in data:
        raise TextError(
            f"{path} is not text in UTF-8: it has bytes 0, as pictures, archives and text in UTF-16 have. Give a text "
            "file in UTF-8."
        ) from None


def _wide_encoding(data: bytes, is_start: bool = True) -> str | None:
    """Recognize UTF-16 and UTF-32 by their byte order mark, or else by their bytes 0."""
    # In UTF-16LE, lines after the start begin with the second byte of the line break before, so that their bytes 0 are
    # where those of UTF-16BE are.
    # UTF-32 first: its little-endian mark begins with that of UTF-16.
    for mark, name in (
        (codecs.BOM_UTF32_LE, "UTF-32"),
        (codecs.BOM_UTF32_BE, "UTF-32"),
        (codecs.BOM_UTF16_LE, "UTF-16"),
        (codecs.BOM_UTF16_BE, "UTF-16"),
    ):
        if data.startswith(mark):
            return name
    even, odd = data[::2].count(0), data[1::2].count(0)
    if min(even, odd) * 3 > len(data):
        return "UTF-32"
    if max(even, odd) * 4 <= len(data) or not data.strip(b"\0\r\n"):  # a stray byte 0 is not an encoding
        return None
    if odd >= even:
        return "UTF-16LE"
    return "UTF-16BE" if is_start else "UTF-16"


def _wrong_encoding(path: str | Path, encoding: str) -> TextError:
    return TextError(
        f"{path} is in {encoding}, but text is read in UTF-8. Convert it: iconv -f {encoding} -t UTF-8 {_named(path)}"
    )


def _western_encoding(line: bytes) -> str:
    """Return the more likely of two encodings: Latin-1 has no printable characters at bytes 0x80 to 0x9f."""
    return "WINDOWS-1252" if any(0x80 <= byte <= 0x9F for byte in line) else "ISO-8859-1"


def _named(path: str | Path) -> str:
    """Return the end of a command that converts a file."""
    if str(path) == STDIN:
        return ""
    path = Path(path)
    if path.suffix.lower() in PACKED_SUFFIXES:
        path = path.with_suffix("")
    return f"{shlex.quote(str(path))} > {shlex.quote(f'{path.stem}-utf8{path.suffix}')}"


def bounded_lines(file: IO[bytes], path: str | Path, first: int = 1) -> Iterator[bytes]:
    """Yield the lines of a file with their ends; ``path`` and the number of the ``first`` line are for errors."""
    limit, number = max_line_bytes(), first
    while line := file.readline(limit + 1):
        if len(line) > limit and not line.endswith(b"\n"):
            raise TextError(
                f"{path}, line {number} is longer than {limit:,} bytes. Break it into lines; or, if it is meant to be "
                f"that long, raise the limit with {MAX_LINE_VARIABLE} or elmokit --max-line-bytes."
            )
        yield line
        number += 1


def max_line_bytes() -> int:
    """Return the limit on the length of a line: ``ELMOKIT_MAX_LINE_BYTES`` if set, else ``MAX_LINE_BYTES``."""
    chosen = os.environ.get(MAX_LINE_VARIABLE) or str(MAX_LINE_BYTES)
    n_bytes = whole_number(chosen)
    if n_bytes is None or not 0 < n_bytes <= LARGEST_LINE_LIMIT:
        raise ConfigError(
            f"{MAX_LINE_VARIABLE} is {chosen[:60]!r}; it must be a whole number of bytes above 0 and at most "
            f"{LARGEST_LINE_LIMIT:,}."
        )
    return n_bytes


def _position(raw: IO[bytes] | None, n_bytes: int) -> int:
    """Count the bytes of a file that were read; of a stream without a position, those that came out of it."""
    return raw.tell() if raw is not None and raw.seekable() else n_bytes


def is_conllu(path: str | Path) -> bool:
    """Check by its name whether a text is CoNLL-U or CoNLL-U Plus."""
    return unpacked_name(path).endswith(CONLLU_SUFFIXES)


def text_lines(
    path: str | Path,
    on_bytes: Callable[[int], object] | None = None,
    accepted: Sequence[str] | None = (),
    like_bilm_tf: bool = False,
) -> Iterator[tuple[int, str]]:
    """Yield the numbers, from 1, and the lines of a text: every reader of sentences gets them here.

    CoNLL-U is read by its name: each sentence becomes a line of its words, with the number of the line of the first.

    Args:
        path, on_bytes, like_bilm_tf: As in ``read_lines``.
        accepted: Other formats that the caller reads, as ``text_formats`` names them; None for all.

    Raises:
        TextError: As in ``read_lines``, or the text has another format, such as HTML or a table.
    """
    lines = read_lines(path, on_bytes, like_bilm_tf)
    if is_conllu(path):
        yield from conllu_lines(path, lines)
        return
    head: list[str] = []
    if accepted is not None:
        n_characters = 0
        for line in islice(lines, HEAD_LINES):
            head.append(line)
            n_characters += len(line)
            if n_characters > HEAD_CHARACTERS:
                break
        refuse_other_formats(_name(path), head, accepted)
    yield from enumerate(chain(head, lines), start=1)


class TextLine(NamedTuple):
    """A line of a text."""

    number: int
    """From 1."""
    text: str
    sentences: list[list[str]]
    """Its tokens: of tokenized text one sentence, which is empty if the line is blank; of raw text any number."""


def split_lines(
    path: str | Path,
    on_bytes: Callable[[int], object] | None = None,
    split: Callable[[str], list[list[str]]] | None = None,
    accepted: Sequence[str] | None = (),
    like_bilm_tf: bool = False,
) -> Iterator[TextLine]:
    """Yield the lines of a text with their sentences; arguments and errors as in ``read_sentences``, ``text_lines``."""
    check = SegmentationCheck(_name(path), split is not None)
    if is_conllu(path):
        split = None  # it has words already
    if split is None:
        split = (lambda line: [line.split()]) if like_bilm_tf else (lambda line: [split_tokens(line)])
    for number, line in text_lines(path, on_bytes, accepted, like_bilm_tf):
        sentences = split(line)
        for tokens in sentences:
            check(tokens)
        yield TextLine(number, line, sentences)
    check.end()


def read_sentences(
    path: str | Path,
    on_bytes: Callable[[int], object] | None = None,
    split: Callable[[str], list[list[str]]] | None = None,
    like_bilm_tf: bool = False,
) -> Iterator[list[str]]:
    """Yield the sentences of a text. Blank lines are skipped.

    Args:
        path: The file, as in ``text_lines``.
        on_bytes: As in ``read_lines``.
        split: Splits a line of raw text into sentences and tokens. None: a line is a tokenized sentence.
        like_bilm_tf: Read lines as in ``read_lines``; a blank one is a sentence, and any white space separates tokens.

    Raises:
        TextError: As in ``text_lines``, or the file contains no sentence.
    """
    return (tokens for _, tokens in numbered_sentences(path, on_bytes, split, like_bilm_tf))


def numbered_sentences(
    path: str | Path,
    on_bytes: Callable[[int], object] | None = None,
    split: Callable[[str], list[list[str]]] | None = None,
    like_bilm_tf: bool = False,
) -> Iterator[tuple[int, list[str]]]:
    """Yield what ``read_sentences`` does, each with the number of its line, from 1."""
    is_empty = True
    for line in split_lines(path, on_bytes, split, like_bilm_tf=like_bilm_tf):
        for tokens in line.sentences:
            if tokens or like_bilm_tf:
                is_empty = False
                yield line.number, tokens
    if is_empty:
        raise TextError(f"{_name(path)} contains no sentence: it is empty or blank. Leave it out, or add text to it.")


def _name(path: str | Path) -> str:
    return "Standard input" if str(path) == STDIN else str(path)


def split_tokens(line: str) -> list[str]:
    """Split a tokenized line at spaces and tabs. Other Unicode spaces are part of their token."""
    return [part for part in line.replace("\t", " ").split(" ") if part]
