"""Unpack archives (zip, tar, tar.gz and similar) to a temporary directory from which a model is read.

An archive may come from anywhere. Only the files that a model needs are unpacked, after the name, type and size of
every member were checked. Nothing is written outside the directory, and never more than the archive declares.
"""

from __future__ import annotations

import contextlib
import copy
import lzma
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from elmokit.errors import ConfigError, FormatError, ModelError, OutputError
from elmokit.formats.format import Format, find_format, model_files, open_path
from elmokit.formats.guess import guess_archive
from elmokit.formats.model import PretrainedBiLM, Weights

MAX_MEMBERS = 20_000
MAX_BYTES = 64 * 2**30
MAX_RATIO = 200  # unpacked to packed: weights hardly compress, word lists to a fifth
_SMALL_BYTES = 1 << 20  # allowed at any ratio
_HEADER_BYTES = 1 << 14  # of text in one header of a tar file
_BLOCK = 1 << 20

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
    OverflowError,  # a length in a header of a tar archive
    TypeError,  # tarfile, if a file ends in its gzip header
    ValueError,
)
_DRIVE = re.compile(r"^[A-Za-z]:")


def is_archive(path: Path) -> bool:
    """Check by its first bytes whether a file is a zip or tar archive, compressed or not."""
    return _is_zip(path) or _is_tar(path)


class Unpacked(NamedTuple):
    """An unpacked archive."""

    folder: Path  # the directory of its one model, or of everything if there is none
    names: list[str]  # of all members, including those that were not unpacked


class Archive(Format):
    """A zip or tar archive of a model in another format."""

    name = "archive"
    description = "a zip or tar archive of a model"
    files = ()

    def recognizes(self, path: Path) -> bool:
        return path.is_file() and is_archive(path)

    def load(self, path: Path, options: Path | None = None, words: Path | None = None) -> PretrainedBiLM:
        with unpacked_model(path) as archive:
            try:
                model = open_path(archive.folder, options, words)
                # Read everything now: the unpacked files are about to be deleted.
                weights, softmax = copy.deepcopy((Weights(model.config, model.arrays), model.softmax))
            except (ModelError, ConfigError) as error:
                hint = guess_archive(archive.names, archive.folder) if isinstance(error, FormatError) else ""
                # A SettingError, which is a ConfigError, is created from other arguments.
                kind = ConfigError if isinstance(error, ConfigError) else type(error)
                raise kind(str(error).replace(str(archive.folder), str(path)) + hint) from None
        return model.replace(weights=weights, softmax=softmax, source=path)


def unpacked_model(path: Path) -> AbstractContextManager[Unpacked]:
    """Unpack the files of a model from an archive; arguments and errors as in ``unpacked``."""
    return unpacked(path, model_files(), lambda folder: find_format(folder) is not None)


@contextlib.contextmanager
def unpacked(path: Path, wanted: Sequence[str], is_model: Callable[[Path], bool]) -> Iterator[Unpacked]:
    """Unpack the ``wanted`` files (patterns) of an archive for the block, and yield the directory of its one model."""
    # Errors while deleting are ignored: Windows cannot delete a file that is still memory-mapped.
    try:
        temporary = tempfile.TemporaryDirectory(prefix="elmokit-", ignore_cleanup_errors=True)
    except OSError as error:
        raise OutputError(f"Unpacking {path} for reading failed: {error.strerror or error}.") from None
    with temporary as name:
        folder = Path(name)
        try:
            names = (_unpack_zip if _is_zip(path) else _unpack_tar)(path, folder, wanted)
        except _DAMAGE as error:
            raise FormatError(
                f"{path} is a damaged archive, or of a format that cannot be read ({error}). Download or copy it again."
            ) from None
        except OSError as error:
            if error.errno is None:  # gzip, bz2 and lzma report damage this way
                raise FormatError(f"{path} is a damaged archive ({error}). Download or copy it again.") from None
            raise OutputError(f"Unpacking {path} for reading failed: {error.strerror}.") from None
        yield Unpacked(_root(path, folder, is_model), names)


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        # The second signature is that of an archive without members.
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
    # It is an archive, but one that `_Member` refuses. The reason is given when it is opened.
    except FormatError:
        return True


def _unpack_zip(path: Path, folder: Path, wanted: Sequence[str]) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        limit = _Limit(path, folder)
        for member in members:
            if not member.filename:
                raise _unsafe(path, member.filename, "has no name")
            name = _safe_path(path, member.filename)
            # The upper 16 bits hold the Unix mode. Zip has no type of its own for links.
            if stat.S_ISLNK(member.external_attr >> 16):
                raise _unsafe(path, member.filename, "is a link")
            if member.flag_bits & 0x1:
                raise _unsafe(path, member.filename, "is encrypted; unpack the archive yourself and give the directory")
            limit.take(member.filename, member.file_size, member.compress_size)
        for member in members:
            # A second loop: nothing is written before every member was checked.
            name = _safe_path(path, member.filename)
            if not member.is_dir() and _is_wanted(name, wanted):
                with archive.open(member) as source:
                    _write(path, source, folder / name, member.file_size)
    return [member.filename for member in members]


