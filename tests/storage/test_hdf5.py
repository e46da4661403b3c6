"""HDF5 files are read as h5py reads them, and a heap that would take all memory is refused."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from elmokit import open_model, save_model
from elmokit.errors import FormatError
from elmokit.storage.hdf5 import _WithoutRings, open_hdf5
from tests.conftest import random_model


def let_free_blocks_be_a_ring(path: Path, start: int = 0) -> None:
    """Let the first free block of the first heap be followed by itself."""
    content = bytearray(path.read_bytes())
    at = content.index(b"HEAP\0\0\0\0")
    _, block, names = struct.unpack_from("<QQQ", content, at + 8)
    struct.pack_into("<Q", content, start + names + block, block)
    path.write_bytes(content)


def read_in_parts(path: Path, n_bytes: int) -> None:
    with _WithoutRings(path) as raw:
        while raw.tell() < path.stat().st_size:
            raw.readinto(bytearray(n_bytes))


@pytest.mark.parametrize("n_bytes", [1 << 16, 7], ids=["at once", "in parts"])
@pytest.mark.parametrize("n_before", [0, 512], ids=["", "after other content"])
def test_a_ring_of_free_blocks_is_refused(tmp_path: Path, n_bytes: int, n_before: int) -> None:
    path = tmp_path / "weights.hdf5"
    with h5py.File(path, "w", userblock_size=n_before) as file:
        file["embedding"] = np.zeros(3)
    read_in_parts(path, n_bytes)
    let_free_blocks_be_a_ring(path, n_before)
    with pytest.raises(OSError, match=f"at byte {680 + n_before:,} are a ring"):
        read_in_parts(path, n_bytes)


def test_a_model_with_such_a_ring_is_refused_as_damaged(tmp_path: Path) -> None:
    save_model(random_model(), tmp_path / "weights.hdf5")
    let_free_blocks_be_a_ring(tmp_path / "weights.hdf5")
    with pytest.raises(FormatError, match=r"weights\.hdf5 is not a readable HDF5 file .*are a ring"):
        open_model(tmp_path)


@pytest.mark.parametrize("has_pread", [True, False])
@pytest.mark.parametrize("settings", [{}, {"chunks": (100, 10), "compression": "gzip"}], ids=["contiguous", "chunks"])
def test_numbers_are_those_that_h5py_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], has_pread: bool
) -> None:
    if not has_pread:
        monkeypatch.delattr(os, "pread", raising=False)
    numbers = np.random.default_rng(0).normal(size=(5000, 40))
    with h5py.File(tmp_path / "numbers.hdf5", "w") as file:
        file.create_dataset("one/two", data=numbers, **settings)
    with open_hdf5(tmp_path / "numbers.hdf5") as file:
        np.testing.assert_array_equal(file["one/two"], numbers)


def read_two_bytes_of_three(descriptor: int, n_bytes: int, first: int, pread: Any = os.pread) -> bytes:
    """Read as a system does that may return fewer bytes than it is asked for."""
    content: bytes = pread(descriptor, max(1, n_bytes * 2 // 3), first)
    return content


def test_what_the_system_returns_in_parts_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(0).random((300, 300))
    with h5py.File(tmp_path / "numbers.hdf5", "w") as file:
        file["numbers"] = numbers
    monkeypatch.setattr(os, "pread", read_two_bytes_of_three)
    with open_hdf5(tmp_path / "numbers.hdf5") as file:
        np.testing.assert_array_equal(file["numbers"][...], numbers)


def test_a_block_that_a_disk_cannot_read_is_an_error_and_no_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(random_model(), tmp_path / "weights.hdf5")
    bad = (tmp_path / "weights.hdf5").stat().st_size // 2
    pread = os.pread

    def read(descriptor: int, n_bytes: int, first: int) -> bytes:
        if first <= bad < first + n_bytes:
            if first == bad:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            n_bytes = bad - first
        return pread(descriptor, n_bytes, first)

    monkeypatch.setattr(os, "pread", read)
    with pytest.raises(FormatError, match="Input/output error"):
        dict(open_model(tmp_path / "weights.hdf5").arrays)


def test_processes_that_fork_read_the_same_file_without_disturbing_each_other(tmp_path: Path) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("no fork on this system")
    numbers = np.random.default_rng(0).normal(size=(400, 5000))
    with h5py.File(tmp_path / "numbers.hdf5", "w") as file:
        file["numbers"] = numbers
    with open_hdf5(tmp_path / "numbers.hdf5") as file:
        child = os.fork()
        is_same = all(np.array_equal(file["numbers"][row], numbers[row]) for row in range(len(numbers)))
        if not child:
            os._exit(0 if is_same else 1)
    assert is_same
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are not listed on this system")
def test_the_file_is_closed_with_the_last_reader(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "numbers.hdf5", "w") as file:
        file["numbers"] = np.zeros(3)
    before = len(list(Path("/proc/self/fd").iterdir()))
    file = open_hdf5(tmp_path / "numbers.hdf5")
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 1
    del file
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_is_no_file_is_named_as_the_system_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_hdf5(tmp_path / "missing.hdf5")
    with pytest.raises(OSError, match=r"Is a directory|Permission denied"):
        open_hdf5(tmp_path)
    (tmp_path / "empty.hdf5").touch()
    with pytest.raises(OSError, match="signature"):
        open_hdf5(tmp_path / "empty.hdf5")
