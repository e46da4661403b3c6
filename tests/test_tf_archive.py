from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from elmokit.errors import FormatError, OutputError
from elmokit.weights.open import open_model
from elmokit.weights.tf_archive import is_archive, unpacked

FILES = {"variables/variables.index": b"index", "variables/variables.data-00000-of-00001": b"data" * 1000}


def member(name: str, size: int, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info


def archive_of(path: Path, files: dict[str, bytes], *more: tarfile.TarInfo, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            archive.addfile(member(name, len(data)), io.BytesIO(data))
        for info in more:
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    return path


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2"])
def test_an_archive_unpacks_and_vanishes(tmp_path: Path, mode: str) -> None:
    path = archive_of(tmp_path / "elmo.tar", FILES | {"assets/readme.txt": b"no part of it"}, mode=mode)
    assert is_archive(path) == (mode != "w:bz2")  # nobody publishes those
    with unpacked(path) as folder:
        found = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        assert found == FILES
    assert not folder.exists()


@pytest.mark.parametrize("name", ["../e.index", "/e.index", "a/../../e.index", "C:/e.index", "..\\e.index"])
def test_a_path_outside_the_archive_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "inner").mkdir()
    path = archive_of(tmp_path / "inner" / "elmo.tar.gz", FILES | {name: b"evil"})
    with pytest.raises(FormatError, match="outside itself"):
        open_model(path)
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["elmo.tar.gz"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_never_made(tmp_path: Path, kind: bytes) -> None:
    path = archive_of(tmp_path / "elmo.tar.gz", FILES, member("options.json", 0, kind, "/etc/passwd"))
    with unpacked(path) as folder:
        assert not (folder / "options.json").exists()
        assert (folder / "variables" / "variables.index").exists()


def test_a_declared_terabyte_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    head = member("variables/variables.index", 1 << 40).tobuf(tarfile.GNU_FORMAT)
    (tmp_path / "elmo.tar.gz").write_bytes(gzip.compress(head + bytes(1 << 16)))
    with pytest.raises((FormatError, OutputError), match="more than 16 GB"):
        open_model(tmp_path / "elmo.tar.gz")


@pytest.mark.parametrize("size", [600, 900])
def test_an_archive_cut_short_says_so(tmp_path: Path, size: int) -> None:
    path = archive_of(tmp_path / "elmo.tar", FILES, mode="w")
    path.write_bytes(path.read_bytes()[: 2 * size])
    with pytest.raises(FormatError):
        open_model(path)


def test_a_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = archive_of(tmp_path / "elmo.tar.gz", FILES, member("variables/variables.index", 3))
    with pytest.raises(FormatError, match="damaged archive"):
        open_model(path)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x1f\x8b", gzip.compress(b"no archive" * 100), b"\x89HDF\r\n\x1a\n" + bytes(1000), bytes(257) + b"ustar"],
)
def test_what_is_no_archive_is_not_taken_for_one(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    assert not is_archive(tmp_path / "file")


def test_an_archive_of_another_family_is_left_to_others(tmp_path: Path) -> None:
    assert not is_archive(archive_of(tmp_path / "elmo.tar.gz", {"options.json": b"{}", "weights.hdf5": b""}))
    assert not is_archive(tmp_path)
