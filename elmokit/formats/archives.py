"""Unpack archives (zip, tar, tar.gz and similar) to a temporary directory from which a model is read.

Only the files that a model needs are unpacked, and never a member that leads outside of the directory.
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import lzma
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, cast

from elmokit.errors import ConfigError, FormatError, ModelError, OutputError
from elmokit.formats.format import Format, find_format, model_files, open_path
from elmokit.formats.guess import guess_archive
from elmokit.formats.model import PretrainedBiLM, Weights

_GZIP = b"\x1f\x8b"
_BLOCK = 1 << 20
_TAR_MAGIC = ((0, _GZIP), (0, b"BZh"), (0, b"\xfd7zXZ\x00"), (257, b"ustar"))
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
    with contextlib.ExitStack() as on_exit:
        try:
            temporary = tempfile.TemporaryDirectory(prefix="elmokit-", ignore_cleanup_errors=True)
            folder = Path(on_exit.enter_context(temporary))
            names = (_unpack_zip if _is_zip(path) else _unpack_tar)(path, folder, wanted)
        except (*_DAMAGE, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # gzip, bz2 and lzma report damage without
                raise OutputError(f"Unpacking {path} for reading failed: {error.strerror}.") from None
            raise FormatError(f"{path} is a damaged or unsupported archive ({error}).") from None
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
        with tarfile.open(path, "r|*") as archive:
            return archive.next() is not None
    except (*_DAMAGE, OSError):
        return False


def _unpack_zip(path: Path, folder: Path, wanted: Sequence[str]) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _check_room(path, folder, sum(member.file_size for member in members))
        # Nothing is written before the names of all members were checked.
        targets = [_safe_path(path, member.filename) for member in members]
        for member, target in zip(members, targets, strict=True):
            if _is_wanted(target, wanted) and not member.is_dir():
                (folder / target).parent.mkdir(parents=True, exist_ok=True)
                # A link is written as its text: zip has no type of its own for links.
                with archive.open(member) as source, (folder / target).open("wb") as file:
                    shutil.copyfileobj(source, file)
    return [member.filename for member in members]


def _unpack_tar(path: Path, folder: Path, wanted: Sequence[str]) -> list[str]:
    names: list[str] = []
    # Read as a stream: to jump to a member, a compressed archive would be decompressed again.
    with _unzipped(path) as content, tarfile.open(fileobj=content, mode="r|*") as archive:
        for member in archive:
            target = _safe_path(path, member.name)
            names.append(member.name)
            # Links and devices are left out.
            if member.isreg() and _is_wanted(target, wanted):
                _check_room(path, folder, member.size)
                (folder / target).parent.mkdir(parents=True, exist_ok=True)
                source = archive.extractfile(member)
                assert source is not None
                with source, (folder / target).open("wb") as file:
                    shutil.copyfileobj(source, file)
        while content.read(_BLOCK):  # the checksum is at the end
            pass
    return names


def _unzipped(path: Path) -> IO[bytes]:
    """Open a tar archive, out of gzip if it is compressed so: ``tarfile`` itself does not compare gzip's checksum."""
    with path.open("rb") as file:
        is_gzip = file.read(len(_GZIP)) == _GZIP
    return cast(IO[bytes], gzip.open(path)) if is_gzip else path.open("rb")


def _check_room(path: Path, folder: Path, n_bytes: int) -> None:
    room = shutil.disk_usage(folder).free
    if n_bytes > room:
        raise OutputError(
            f"{path} unpacks to {n_bytes:,} bytes or more, and the directory for temporary files has room for "
            f"{room:,}: set TMPDIR to another one."
        )


def _safe_path(path: Path, name: str) -> PurePosixPath:
    """Return a member's name as a path inside the directory."""
    inside = PurePosixPath(name)
    if "\\" in name or "\0" in name or _DRIVE.match(name) or inside.is_absolute() or ".." in inside.parts:
        raise FormatError(f"{path} is not opened: its member {name!r} would be written outside the directory.")
    return inside


def _is_wanted(name: PurePosixPath, wanted: Sequence[str]) -> bool:
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in name.parts)
    return not hidden and any(fnmatch(name.name, pattern) for pattern in wanted)


def _root(path: Path, folder: Path, is_model: Callable[[Path], bool]) -> Path:
    """Find the one directory that holds a model; if there is none, the first one that holds more than a directory."""
    inside = [directory for directory in (folder, *folder.rglob("*")) if directory.is_dir()]
    models = [directory for directory in inside if is_model(directory)]
    # A directory inside a model is part of it, such as the variables of a TF-Hub module.
    found = set(models)
    outer = [model for model in models if found.isdisjoint(model.parents)]
    if len(outer) > 1:
        names = ", ".join(sorted(str(model.relative_to(folder)) for model in outer))
        raise FormatError(f"{path} holds {len(outer):,} models, in {names}. Unpack it and give the directory of one.")
    if outer:
        return outer[0]
    while len(content := list(folder.iterdir())) == 1 and content[0].is_dir():
        folder = content[0]
    return folder


FORMAT = Archive()
