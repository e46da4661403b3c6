"""Archives (zip, tar, tar.gz and its like) to a folder that lives for as long as a model is read from it.

Only what a model needs is unpacked, after every name, kind and size was found sound; nothing is written outside the
folder, and never more than an archive declares.
"""

from __future__ import annotations

import contextlib
import lzma
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from elmokit.errors import FormatError, OutputError

MODEL_FILES = (
    "*.json",
    "*.hdf5",
    "*.h5",
    "*.safetensors",
    "*vocab*.txt",
    "*vocab*.txt.gz",
    "*.dic",
    "*.pkl",
    "checkpoint",
    "*.index",
    "*.data-*-of-*",
    "*.pb",
    "*options_file",
    "*weight_file",
)
"""The names of files that a model of some family is read from; the rest of an archive stays where it is."""

MAX_MEMBERS = 20_000
MAX_BYTES = 64 * 2**30
MAX_RATIO = 200  # of unpacked to packed: weights hardly shrink, word lists to a fifth
_SMALL_BYTES = 1 << 20  # whatever its ratio
_HEADER_BYTES = 1 << 14  # of text in one header of a tar
_BLOCK = 1 << 20

_ROOTS = ("*.hdf5", "*.h5", "model.safetensors", "encoder.pkl", "*.index", "saved_model.pb", "*weight_file")
_TEXT_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_TAR_MAGIC = ((0, b"\x1f\x8b"), (0, b"BZh"), (0, b"\xfd7zXZ\x00"), (257, b"ustar"))
_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)
_DRIVE = re.compile(r"^[A-Za-z]:")


def is_archive(path: Path) -> bool:
    """Whether a file is a zip or a tar, compressed or not, by its first bytes."""
    return _is_zip(path) or _is_tar(path)


