"""Unpack archives (zip, tar, tar.gz and similar) to a temporary directory to read a model.

Only the files that a model needs are unpacked, and never members outside the directory.
"""

from __future__ import annotations

import contextlib
import copy
import lzma
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from elmokit.errors import ConfigError, FormatError, ModelError, OutputError
from elmokit.formats.format import Format, find_format, guess_archive, model_files, open_path
from elmokit.pretrained.model import PretrainedBiLM

_BLOCK = 1 << 20
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


def is_archive(path: Path) -> bool:
    """Check by its first bytes whether a file is a zip or tar archive, possibly compressed."""
    return _is_zip(path) or _is_tar(path)


class Unpacked(NamedTuple):
    """An unpacked archive."""

    folder: Path  # the directory of its model, or of everything if there is none
    names: list[str]  # of all members, including those that were not unpacked


class Archive(Format):
    """A zip or tar archive with a model in another format."""

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
                weights, softmax = copy.deepcopy((model.weights, model.softmax))
            except (ModelError, ConfigError) as error:
                text = str(error).replace(str(archive.folder), str(path))
                if isinstance(error, FormatError):
                    text += guess_archive(archive.names, archive.folder)
                # A SettingError, which is also a ConfigError, has other arguments.
                kind = ConfigError if isinstance(error, ConfigError) else type(error)
                raise kind(text) from None
        return model.replace(weights=weights, softmax=softmax, source=path)


def unpacked_model(path: Path) -> AbstractContextManager[Unpacked]:
    """Unpack a model's files from an archive; errors as in ``unpacked``."""
    return unpacked(path, model_files(), lambda folder: find_format(folder) is not None)


@contextlib.contextmanager
def unpacked(path: Path, wanted: Sequence[str], is_model: Callable[[Path], bool]) -> Iterator[Unpacked]:
    """Unpack an archive's ``wanted`` files (patterns) for the block, and yield the directory of its model."""
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
    try:
        return tarfile.is_tarfile(path)
    except (*_DAMAGE, OSError):
        return False


def _unpack_zip(path: Path, folder: Path, wanted: Sequence[str]) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if _is_wanted(member.filename, wanted)]
        _check_room(path, folder, sum(member.file_size for member in members))
        archive.extractall(folder, members)
        return archive.namelist()


def _unpack_tar(path: Path, folder: Path, wanted: Sequence[str]) -> list[str]:
    names: list[str] = []
    with tarfile.open(path) as archive:
        for member in archive:
            names.append(member.name)
            if member.isreg() and _is_wanted(member.name, wanted):  # no links or devices
                _check_room(path, folder, member.size)
                archive.extract(member, folder, filter="data")
        while archive.fileobj is not None and archive.fileobj.read(_BLOCK):  # gzip's checksum is at the end
            pass
    return names


def _check_room(path: Path, folder: Path, n_bytes: int) -> None:
    room = shutil.disk_usage(folder).free
    if n_bytes > room:
        raise OutputError(
            f"{path} unpacks to {n_bytes:,} bytes or more, but the directory for temporary files has room for "
            f"{room:,}: set TMPDIR to another one."
        )


def _is_wanted(name: str, wanted: Sequence[str]) -> bool:
    path = PurePosixPath(name)
    is_hidden = "/." in f"/{path}" or "__MACOSX" in path.parts
    return not is_hidden and any(fnmatch(path.name, pattern) for pattern in wanted)


def _root(path: Path, folder: Path, is_model: Callable[[Path], bool]) -> Path:
    """Find the directory that holds a model, or else the first one with more than a single directory in it."""
    directories = [folder, *filter(Path.is_dir, folder.rglob("*"))]
    models = list(filter(is_model, directories))
    # A directory inside a model is part of it, such as the variables of a TF-Hub module.
    outer = [model for model in models if not set(model.parents).intersection(models)]
    if len(outer) > 1:
        names = ", ".join(sorted(str(model.relative_to(folder)) for model in outer))
        raise FormatError(f"{path} holds {len(outer):,} models, in {names}. Unpack it, and pass the directory of one.")
    if outer:
        return outer[0]
    while True:
        content = list(folder.iterdir())
        if len(content) != 1 or not content[0].is_dir():
            return folder
        folder = content[0]


FORMAT = Archive()
