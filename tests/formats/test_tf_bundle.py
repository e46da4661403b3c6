from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit.errors import FormatError, ModelNotFoundError
from elmokit.formats.tf_bundle import TensorBundle, is_index
from tests.helpers.memory import less_memory_than
from tests.helpers.tf_bundle_writer import (
    assembled,
    block,
    header,
    masked,
    sealed,
    table_file,
    varint,
    write_bundle,
)

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


def test_more_names_than_a_restart_interval_are_read(tmp_path: Path) -> None:
    tensors = {f"scope/layer_{index}/weight": np.full(2, index, dtype=np.float32) for index in range(100)}
    write_bundle(tmp_path / "X", tensors)
    bundle = TensorBundle(tmp_path / "X")
    assert all(bundle.read(name)[0] == tensors[name][0] for name in tensors)


def test_a_tensor_stays_mapped_until_it_is_requested(prefix: Path) -> None:
    tensor = TensorBundle(prefix).read("a/kernel")
    assert isinstance(tensor, np.memmap)
    assert not tensor.flags.writeable


def test_a_bundle_that_tensorflow_wrote_is_written_again_byte_for_byte(bilm_tf_run: Path, tmp_path: Path) -> None:
    golden = bilm_tf_run / "model.ckpt-207"
    bundle = TensorBundle(golden)
    write_bundle(tmp_path / "X", {name: bundle.read(name) for name in bundle.entries})
    assert data_of(tmp_path / "X").read_bytes() == data_of(golden).read_bytes()
    assert index_of(tmp_path / "X").read_bytes() == index_of(golden).read_bytes()


def test_a_damaged_tensor_is_refused_and_the_others_are_read(prefix: Path) -> None:
    data = bytearray(data_of(prefix).read_bytes())
    data[5] ^= 1
    data_of(prefix).write_bytes(data)
    bundle = TensorBundle(prefix)
    with pytest.raises(FormatError, match=r"checksum of variable a/kernel is wrong"):
        bundle.read("a/kernel")
    assert np.array_equal(bundle.read("b"), TENSORS["b"])


def test_text_and_slices_are_refused_only_when_requested(tmp_path: Path) -> None:
    lies = {"counts": {"dtype": 7}, "half": {"sliced": True}}
    write_bundle(tmp_path / "X", TENSORS, lies=lies)
    bundle = TensorBundle(tmp_path / "X")
    with pytest.raises(FormatError, match="type number 7"):
        bundle.read("counts")
    with pytest.raises(FormatError, match="in slices"):
        bundle.read("half")
    assert np.array_equal(bundle.read("b"), TENSORS["b"])


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ({"shape": (1 << 38,)}, "do not agree"),
        ({"shape": (1 << 38,), "size": 1 << 40}, "which has"),
        ({"shape": (3, (1 << 64) - 1)}, "no size"),
        ({"shape": (3, 6)}, "do not agree"),
        ({"shape": (1,) * 1000 + (3, 5)}, "1002 dimensions"),
        ({"shape": (0, 1 << 62, 1 << 62), "size": 0, "crc": masked(0)}, "said to have shape"),
        ({"offset": 1 << 50}, "which has"),
        ({"offset": (1 << 64) - 60}, "which has"),
        ({"size": 61}, "do not agree"),
        ({"shard": 1}, "data file 1 of 1"),
        ({"shard": (1 << 64) - 1}, "of 1"),
    ],
)
def test_forged_sizes_give_one_error_and_allocate_nothing(tmp_path: Path, lie: dict[str, Any], message: str) -> None:
    write_bundle(tmp_path / "X", TENSORS, lies={"a/kernel": lie})
    with less_memory_than(1 << 20), pytest.raises(FormatError, match=message):
        TensorBundle(tmp_path / "X").read("a/kernel")


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b"", "does not end as one"),
    "cut short": (cut, "does not end as one"),
    "another kind of file": (lambda _: b"PK\x03\x04" + bytes(1000), "does not end as one"),
    "a flipped bit": (flipped, "a checksum is wrong"),
    "only a footer": (lambda data: data[-48:], "beyond the end"),
    "a footer of endless numbers": (lambda data: data[:-48] + b"\xff" * 40 + data[-8:], "a number does not end"),
    "compressed blocks": (lambda _: table_file([(b"", header())], compression=1), "compressed"),
    "no header": (lambda _: table_file([(b"a", b"")]), "no header"),
    "nothing at all": (lambda _: assembled([], []), "no header"),
    "a big-endian header": (lambda _: table_file([(b"", header(endianness=1))]), "big-endian"),
    "a header of a later version": (lambda _: table_file([(b"", header(needs_version=2))]), "newer version"),
    "names out of order": (lambda _: table_file([(b"", header()), (b"b", b""), (b"a", b"")]), "not in order"),
    "a name twice": (lambda _: table_file([(b"", header()), (b"b", b""), (b"b", b"")], 2), "not in order"),
    "an endless number in a block": (lambda _: assembled([sealed(b"\xff" * 30 + bytes(4))], [b"a"]), "does not end"),
    "a value longer than its block": (
        lambda _: assembled([sealed(b"\x00\x01" + varint(1 << 40) + b"a" + bytes(4))], [b"a"]),
        "ends too early",
    ),
    "a name longer than any": (
        lambda _: assembled([sealed(b"\x00" + varint(1 << 40) + b"\x00a" + bytes(4))], [b"a"]),
        "impossible length",
    ),
    "a name that shares what is not there": (
        lambda _: assembled([sealed(b"\x09\x01\x00a" + bytes(4))], [b"a"]),
        "impossible length",
    ),
    "more restarts than bytes": (lambda _: assembled([sealed(b"\xff" * 4)], [b"a"]), "shorter than it says"),
    "a block that points beyond the end": (
        lambda _: one_handle(varint(1 << 40) + varint(1 << 40)),
        "beyond the end",
    ),
    "a block that is named again and again": (
        lambda _: one_handle(*[varint(0) + varint(len(block([(b"", header())])) - 5)] * 2),
        "not in order",
    ),
    "an entry of an unknown kind of field": (lambda _: table_file([(b"", header()), (b"a", b"\x0b")]), "no known kind"),
    "an entry that ends too early": (lambda _: table_file([(b"", header()), (b"a", b"\x12\x7f")]), "ends too early"),
    "too large": (lambda data: bytes((16 << 20) + 1) + data, "larger than 16,777,216 bytes"),
}


