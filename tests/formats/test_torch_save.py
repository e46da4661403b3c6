"""Files of torch.save: tensors are read, nothing else is, and nothing that a file asks for is run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from elmokit.errors import FormatError
from elmokit.formats.torch_save import read_matrix, read_state_dict


def saved(content: Any, path: Path, zipped: bool = True) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


@pytest.mark.parametrize("zipped", [True, False])
def test_a_state_dict_is_read_with_its_tied_weights(zipped: bool, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    module[2].weight = nn.Parameter(module[0].weight.detach().t())
    expected = module.state_dict() | {"half": torch.ones(3).half(), "wide": torch.ones(3).bfloat16()}
    found = read_state_dict(saved(expected, tmp_path / "module.pkl", zipped))
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor)


MATRICES = [
    torch.eye(3).t() * 2,
    torch.eye(3, dtype=torch.float64),
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.arange(6, dtype=np.float64).reshape(2, 3).T,
    np.arange(6).reshape(3, 2),
    nn.Parameter(torch.ones(2, 2)),
]


@pytest.mark.parametrize("matrix", MATRICES, ids=range(len(MATRICES)))
def test_a_matrix_is_read_as_float32(matrix: Any, tmp_path: Path) -> None:
    path = saved(matrix, tmp_path / "matrix.pth")
    expected = torch.as_tensor(matrix).detach().float().numpy()
    np.testing.assert_array_equal(read_matrix(path), expected, strict=True)


def test_an_array_that_numpy_1_pickled_is_read(tmp_path: Path) -> None:
    path = saved(np.eye(3), tmp_path / "matrix.pth", zipped=False)
    data = path.read_bytes()
    assert b"numpy._core" in data
    path.write_bytes(data.replace(b"numpy._core", b"numpy.core"))
    np.testing.assert_array_equal(read_matrix(path), np.eye(3, dtype=np.float32))


class Bomb:
    """What a forged pickle would run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_is_not_run(zipped: bool, tmp_path: Path) -> None:
    path = saved({"a": Bomb(tmp_path / "made")}, tmp_path / "x", zipped)
    for read in (read_state_dict, read_matrix):
        with pytest.raises(FormatError, match=r"x is not .*needs (posix|nt)\.mkdir, which is not run"):
            read(path)
    assert not (tmp_path / "made").exists()


REFUSED: list[tuple[Any, str]] = [
    ([torch.ones(1)], "a dict of tensors"),
    ({"a": 1}, "found 1"),
    ({"a": torch.ones(2, dtype=torch.complex64)}, "plain tensors"),
    (nn.Linear(2, 2), r"torch\.nn\.modules\.linear\.Linear, which is not run"),
    ("text", "file is not"),
]


@pytest.mark.parametrize(("content", "name"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_no_state_dict_and_no_matrix_is_refused(content: Any, name: str, tmp_path: Path) -> None:
    path = saved(content, tmp_path / "file")
    with pytest.raises(FormatError, match=name):
        read_state_dict(path)
    if not isinstance(content, list):
        with pytest.raises(FormatError, match="file is not a readable matrix"):
            read_matrix(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_is_cut_is_one_clear_error(zipped: bool, tmp_path: Path) -> None:
    data = saved({"a": torch.arange(30.0), "b": torch.ones(2)}, tmp_path / "x", zipped).read_bytes()
    (tmp_path / "cut").write_bytes(data[: len(data) // 2])
    with pytest.raises(FormatError, match="cut is not a readable PyTorch state dict"):
        read_state_dict(tmp_path / "cut")
