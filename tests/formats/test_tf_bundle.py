from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit.errors import FormatError, ModelError, ModelNotFoundError
from elmokit.formats import tf_bundle
from elmokit.formats.tf_bundle import TensorBundle
from tests.helpers.tf_bundle_writer import header, table_file, write_bundle

RANDOM = np.random.default_rng(0)
TENSORS: dict[str, np.ndarray[Any, Any]] = {
    "a/kernel": RANDOM.normal(size=(3, 5)).astype(np.float32),
    "a/kernel/slot": RANDOM.normal(size=(3, 5)).astype(np.float32),
    "b": RANDOM.normal(size=(2, 3, 4)),
    "counts": np.arange(7),
    "half": np.ones(3, dtype=np.float16),
    "none": np.zeros((0, 4), dtype=np.float32),
    "step": np.float32(207) * np.ones((), dtype=np.float32),
}


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    write_bundle(tmp_path / "X", TENSORS)
    return tmp_path / "X"


def index_of(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.index")


def data_of(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.data-00000-of-00001")


@pytest.mark.parametrize("entries_per_block", [1, 3, 10_000])
@pytest.mark.parametrize("n_shards", [1, 3])
def test_a_bundle_gives_back_every_tensor(tmp_path: Path, n_shards: int, entries_per_block: int) -> None:
    write_bundle(tmp_path / "X", TENSORS, n_shards, entries_per_block)
    bundle = TensorBundle(tmp_path / "X")
    assert list(bundle.entries) == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        read = bundle.read(name)
        assert read.dtype == tensor.dtype
        assert bundle.shapes[name] == read.shape == tensor.shape
        assert np.array_equal(read, tensor)


def test_a_bundle_that_tensorflow_wrote_is_written_again_byte_for_byte(bilm_tf_run: Path, tmp_path: Path) -> None:
    golden = bilm_tf_run / "model.ckpt-207"
    bundle = TensorBundle(golden)
    write_bundle(tmp_path / "X", {name: bundle.read(name) for name in bundle.entries})
    assert data_of(tmp_path / "X").read_bytes() == data_of(golden).read_bytes()
    assert index_of(tmp_path / "X").read_bytes() == index_of(golden).read_bytes()


def test_a_tensor_is_refused_only_when_it_is_requested(tmp_path: Path) -> None:
    write_bundle(tmp_path / "X", TENSORS, lies={"counts": {"dtype": 7}, "half": {"sliced": True}})
    data = bytearray(data_of(tmp_path / "X").read_bytes())
    data[5] ^= 1
    data_of(tmp_path / "X").write_bytes(data)
    bundle = TensorBundle(tmp_path / "X")
    for name in ("a/kernel", "counts", "half"):
        with pytest.raises(FormatError, match=f"variable {name} "):
            bundle.read(name)
    assert np.array_equal(bundle.read("b"), TENSORS["b"])


@pytest.mark.parametrize(
    "lie", [{"shape": (3, (1 << 64) - 1)}, {"shape": (3, 6)}, {"offset": 1 << 50}, {"size": 61}, {"shard": 1}], ids=str
)
def test_sizes_that_are_not_those_of_the_data_are_refused(tmp_path: Path, lie: dict[str, Any]) -> None:
    write_bundle(tmp_path / "X", TENSORS, lies={"a/kernel": lie})
    with pytest.raises(ModelError, match=r"a/kernel|data-\d+-of"):
        TensorBundle(tmp_path / "X").read("a/kernel")


REFUSED: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda data: data[: len(data) // 2],
    "another kind of file": lambda _: b"PK\x03\x04" + bytes(1000),
    "a flipped bit": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "compressed blocks": lambda _: table_file([(b"", header())], compression=1),
    "a big-endian header": lambda _: table_file([(b"", header(endianness=1))]),
    "a header of a later version": lambda _: table_file([(b"", header(needs_version=2))]),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_index_that_tensorflow_did_not_write_is_refused(prefix: Path, kind: str) -> None:
    index_of(prefix).write_bytes(REFUSED[kind](index_of(prefix).read_bytes()))
    with pytest.raises(FormatError, match=r"X\.index"):
        TensorBundle(prefix)


def test_data_that_is_cut_short_or_missing_is_detected_at_once(prefix: Path) -> None:
    data_of(prefix).write_bytes(data_of(prefix).read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"data-00000-of-00001"):
        TensorBundle(prefix)
    data_of(prefix).unlink()
    with pytest.raises(ModelNotFoundError, match="data-00000-of-00001 is missing"):
        TensorBundle(prefix)
    with pytest.raises(ModelNotFoundError, match=r"Y\.index"):
        TensorBundle(prefix.with_name("Y"))


def test_without_the_library_checksums_are_not_verified_and_the_card_says_so(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(data_of(prefix).read_bytes())
    data[0] ^= 1
    data_of(prefix).write_bytes(data)
    with pytest.raises(FormatError, match="checksum of variable a/kernel is wrong"):
        TensorBundle(prefix).read("a/kernel")
    assert TensorBundle(prefix).card == {}
    monkeypatch.setattr(tf_bundle, "VERIFIES", False)
    assert TensorBundle(prefix).read("a/kernel").shape == (3, 5)
    assert "pip install '.[checksums]'" in TensorBundle(prefix).card["checksums"]
