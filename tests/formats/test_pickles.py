"""Files of torch.save, read without PyTorch: equal to what PyTorch reads, and nothing that they ask for is run."""

from __future__ import annotations

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
    tied = nn.Linear(100, 100)  # more numbers than the file has
    module.extend([tied, tied])
    found = read_state_dict(saved(module.state_dict(), tmp_path / "module.pkl", zipped))
    assert list(found) == list(module.state_dict())
    for name, tensor in module.state_dict().items():
        np.testing.assert_array_equal(found[name], tensor.numpy(), name)


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


TENSORS = [
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
    tensor(of=storage(what="module")),
    tensor(of=storage(kind=b"ctorch\nDoubleStorage\n")),
    tensor(of=storage(kind=text("float32"))),
    tensor(of=b"N"),
    b"ctorch._utils\n_rebuild_parameter\n(" + text("x") + b"\x89Nt" + b"R",
    b"ctorch._utils\n_rebuild_tensor_v2\n}" + text("__defaults__") + b"Nsb" + b"N",
    b"ctorch._utils\n_rebuild_tensor_v2\nN}" + text("__call__") + b"Ns\x86b" + b"N",
    b"ctorch._utils\n_rebuild_tensor_v2\nN}" + text("_function") + b"Ns\x86b" + b"N",
]
OPCODES = [
    b"Nr\xff\xff\xff\x7f0",  # an object with the number 2^31 - 1, for which Python would allocate a list
    b"\x82\x01",  # a name from the registry of extensions
    b"(ios\nsystem\n",
    b"\x8a\xff" + b"\xff" * 5,
    b"\x8d" + b"\xff" * 8,
]
NAMES = [
    *(b"os\nsystem", b"builtins\neval", b"__builtin__\neval", b"torch._utils._rebuild_tensor\n__globals__"),
    *(b"torch\n_utils._rebuild_tensor", b"numpy\nload", b"collections\ndeque", b"elmokit.formats.torch_file\n_load"),
]
REFUSED = [
    *map(state_dict, TENSORS),
    *(b"\x80\x02" + opcodes + b"}." for opcodes in OPCODES),
    *(b"\x80\x02c" + name + b"\n." for name in NAMES),
]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("data", REFUSED, ids=range(len(REFUSED)))
def test_what_is_no_state_dict_is_refused(data: bytes, zipped: bool, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"forged\.pkl"):
        read_state_dict(content_of(data, zipped, tmp_path / "forged.pkl"))


OTHERS: list[tuple[Any, str]] = [
    ([torch.ones(1)], "plain tensors by name"),
    ({"a": 1}, "plain tensors by name"),
    ({1: torch.ones(1)}, "plain tensors by name"),
    ({"a": torch.eye(2).to_sparse()}, "plain tensors by name"),
    ({"a": torch.ones(2, dtype=torch.complex64)}, "plain tensors by name"),
    ({"a": torch.ones(2).to(torch.float8_e4m3fn)}, "plain tensors by name"),
    (nn.Linear(2, 2), r"torch\.nn\.modules\.linear\.Linear"),
]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(("content", "name"), OTHERS, ids=range(len(OTHERS)))
def test_other_objects_are_named(content: Any, name: str, zipped: bool, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=rf"other\.pkl .*{name}"):
        read_state_dict(saved(content, tmp_path / "other.pkl", zipped))


@pytest.mark.parametrize(
    "content", [{"a": torch.ones(1)}, "text", np.array(["text"]), np.array([None]), np.ones(2, complex)], ids=range(5)
)
def test_another_content_than_a_matrix_is_refused(content: Any, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"matrix\.pth"):
        read_matrix(saved(content, tmp_path / "matrix.pth"))


def test_other_parts_compressed_archives_and_big_endian_files_are_refused(tmp_path: Path) -> None:
    content = {"a": torch.ones(1000)}
    zipped, old, packed = (saved(content, tmp_path / name, name != "old") for name in ("zipped", "old", "packed"))
    rewritten(zipped, lambda name, content: b"big" if name.endswith("/byteorder") else content)
    data = old.read_bytes()
    (at,) = (at for at in range(len(data)) if data.startswith(b"little_endian", at))
    place = data.index(b"\x88", at)  # NEWTRUE
    old.write_bytes(data[:place] + b"\x89" + data[place + 1 :])
    rewritten(packed, lambda _, content: content, zipfile.ZIP_DEFLATED)
    for path, what in ((zipped, "big-endian"), (old, "big-endian"), (packed, "compressed")):
        with pytest.raises(FormatError, match=f"{path.name} .*{what}"):
            read_state_dict(path)
    with pytest.raises(FormatError, match=r"other is .*one and two"):
        read_state_dict(saved(content, tmp_path / "other"), ["one", "two"])


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
    with pytest.raises(FormatError, match=r"asks for (posix|nt)\.mkdir .* none of it was run"):
        read_state_dict(path)
    with pytest.raises(FormatError, match="none of it was run"):
        read_matrix(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_is_cut_anywhere_is_one_clear_error(zipped: bool, tmp_path: Path) -> None:
    data = saved({"a": torch.arange(30.0), "b": torch.ones(2)}, tmp_path / "x", zipped).read_bytes()
    for n_bytes in range(0, len(data), 50):
        (tmp_path / "cut").write_bytes(data[:n_bytes])
        with pytest.raises(FormatError, match="cut is not a readable PyTorch state dict"):
            read_state_dict(tmp_path / "cut")