def _unpack_tar(path: Path, folder: Path, wanted: Sequence[str]) -> list[str]:
    names: list[str] = []
    limit = _Limit(path, folder)
    # Read as a stream, so that each member is checked before the next one is searched for.
    with tarfile.open(path, "r|*", tarinfo=_Member) as archive:
        for member in archive:
            name = _safe_path(path, member.name)
            names.append(member.name)
            if member.isdir():
                continue
            if not member.isreg():
                raise _unsafe(path, member.name, "is a link or a device")
            limit.take(member.name, member.size, None)
            if _is_wanted(name, wanted):
                source = archive.extractfile(member)
                assert source is not None
                _write(path, source, folder / name, member.size)
    return names


class _Member(tarfile.TarInfo):
    """A tar member that is checked while its header is read, before ``tarfile`` does what the header asks for."""

    # No header may carry more text than names and dates need. Sparse files are refused, because `tarfile` reads the
    # whole list of their holes, in time that grows with its square. No program stores weights this way by default.

    # `tarfile` calls this with every header, before it does anything about it. The public `frombuf` is not enough:
    # newer releases of Python no longer call it.
    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _TEXT_HEADERS and self.size > _HEADER_BYTES:
            raise FormatError(f"A header in this tar archive declares {self.size:,} bytes of text. It is not opened.")
        if self.type == tarfile.GNUTYPE_SPARSE:
            self._refuse_sparse()
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return member

    def _refuse_sparse(self, *_: object) -> None:
        raise FormatError(
            f"The member {self.name!r} of this tar archive is stored as a sparse file. It is not opened: unpack the "
            "archive yourself and give the directory."
        )

    # tarfile calls these for the three ways in which a pax header lists holes.
    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


class _Limit:
    """Limits the total size that an archive declares, by what is plausible for its size and by the free space."""

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
            raise FormatError(f"{self.path} has more than {MAX_MEMBERS:,} members; it is not an archive of a model.")
        too_dense = packed is not None and n_bytes > max(_SMALL_BYTES, MAX_RATIO * packed)
        if too_dense or self.n_bytes > min(MAX_BYTES, self.plausible):
            raise _unsafe(
                self.path, name, f"makes it unpack to {self.n_bytes:,} bytes, more than an archive of weights can"
            )
        if self.n_bytes > self.room:
            raise OutputError(
                f"{self.path} unpacks to more than {self.n_bytes:,} bytes, and the directory for temporary files has "
                f"room for {self.room:,}. Make room, or set TMPDIR to a directory elsewhere."
            )


def _safe_path(path: Path, name: str) -> PurePosixPath:
    """Return a member's name as a path inside the directory."""
    inside = PurePosixPath(name)
    if "\\" in name or "\0" in name or _DRIVE.match(name) or inside.is_absolute() or ".." in inside.parts:
        raise _unsafe(path, name, "would be written outside the directory")
    return inside


def _unsafe(path: Path, name: str, why: str) -> FormatError:
    return FormatError(f"{path} is not opened: its member {name!r} {why}.")


def _is_wanted(name: PurePosixPath, wanted: Sequence[str]) -> bool:
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in name.parts)
    return not hidden and any(fnmatch(name.name, pattern) for pattern in wanted)


def _write(path: Path, source: IO[bytes], target: Path, declared: int) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # "x" refuses an existing file, so that a second member of the same name cannot replace one that was checked.
        with target.open("xb") as file:
            written = 0
            # One byte more than declared is requested, to notice a member that is longer than its header says.
            while block := source.read(min(_BLOCK, declared - written + 1)):
                written += len(block)
                if written > declared:
                    raise _unsafe(path, target.name, "is longer than it declares")
                file.write(block)
    except FileExistsError:
        raise _unsafe(path, target.name, "occurs twice") from None
    if written < declared:
        raise _unsafe(path, target.name, f"is truncated: {written:,} of {declared:,} bytes")


def _root(path: Path, folder: Path, is_model: Callable[[Path], bool]) -> Path:
    """Find the one directory that holds a model; if there is none, the first one that holds more than a directory."""
    inside = [directory for directory in (folder, *folder.rglob("*")) if directory.is_dir()]
    models = [directory for directory in inside if is_model(directory)]
    # A directory inside a model is part of it, such as the variables of a TF-Hub module.
    found = set(models)
    outer = [model for model in models if found.isdisjoint(model.parents)]
    if len(outer) > 1:
        names = ", ".join(sorted(str(model.relative_to(folder)) for model in outer)[:5])
        raise FormatError(
            f"{path} holds {len(outer):,} models, in {names}{', ...' if len(outer) > 5 else ''}. Unpack it and give "
            "the directory of one."
        )
    if outer:
        return outer[0]
    while len(content := list(folder.iterdir())) == 1 and content[0].is_dir():
        folder = content[0]
    return folder


FORMAT = Archive()
