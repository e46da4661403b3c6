"""Files of torch.save, read without PyTorch: equal to what PyTorch reads, and nothing that they ask for is run."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from elmokit.errors import FormatError
from elmokit.formats.pickles import read_matrix, read_state_dict

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16)
DTYPES += (torch.int8, torch.uint8, torch.bool)


def tensors() -> dict[str, Tensor]:
    """Tensors of every kind that a state dict may hold."""
    random = torch.randn(6, 5, 4, generator=torch.manual_seed(0))
    kinds = {
        "plain": random,
        "transposed": random.transpose(0, 2),
        "slice": random[2:4, 1:],
        "every second": random[::2, :, 1::2],
        "last number": random[5:, 4:, 3:],
        "expanded": torch.ones(3, 1).expand(3, 4),
        "one number": torch.tensor(3.5),
        "empty": torch.empty(0, 3),
        "empty view": random[6:],
        "parameter": nn.Parameter(random[0].clone()),
        "parameter of a view": nn.Parameter(random[1]),
        "with gradient": random[0].clone().requires_grad_(),
    }
    return kinds | {f"{dtype}": (random * 50).to(dtype) for dtype in DTYPES}


def saved(content: Any, path: Path, zipped: bool = True) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


@pytest.mark.parametrize("zipped", [True, False])
def test_every_kind_of_tensor_is_read_as_pytorch_reads_it(zipped: bool, tmp_path: Path) -> None:
    path = saved(tensors(), tmp_path / "tensors.pkl", zipped)
    expected = torch.load(path, weights_only=True)
    found = read_state_dict(path)
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        tensor = tensor.detach()
        array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        assert found[name].dtype == array.dtype, name
        np.testing.assert_array_equal(found[name], array, name, strict=True)
        assert found[name].flags.c_contiguous


@pytest.mark.parametrize("zipped", [True, False])
def test_the_state_dict_of_a_module_is_read_with_its_shared_storages(zipped: bool, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    module[2].weight = nn.Parameter(module[0].weight.detach().t())
    found = read_state_dict(saved(module.state_dict(), tmp_path / "module.pkl", zipped))
    assert list(found) == list(module.state_dict())
    for name, tensor in module.state_dict().items():
        np.testing.assert_array_equal(found[name], tensor.numpy(), name)


@pytest.mark.parametrize("zipped", [True, False])
def test_tied_weights_may_have_more_numbers_than_the_file(zipped: bool, tmp_path: Path) -> None:
    layer = nn.Linear(100, 100)
    found = read_state_dict(saved(nn.Sequential(layer, layer).state_dict(), tmp_path / "tied.pkl", zipped))
    for name in ("0.weight", "1.weight"):
        np.testing.assert_array_equal(found[name], layer.weight.detach().numpy())


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_of_a_gpu_are_read(zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda _: "cuda:3")
        path = saved({"a": torch.arange(5)}, tmp_path / "gpu.pkl", zipped)
    np.testing.assert_array_equal(read_state_dict(path)["a"], np.arange(5))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("zipped", [True, False])
def test_every_protocol_is_read(zipped: bool, protocol: int, tmp_path: Path) -> None:
    content = OrderedDict(a=torch.arange(5.0), b=torch.ones(2, 2))
    torch.save(content, tmp_path / "x", pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    found = read_state_dict(tmp_path / "x")
    assert {name: array.tolist() for name, array in found.items()} == {"a": [0, 1, 2, 3, 4], "b": [[1, 1], [1, 1]]}


def test_parts_are_read_by_name(tmp_path: Path) -> None:
    path = saved({"one": {"a": torch.ones(1)}, "two": OrderedDict(a=torch.zeros(2))}, tmp_path / "x")
    assert {name: array.tolist() for name, array in read_state_dict(path, ["one", "two"]).items()} == {
        "one.a": [1],
        "two.a": [0, 0],
    }


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "matrix",
    [
        torch.eye(3).t() * 2,
        torch.eye(3, dtype=torch.float64),
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.float64).reshape(2, 3).T,
        np.arange(6).reshape(3, 2),
        nn.Parameter(torch.ones(2, 2)),
    ],
    ids=lambda matrix: type(matrix).__name__,
)
def test_a_matrix_is_read_as_float32(zipped: bool, matrix: Any, tmp_path: Path) -> None:
    found = read_matrix(saved(matrix, tmp_path / "matrix.pth", zipped))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, torch.as_tensor(matrix).detach().float().numpy())


def test_a_matrix_of_another_kind_is_refused(tmp_path: Path) -> None:
    for content in ([1.0], np.array(["text"]), np.array([None]), np.ones(2, ">f4"), {"a": torch.ones(1)}):
        with pytest.raises(FormatError, match=r"not a matrix saved with torch\.save"):
            read_matrix(saved(content, tmp_path / "matrix.pth"))


def rewritten(path: Path, change: Callable[[str, bytes], bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    """Write an archive again, with other members."""
    data = path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(path, "w", compression) as target:
        for member in source.infolist():
            target.writestr(member.filename, change(member.filename, source.read(member)))
    return path


def test_an_archive_that_another_program_wrote_again_is_read(tmp_path: Path) -> None:
    path = rewritten(saved({"a": torch.arange(5)}, tmp_path / "x"), lambda _, content: content)
    np.testing.assert_array_equal(read_state_dict(path)["a"], np.arange(5))


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    path = saved({"a": torch.zeros(1000)}, tmp_path / "x")
    rewritten(path, lambda _, content: content, zipfile.ZIP_DEFLATED)
    with pytest.raises(FormatError, match="not a readable PyTorch state dict"):
        read_state_dict(path)


def test_a_big_endian_file_is_refused(tmp_path: Path) -> None:
    zipped, old = (saved({"a": torch.ones(3)}, tmp_path / f"{zipped}", zipped) for zipped in (True, False))
    rewritten(zipped, lambda name, content: b"big" if name.endswith("/byteorder") else content)
    data = old.read_bytes()
    (at,) = (at for at in range(len(data)) if data.startswith(b"little_endian", at))
    place = data.index(b"\x88", at)  # NEWTRUE
    old.write_bytes(data[:place] + b"\x89" + data[place + 1 :])
    for path in (zipped, old):
        with pytest.raises(FormatError, match="saved on a big-endian machine"):
            read_state_dict(path)


def content_of(data: bytes, zipped: bool, path: Path) -> Path:
    """A file whose content is this pickle, with a storage "0" of 4 numbers."""
    numbers = np.arange(4, dtype="<f4").tobytes()
    if zipped:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", data)
            archive.writestr("archive/byteorder", "little")
            archive.writestr("archive/data/0", numbers)
        return path
    machine = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    head = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, machine)]
    path.write_bytes(b"".join([*head, data, pickle.dumps(["0"], 2), struct.pack("<q", 4), numbers]))
    return path


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", value)


def numbers(*values: int) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def storage(kind: bytes = b"ctorch\nFloatStorage\n", key: str = "0", n: int = 4, what: str = "storage") -> bytes:
    return b"(" + text(what) + kind + text(key) + text("cpu") + number(n) + b"tQ"


def tensor(
    offset: int = 0, shape: bytes = numbers(2, 2), strides: bytes = numbers(2, 1), of: bytes | None = None
) -> bytes:
    of = storage() if of is None else of
    call = b"ctorch._utils\n_rebuild_tensor_v2\n(" + of + number(offset) + shape + strides
    return call + b"\x89" + b"ccollections\nOrderedDict\n)Rt" + b"R"


def state_dict(value: bytes) -> bytes:
    return b"\x80\x02}" + text("a") + value + b"s."


@pytest.mark.parametrize("zipped", [True, False])
def test_files_made_by_hand_are_read(zipped: bool, tmp_path: Path) -> None:
    path = content_of(state_dict(tensor()), zipped, tmp_path / "x")
    assert read_state_dict(path)["a"].tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "value",
    [
        tensor(offset=1),
        tensor(offset=-1),
        tensor(shape=numbers(2, 3)),
        tensor(strides=numbers(3, 1)),
        tensor(strides=numbers(-2, 1)),
        tensor(shape=numbers(2)),
        tensor(shape=numbers(-1, -1)),
        tensor(shape=b"(X\x01\x00\x00\x002K\x02t"),
        tensor(shape=numbers(*[1] * 100), strides=numbers(*[1] * 100)),
        tensor(of=storage(n=5)),
        tensor(of=storage(n=3), shape=numbers(1, 1)),
        tensor(of=storage(n=-4)),
        tensor(of=storage(key="1")),
        tensor(of=storage(key="../0")),
        tensor(of=storage(what="module")),
        tensor(of=storage(kind=b"ctorch\nDoubleStorage\n")),
        tensor(of=storage(kind=text("float32"))),
        tensor(of=b"N"),
        b"ctorch._utils\n_rebuild_parameter\n(" + text("x") + b"\x89Nt" + b"R",
        b"ctorch._utils\n_rebuild_tensor_v2\n}" + text("__defaults__") + b"Nsb" + b"N",
        b"ctorch._utils\n_rebuild_tensor_v2\nN}" + text("__call__") + b"Ns\x86b" + b"N",
    ],
)  # fmt: skip
def test_a_tensor_that_is_not_within_its_storage_is_refused(value: bytes, zipped: bool, tmp_path: Path) -> None:
    path = content_of(state_dict(value), zipped, tmp_path / "x")
    with pytest.raises(FormatError, match="not a readable PyTorch state dict"):
        read_state_dict(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_tensor_of_terabytes_is_refused_before_it_is_allocated(zipped: bool, tmp_path: Path) -> None:
    forged = [
        tensor(shape=numbers(10**6, 10**6), strides=numbers(0, 0)),
        tensor(of=storage(n=10**12), shape=numbers(10**12), strides=numbers(1)),
    ]
    for value in forged:
        with pytest.raises(
            FormatError, match=r"declares tensors of 4,000,000,000,000 bytes|another size than its tensors"
        ):
            read_state_dict(content_of(state_dict(value), zipped, tmp_path / "x"))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_key_of_a_million_tuples_in_each_other_is_refused_before_it_is_hashed(zipped: bool, tmp_path: Path) -> None:
    deep = b"\x80\x02}K\x01" + b"\x85" * 1_000_000 + b"K\x01s."
    with pytest.raises(FormatError, match="its pickle has more than 10,000 tuples"):
        read_state_dict(content_of(deep, zipped, tmp_path / "deep.pkl"))


def test_a_pickle_cannot_unpack_to_more_than_its_file(tmp_path: Path) -> None:
    calls = b"".join(b"h\x00h\x01" + text("latin1") + b"\x86R" for _ in range(300))
    data = b"\x80\x02c_codecs\nencode\nq\x00" + text("x" * 100_000) + b"q\x01(" + calls + b"t."
    with pytest.raises(FormatError, match="unpacks to more than the file holds"):
        read_state_dict(content_of(data, True, tmp_path / "x"))
    items = b"(" + b"".join(b"K\x00K\x00\x86" for _ in range(9_000)) + b"t"
    calls = b"".join(b"h\x00h\x01\x85R" for _ in range(300))
    data = b"\x80\x02ccollections\nOrderedDict\nq\x00" + items + b"q\x01(" + calls + b"t."
    with pytest.raises(FormatError, match="unpacks to more than the file holds"):
        read_state_dict(content_of(data, True, tmp_path / "y"))


@pytest.mark.parametrize(
    "opcodes",
    [
        b"Nr\xff\xff\xff\x7f0",  # an object with the number 2^31 - 1, for which Python would allocate a list
        b"\x82\x01",  # a name from the registry of extensions
        b"(ios\nsystem\n",
        b"\x8a\xff" + b"\xff" * 5,
        b"\x8d" + b"\xff" * 8,
    ],
)
def test_opcodes_that_tensors_do_not_need_are_refused(opcodes: bytes, tmp_path: Path) -> None:
    for zipped in (True, False):
        path = content_of(b"\x80\x02" + opcodes + b"}.", zipped, tmp_path / "x")
        with pytest.raises(FormatError, match="not a readable PyTorch state dict"):
            read_state_dict(path)


class Bomb:
    """What a forged pickle would run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("wrap", [lambda bomb: {"a": bomb}, lambda bomb: [bomb], lambda bomb: bomb])