class Unpacked(NamedTuple):
    """What an archive holds."""

    folder: Path  # where its one model stands, or where everything does if there is none
    names: list[str]  # of all members, those that were not unpacked too


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[Unpacked]:
    """The folder of the one model in an archive; it is gone after the block.

    Raises:
        FormatError: the archive is damaged, unsound, or holds no model, or several.
        OutputError: there is no room to unpack it.
    """
    with tempfile.TemporaryDirectory(prefix="elmokit-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        try:
            names = _unpack_zip(path, folder) if _is_zip(path) else _unpack_tar(path, folder)
        except _DAMAGE as error:
            raise FormatError(
                f"{path} is a damaged archive, or of a kind that cannot be read ({error}). Download or copy it again."
            ) from None
        except OSError as error:
            if error.errno is None:  # gzip, bz2 and lzma speak of damage by this
                raise FormatError(f"{path} is a damaged archive ({error}). Download or copy it again.") from None
            raise OutputError(f"Unpacking {path} for reading failed: {error.strerror}.") from None
        yield Unpacked(_root(path, folder), names)


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")


def _is_tar(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(512)
    if not any(head[at:].startswith(magic) for at, magic in _TAR_MAGIC):
        return False
    try:
        with tarfile.open(path, "r|*", tarinfo=_Member) as archive:
            return archive.next() is not None
    except (*_DAMAGE, OSError):
        return False
    except FormatError:
        return True


def _unpack_zip(path: Path, folder: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        limit = _Limit(path, folder)
        for member in members:
            name = _sound(path, member.filename)
            if stat.S_ISLNK(member.external_attr >> 16):
                raise _unsound(path, member.filename, "is a link")
            if member.flag_bits & 0x1:
                raise _unsound(path, member.filename, "is encrypted; unpack the archive yourself and give the folder")
            limit.take(member.filename, member.file_size, member.compress_size)
        for member in members:
            name = _sound(path, member.filename)
            if not member.is_dir() and _is_wanted(name):
                with archive.open(member) as source:
                    _write(path, source, folder / name, member.file_size)
    return [member.filename for member in members]


def _unpack_tar(path: Path, folder: Path) -> list[str]:
    names: list[str] = []
    limit = _Limit(path, folder)
    # A stream: each member is judged before the next is looked for.
    with tarfile.open(path, "r|*", tarinfo=_Member) as archive:
        for member in archive:
            name = _sound(path, member.name)
            names.append(member.name)
            if member.isdir():
                continue
            if not member.isreg():
                raise _unsound(path, member.name, "is a link or a device")
            limit.take(member.name, member.size, None)
            if _is_wanted(name):
                source = archive.extractfile(member)
                assert source is not None
                _write(path, source, folder / name, member.size)
    return names


class _Member(tarfile.TarInfo):
    """A tar member that is refused while its header is read, before ``tarfile`` does what the header asks for.

    No header may carry more text than names and dates need, and none may list the holes of a sparse file: ``tarfile``
    reads that list whole, in time that grows with its square. No program packs weights so unless it is told to.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        member = super().frombuf(buf, encoding, errors)
        if member.type in _TEXT_HEADERS and member.size > _HEADER_BYTES:
            raise FormatError(f"A header in this tar archive declares {member.size:,} bytes of text. It is not opened.")
        if member.type == tarfile.GNUTYPE_SPARSE:
            member._refuse_sparse()
        return member

    def _refuse_sparse(self, *_: object) -> None:
        raise FormatError(
            f"The member {self.name!r} of this tar archive is stored as a sparse file. It is not opened: unpack the "
            "archive yourself and give the folder."
        )

    # What ``tarfile`` calls for the three ways in which a pax header lists holes.
    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


class _Limit:
    """What an archive may declare in all: no more than is plausible for its size, nor than there is room for."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self.n_members = 0
        self.n_bytes = 0
        self.plausible = max(_SMALL_BYTES, MAX_RATIO * path.stat().st_size)
        self.room = shutil.disk_usage(folder).free

    def take(self, name: str, n_bytes: int, packed: int | None) -> None:
        self.n_members += 1
        self.n_bytes += n_bytes
        if self.n_members > MAX_MEMBERS:
            raise FormatError(f"{self.path} has more than {MAX_MEMBERS:,} members; it is no archive of a model.")
        too_dense = packed is not None and n_bytes > max(_SMALL_BYTES, MAX_RATIO * packed)
        if too_dense or self.n_bytes > min(MAX_BYTES, self.plausible):
            raise _unsound(
                self.path, name, f"makes it unpack to {self.n_bytes:,} bytes, more than an archive of weights can"
            )
        if self.n_bytes > self.room:
            raise OutputError(
                f"{self.path} unpacks to more than {self.n_bytes:,} bytes, and the folder for temporary files has room "
                f"for {self.room:,}. Make room, or set TMPDIR to a folder elsewhere."
            )


def _sound(path: Path, name: str) -> PurePosixPath:
    """A member's name as a path below the folder."""
    inside = PurePosixPath(name)
    if "\\" in name or "\0" in name or _DRIVE.match(name) or inside.is_absolute() or ".." in inside.parts:
        raise _unsound(path, name, "would be written outside the folder")
    return inside


def _unsound(path: Path, name: str, why: str) -> FormatError:
    return FormatError(f"{path} is not opened: its member {name!r} {why}.")


def _is_wanted(name: PurePosixPath) -> bool:
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in name.parts)
    return not hidden and any(fnmatch(name.name, pattern) for pattern in MODEL_FILES)


def _write(path: Path, source: IO[bytes], target: Path, declared: int) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            written = 0
            while block := source.read(min(_BLOCK, declared - written + 1)):
                written += len(block)
                if written > declared:
                    raise _unsound(path, target.name, "is longer than it declares")
                file.write(block)
    except FileExistsError:
        raise _unsound(path, target.name, "stands in it twice") from None
    if written < declared:
        raise _unsound(path, target.name, f"is cut short: {written:,} of {declared:,} bytes")


def _root(path: Path, folder: Path) -> Path:
    """The one folder below in which a model stands."""
    roots = {file.parent for file in folder.rglob("*") if any(fnmatch(file.name, pattern) for pattern in _ROOTS)}
    roots = {root.parent if root.name in ("variables", "fta") else root for root in roots}
    outer = [root for root in roots if not any(other in root.parents for other in roots)]
    if len(outer) == 1:
        return outer[0]
    if outer:
        names = ", ".join(sorted(str(root.relative_to(folder)) for root in outer))
        raise FormatError(f"{path} holds several models, in {names}. Unpack it and give the folder of one.")
    return folder
