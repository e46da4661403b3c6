"""HDF5 files: read by several processes, and created only where the disk has room."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmokit.errors import OutputError
from elmokit.storage.atomic import atomic_write
from elmokit.storage.hdf5_files import create_hdf5, open_hdf5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_processes_that_fork_read_the_same_file_without_disturbing_each_other(tmp_path: Path) -> None:
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


def test_a_disk_without_room_is_noticed_before_anything_is_written(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))  # a write beyond it fails as on a full disk
    try:
        with (
            pytest.raises(OutputError, match=r"numbers\.hdf5 failed"),
            atomic_write(tmp_path / "numbers.hdf5") as path,
            create_hdf5(path, 1 << 20, 1),
        ):
            raise AssertionError("created")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("answer", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS])
def test_a_file_system_that_cannot_be_asked_for_room_is_written_to(
    answer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(answer, os.strerror(answer))

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    with create_hdf5(tmp_path / "numbers.hdf5", 1 << 20, 1) as file:
        file["numbers"] = np.arange(3)
    with open_hdf5(tmp_path / "numbers.hdf5") as file:
        assert file["numbers"][()].tolist() == [0, 1, 2]