def test_code_is_not_run(wrap: Callable[[Any], Any], protocol: int, zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "x"
    content = wrap(Bomb(tmp_path / "made"))
    torch.save(content, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    with pytest.raises(FormatError, match=r"asks for (posix|nt)\.mkdir, .* none of it was run"):
        read_state_dict(path)
    with pytest.raises(FormatError, match="not a matrix"):
        read_matrix(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "name",
    [
        "os\nsystem",
        "builtins\neval",
        "__builtin__\neval",
        "torch._utils._rebuild_tensor\n__globals__",
        "torch\n_utils._rebuild_tensor",
        "numpy\nload",
        "collections\ndeque",
        "elmokit.formats.torch_file\n_load",
    ],
)
def test_no_other_name_is_found(name: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"holds code or objects|expected plain tensors"):
        read_state_dict(content_of(b"\x80\x02c" + name.encode() + b"\n.", True, tmp_path / "x"))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_whole_module_is_named(zipped: bool, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"asks for torch\.nn\.modules\.linear\.Linear.*state_dict\(\) alone"):
        read_state_dict(saved(nn.Linear(2, 2), tmp_path / "x", zipped))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(2).to_sparse(),
        torch.ones(2, dtype=torch.complex64),
        torch.ones(2).to(torch.float8_e4m3fn),
    ],
    ids=["sparse", "complex", "float8"],
)
def test_tensors_of_other_kinds_are_refused(tensor: Tensor, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="expected plain tensors by name"):
        read_state_dict(saved({"a": tensor}, tmp_path / "x"))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_is_cut_anywhere_is_one_clear_error(zipped: bool, tmp_path: Path) -> None:
    data = saved({"a": torch.arange(30.0), "b": torch.ones(2)}, tmp_path / "x", zipped).read_bytes()
    for n_bytes in range(0, len(data), 13):
        (tmp_path / "cut").write_bytes(data[:n_bytes])
        with pytest.raises(FormatError, match="cut is not a readable PyTorch state dict"):
            read_state_dict(tmp_path / "cut")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_damaged_byte_is_no_other_exception(zipped: bool, tmp_path: Path) -> None:
    data = saved({"a": torch.arange(30.0), "b": torch.ones(2)}, tmp_path / "x", zipped).read_bytes()
    for at in range(len(data)):
        (tmp_path / "damaged").write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        with contextlib.suppress(FormatError):
            read_state_dict(tmp_path / "damaged")
