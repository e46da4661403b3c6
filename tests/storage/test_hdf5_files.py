"""HDF5 files can be read by several processes."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmokit.storage.hdf5_files import open_hdf5


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
