"""The bytes that we write are what h5py reads, and what it would have written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmokit.embedding.outputs.hdf5_index import (
    attribute_bytes,
    dataset_headers,
    group_bytes,
    header_bytes,
    name_bytes,
    number_name_bytes,
    numbers_by_name,
    write_group,
    write_text_attribute,
    write_text_dataset,
)
from elmokit.embedding.outputs.writer import DATA_START
from elmokit.errors import OutputError

DIM = 3


def written(
    path: Path, names: Sequence[bytes], lengths: Sequence[int], n_layers: int | None, dtype: str
) -> list[np.ndarray]:
    """A file of datasets under the names, and what they hold."""
    random = np.random.default_rng(0)
    shapes = [(length, DIM) if n_layers is None else (n_layers, length, DIM) for length in lengths]
    arrays = [random.standard_normal(shape).astype(dtype) for shape in shapes]
    with path.open("w+b") as file:
        file.seek(DATA_START)
        for array in arrays:
            file.write(array.tobytes())
        position = -(-file.tell() // 8) * 8
        file.seek(position)
        headers, end = dataset_headers(DATA_START, np.array(lengths, dtype=np.int64), n_layers, DIM, dtype)
        file.write(headers)
        assert end == DATA_START + sum(array.nbytes for array in arrays)
        entries = sorted((name, position + row * header_bytes(n_layers)) for row, name in enumerate(names))
        sizes = sum(map(name_bytes, names))
        write_group(file, position + len(headers), entries, sizes)
        assert path.stat().st_size == position + len(headers) + group_bytes(len(names), sizes)
    return arrays


@pytest.mark.parametrize("n", [0, 1, 8, 9, 256, 257, 1000, 8200])
def test_groups_of_any_size_are_complete_and_can_grow(tmp_path: Path, n: int) -> None:
    arrays = written(tmp_path / "out.hdf5", [b"%d" % number for number in range(n)], [1] * n, 2, "float32")
    with h5py.File(tmp_path / "out.hdf5", "r+") as file:
        assert len(file) == n
        assert list(file) == sorted(map(str, range(n)))
        for number in {0, n // 2, n - 1} - {-1} if n else ():
            np.testing.assert_array_equal(file[str(number)][...], arrays[number])
        for number in range(0, n, 3):
            del file[str(number)]
        for number in range(100):
            file[f"later {number}"] = number
    with h5py.File(tmp_path / "out.hdf5") as file:
        assert len(file) == 100 + n - len(range(0, n, 3))
        assert file["later 99"][()] == 99


@pytest.mark.parametrize("n_bytes", [0, 1, 4000, 4048, 4064, 4080, 100_000])
def test_long_texts_are_strings_as_h5py_writes_them(tmp_path: Path, n_bytes: int) -> None:
    with (tmp_path / "out.hdf5").open("w+b") as file:
        header, end = write_text_dataset(file, DATA_START, [b"x" * (n_bytes // 2), b"y" * (n_bytes - n_bytes // 2)])
        write_group(file, end, [(b"text", header)], name_bytes(b"text"))
    with h5py.File(tmp_path / "out.hdf5") as ours, h5py.File(tmp_path / "theirs.hdf5", "w") as theirs:
        text = "x" * (n_bytes // 2) + "y" * (n_bytes - n_bytes // 2)
        theirs.create_dataset("text", (1,), dtype=h5py.string_dtype("utf-8"), data=[text])
        assert ours["text"].shape == (1,)
        assert ours["text"].asstr()[0] == text
        assert ours["text"].id.get_type().equal(theirs["text"].id.get_type())


@pytest.mark.parametrize("text", ["", "{}", "é" * 3000])
def test_a_text_attribute_is_a_string_as_h5py_writes_it(tmp_path: Path, text: str) -> None:
    content = text.encode("utf-8")
    with (tmp_path / "ours.hdf5").open("w+b") as file:
        attribute, end = write_text_attribute(file, DATA_START, b"elmokit", content)
        write_group(file, end, [], 0, attribute)
        assert file.seek(0, 2) == DATA_START + attribute_bytes(b"elmokit", len(content)) + group_bytes(0, 0)
    with h5py.File(tmp_path / "ours.hdf5", "r+") as ours, h5py.File(tmp_path / "theirs.hdf5", "w") as theirs:
        theirs.attrs["elmokit"] = text
        assert dict(ours.attrs) == {"elmokit": text}
        one, two = (file.attrs.get_id("elmokit") for file in (ours, theirs))
        assert one.get_type().equal(two.get_type())
        assert (one.shape, one.get_space().get_simple_extent_type()) == ((), h5py.h5s.SCALAR)
        ours.attrs["later"] = 1
        ours["0"] = 2
    with h5py.File(tmp_path / "ours.hdf5") as file:
        assert dict(file.attrs) == {"elmokit": text, "later": 1}


def test_a_text_too_long_for_hdf5_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elmokit.embedding.outputs.hdf5_index.MAX_TEXT_BYTES", 10)
    with (tmp_path / "out.hdf5").open("w+b") as file, pytest.raises(OutputError, match="--forget-sentences"):
        write_text_dataset(file, DATA_START, [b"0123456789", b"0"])


@pytest.mark.parametrize("n", [0, 1, 2, 9, 10, 11, 99, 100, 101, 1234])
def test_numbers_come_in_the_order_of_their_names(n: int) -> None:
    assert list(numbers_by_name(n)) == sorted(range(n), key=str)
    assert number_name_bytes(n) == sum(name_bytes(b"%d" % number) for number in range(n))


def test_names_of_eight_digits_take_more() -> None:
    assert number_name_bytes(10_000_001) - number_name_bytes(10_000_000) == name_bytes(b"10000000") == 16