def one_handle(*handles: bytes) -> bytes:
    """A table of one block whose index block says what it likes."""
    first = block([(b"", header())])
    index = block([(bytes([97 + number]), handle) for number, handle in enumerate(handles)])
    empty = block([])
    footer = b"".join(map(varint, (len(first + index), len(empty) - 5, len(first), len(index) - 5)))
    return first + index + empty + footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_index_gives_one_error(prefix: Path, kind: str) -> None:
    change, message = HOSTILE[kind]
    index_of(prefix).write_bytes(change(index_of(prefix).read_bytes()))
    with pytest.raises(FormatError, match=message):
        TensorBundle(prefix)


def test_any_flipped_byte_and_any_truncation_of_an_index_is_detected(prefix: Path) -> None:
    whole = index_of(prefix).read_bytes()
    for place in [*range(0, len(whole) - 48, 3), len(whole) - 47, len(whole) - 1]:
        index_of(prefix).write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with pytest.raises(FormatError):
            TensorBundle(prefix)
    for size in range(0, len(whole), 23):
        index_of(prefix).write_bytes(whole[:size])
        with pytest.raises(FormatError):
            TensorBundle(prefix)


def test_a_truncated_data_file_is_detected_at_once(prefix: Path) -> None:
    data_of(prefix).write_bytes(data_of(prefix).read_bytes()[:-1])
    with pytest.raises(FormatError, match="cut short"):
        TensorBundle(prefix)


def test_a_missing_file_is_named(prefix: Path) -> None:
    data_of(prefix).unlink()
    with pytest.raises(ModelNotFoundError, match="data-00000-of-00001 is missing"):
        TensorBundle(prefix)
    with pytest.raises(ModelNotFoundError, match=r"Y\.index"):
        TensorBundle(prefix.with_name("Y"))


def test_an_index_is_recognized_by_its_end(prefix: Path) -> None:
    assert is_index(index_of(prefix))
    assert not is_index(data_of(prefix))
    assert not is_index(prefix.parent)
    shutil.copy(index_of(prefix), prefix.with_name("renamed"))
    assert is_index(prefix.with_name("renamed"))
