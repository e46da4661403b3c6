"""Safetensors files as NumPy arrays: the bytes of the safetensors package, and damaged files refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from elmokit.errors import FormatError, ModelNotFoundError
from elmokit.storage.tensor_file import TensorFile, write_tensor_file

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16)
DTYPES += (torch.int8, torch.uint8, torch.bool)


def tensors() -> dict[str, torch.Tensor]:
    random = torch.randn(7, 3, generator=torch.manual_seed(0)) * 40
    return {
        **{str(dtype): random.to(dtype) for dtype in DTYPES},
        "empty": torch.empty(0, 4),
        "one number": torch.tensor(2.5),
        "größe": torch.ones(1),
    }


def test_tensors_of_every_dtype_are_read_as_the_package_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file(tensors(), path, metadata={"format": "pt"})
    file = TensorFile(path)
    expected = load_file(path)
    assert set(file.shapes) == set(expected)
    for name, tensor in expected.items():
        array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        np.testing.assert_array_equal(file.read(name), array, name, strict=True)
        assert file.read(name).flags.aligned


def test_files_have_the_bytes_of_the_package(tmp_path: Path) -> None:
    arrays = {}
    for name, tensor in tensors().items():
        bits = tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype == torch.bfloat16 else tensor.numpy()
        arrays[name] = bits
    write_tensor_file(arrays, tmp_path / "ours")
    save_file(tensors(), tmp_path / "theirs")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    write_tensor_file({}, tmp_path / "ours")
    save_file({}, tmp_path / "theirs")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert TensorFile(tmp_path / "ours").shapes == {}


def test_arrays_of_any_order_are_written(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    write_tensor_file({"a": array.T, "b": array[:, ::2]}, tmp_path / "x")
    np.testing.assert_array_equal(TensorFile(tmp_path / "x").read("a"), array.T)
    np.testing.assert_array_equal(TensorFile(tmp_path / "x").read("b"), array[:, ::2])


def test_each_reading_is_a_copy(tmp_path: Path) -> None:
    write_tensor_file({"a": np.ones(3, np.float32)}, tmp_path / "x")
    file = TensorFile(tmp_path / "x")
    file.read("a")[0] = 5
    assert file.read("a").tolist() == [1, 1, 1]


def test_a_file_that_is_cut_short_while_it_is_open_is_reported(tmp_path: Path) -> None:
    write_tensor_file({"a": np.ones(3, np.float32), "b": np.ones(2, np.float32)}, tmp_path / "x")
    file = TensorFile(tmp_path / "x")
    with (tmp_path / "x").open("r+b") as opened:
        opened.truncate((tmp_path / "x").stat().st_size - 4)
    assert file.read("a").tolist() == [1, 1, 1]
    with pytest.raises(FormatError, match="x: b "):
        file.read("b")


def test_numbers_at_any_byte_are_read(tmp_path: Path) -> None:
    header = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} '
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + np.float32([1, 2]).tobytes())
    assert len(header) % 4
    assert TensorFile(tmp_path / "x").read("a").flags.aligned
    assert TensorFile(tmp_path / "x").read("a").tolist() == [1, 2]


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"\xff{}",
        b"[" * 100_000,
        {"a": 1},
        {"a": entry(dtype="F8_E4M3")},
        {"a": entry(dtype=["F32"])},
        {"a": entry(shape=[3])},
        {"a": entry(shape=[-2])},
        {"a": entry(shape=[2.0])},
        {"a": entry(shape=None)},
        {"a": entry(shape=[10**12, 10**12], data_offsets=[0, 4 * 10**24])},
        {"a": entry(data_offsets=[4, 12])},
        {"a": entry(data_offsets=[8, 0])},
        {"a": entry(data_offsets=[0])},
        {"a": entry(), "b": entry()},
        {"a": entry(data_offsets=[0, 4], shape=[1])},
        {"a": {"dtype": "F32", "shape": [2]}},
    ],
    ids=str,
)
def test_damaged_headers_are_refused(header: Any, tmp_path: Path) -> None:
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    (tmp_path / "x").write_bytes(len(content).to_bytes(8, "little") + content + bytes(8))
    with pytest.raises(FormatError, match="x is not a readable safetensors file"):
        TensorFile(tmp_path / "x")


def test_truncated_and_missing_files_are_refused(tmp_path: Path) -> None:
    write_tensor_file({"a": np.ones(3, np.float32)}, tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    for content in (*(data[:end] for end in range(len(data))), data + b"\0", (10**18).to_bytes(8, "little") + data):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(FormatError, match="x is not a readable safetensors file"):
            TensorFile(tmp_path / "x")
    with pytest.raises(ModelNotFoundError, match="y is missing"):
        TensorFile(tmp_path / "y")
    with pytest.raises(FormatError, match="not a readable safetensors file"):
        TensorFile(tmp_path)
