"""A TensorFlow model inside a tar archive, unpacked to a temporary folder while it is read.

Only the files that a checkpoint or a module consists of are written, each under a checked path below that folder;
links and devices never are.
"""

from __future__ import annotations

import contextlib
import lzma
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

from elmokit.errors import FormatError, OutputError

_WANTED = re.compile(
    r"checkpoint|options\.json|vocab[^/]*\.txt|saved_model\.pb|tfhub_module\.pb|.+\.index|.+\.data-\d{5}-of-\d{5}"
)
_OTHER_MODELS = (".hdf5", ".h5", ".pkl", ".safetensors", ".pt", ".pth")
_MAX_SIZE = 16 << 30  # bytes unpacked; the original model with softmax and Adagrad sums has 4 GB
_MAX_DEPTH = 16
_CHUNK_SIZE = 1 << 20
_GZIP = b"\x1f\x8b"
_TAR_MAGIC_PLACE = 257


def is_archive(path: Path) -> bool:
    """Whether a file is a tar archive, packed with gzip or not, that holds a TensorFlow checkpoint or module."""
    try:
        with path.open("rb") as file:
            head = file.read(_TAR_MAGIC_PLACE + 5)
        if not head.startswith(_GZIP) and not head.endswith(b"ustar"):
            return False
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                if member.name.endswith(".index") and member.isreg():
                    return True
                if member.name.endswith(_OTHER_MODELS):
                    return False
    except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError):
        return False
    return False


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The archive's model in a folder that lasts as long as the block.

    Raises:
        FormatError: the archive is damaged, names paths outside itself, or unpacks to more than any ELMo has.
        OutputError: there is no room for it.
    """
    with tempfile.TemporaryDirectory(prefix="elmokit.") as name:
        folder = Path(name)
        try:
            with tarfile.open(path, "r|*") as archive:
                _unpack(archive, folder, path)
        except (EOFError, tarfile.TarError, zlib.error, lzma.LZMAError, FileExistsError, NotADirectoryError) as error:
            raise FormatError(f"{path} is a damaged archive ({error}). Download or copy it again.") from None
        except OSError as error:
            raise OutputError(f"{path} cannot be unpacked to {folder}: {error}.") from None
        yield _root(folder)


def _unpack(archive: tarfile.TarFile, folder: Path, path: Path) -> None:
    left = _MAX_SIZE
    for member in archive:
        inside = PurePosixPath(member.name)
        if inside.is_absolute() or ".." in inside.parts or PureWindowsPath(member.name).drive or "\\" in member.name:
            raise FormatError(f"{path} names a path outside itself, {member.name!r}: nothing of it is read.")
        if not member.isreg() or not _WANTED.fullmatch(inside.name) or len(inside.parts) > _MAX_DEPTH:
            continue
        left -= member.size
        if left < 0:
            raise FormatError(f"{path} unpacks to more than {_MAX_SIZE >> 30} GB, more than any ELMo has.")
        if member.size > shutil.disk_usage(folder).free:
            raise OutputError(
                f"{path}: unpacking {member.name} needs {member.size} bytes in {folder.parent}, which has no such "
                "room. Make room, set TMPDIR to another place, or unpack the archive yourself and open the folder."
            )
        source = archive.extractfile(member)
        assert source is not None
        target = folder / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            shutil.copyfileobj(source, file, _CHUNK_SIZE)


def _root(folder: Path) -> Path:
    """The folder below which the archive's files stand."""
    while len(inner := list(folder.iterdir())) == 1 and inner[0].is_dir() and inner[0].name != "variables":
        folder = inner[0]
    return folder
