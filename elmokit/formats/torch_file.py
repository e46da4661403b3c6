"""Read what ``torch.save`` wrote, without PyTorch and without running code from the file.

A file holds a pickle and storages, which are arrays of numbers. In the pickle, a tensor is the call of a function of
PyTorch with a reference to a storage, an offset, a shape and strides. There are two containers:

- since PyTorch 1.6 a zip archive: ``NAME/data.pkl``, ``NAME/data/KEY`` for each storage, ``NAME/byteorder``;
- before, pickles in a row: a magic number, a version, facts about the machine, the content, the keys of the storages.
  The storages follow, each as its size (8 bytes) and its numbers.

A pickle is a program that can call any function. Here it can call the few that belong to tensors, each replaced by one
of ours that only notes its arguments.
"""

from __future__ import annotations

import io
import mmap
import pickle
import pickletools
import zipfile
from collections.abc import Callable, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.engine.config import Shape

Array = NDArray[Any]

ZIP_MAGIC = b"PK\x03\x04"
_BIG_ENDIAN = "it was saved on a big-endian machine"
_LOCAL_HEADER = 30  # bytes before the name of a member of a zip archive
_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_MAX_INT = 2**63
_STORAGES = {
    f"{name}Storage": np.dtype(dtype)
    for name, dtype in (
        ("Float", "<f4"), ("Double", "<f8"), ("Half", "<f2"), ("BFloat16", "<u2"), ("Long", "<i8"), ("Int", "<i4"),
        ("Short", "<i2"), ("Char", "<i1"), ("Byte", "<u1"), ("Bool", "?"),
    )
}  # fmt: skip
_BFLOAT16 = "BFloat16Storage"
# What a pickle of tensors and plain containers needs, and NEWOBJ, so that the class of a pickled object is named in the
# error: there are no classes that it could use. Absent are those that read from registries of the program, and the
# numbers in text of protocol 0.
_OPCODES = {
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2",
    "LONG1", "BINFLOAT", "BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND",
    "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "BINPERSID", "BINPUT",
    "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET", "NEWOBJ",
}  # fmt: skip


class Storage(NamedTuple):
    """What a pickle says about a storage."""

    kind: str
    key: str
    n_numbers: int


class StoredTensor(NamedTuple):
    """What a pickle says about a tensor; its numbers were not read yet."""

    storage: Storage
    offset: int
    shape: Shape
    strides: Shape


class TorchFile:
    """The content of a file that ``torch.save`` wrote, memory-mapped, with a :class:`StoredTensor` for each tensor."""

    # Damaged bytes raise exceptions of any type, when the file is opened and when a tensor is read.

    def __init__(self, file: IO[bytes]) -> None:
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._ranges: dict[str, tuple[int, int]] = {}
        """Where the bytes of each storage begin and end, by its key."""
        is_zip = self._map[: len(ZIP_MAGIC)] == ZIP_MAGIC
        content = self._open_zip(file) if is_zip else self._open_pickles()
        self.content: Any = content.array if isinstance(content, _PickledArray) else content

    def read(self, tensor: StoredTensor) -> Array:
        """Copy the numbers of a tensor into an array, bfloat16 as float32."""
        kind, key, n_numbers = tensor.storage
        dtype = _STORAGES[kind]
        start, stop = self._ranges[key]
        if stop - start != n_numbers * dtype.itemsize:
            raise ValueError(f"storage {key} has {stop - start:,} bytes, and its tensor needs {n_numbers:,} numbers")
        if 0 in tensor.shape:
            return np.empty(tensor.shape, np.float32 if kind == _BFLOAT16 else dtype)
        numbers = np.frombuffer(self._map, dtype, n_numbers, start)
        strides = [stride * dtype.itemsize for stride in tensor.strides]
        # That it is within the storage was checked when the pickle was read.
        offset = tensor.offset * dtype.itemsize
        array = np.ndarray(tensor.shape, dtype, numbers, offset, strides).copy(order="C")
        return (array.astype(np.uint32) << 16).view(np.float32) if kind == _BFLOAT16 else array

    def _open_zip(self, file: IO[bytes]) -> Any:
        with zipfile.ZipFile(file) as archive:
            members = {member.filename: member for member in archive.infolist()}
        (pickle_name,) = (name for name in members if name.count("/") == 1 and name.endswith("/data.pkl"))
        root = pickle_name.removesuffix("data.pkl")
        ranges = {name.removeprefix(root): self._range(member) for name, member in members.items()}
        if "byteorder" in ranges and self._map[slice(*ranges["byteorder"])] != b"little":
            raise ValueError(_BIG_ENDIAN)
        self._ranges = {name.removeprefix("data/"): span for name, span in ranges.items() if name.startswith("data/")}
        return _load(io.BytesIO(self._map[slice(*ranges["data.pkl"])]))[0]

    def _range(self, member: zipfile.ZipInfo) -> tuple[int, int]:
        """Find where the bytes of a member begin and end. Its checksum is not compared: PyTorch may leave it out."""
        header = self._map[member.header_offset : member.header_offset + _LOCAL_HEADER]
        n_name, n_extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        start = member.header_offset + _LOCAL_HEADER + n_name + n_extra
        stop = start + member.file_size
        if not header.startswith(ZIP_MAGIC) or member.compress_type != zipfile.ZIP_STORED or stop > len(self._map):
            raise ValueError(f"its member {member.filename} is damaged or compressed")
        return start, stop

    def _open_pickles(self) -> Any:
        for expected in (_MAGIC, _PROTOCOL):
            if _load(self._map)[0] != expected:
                raise ValueError("it does not begin as such a file")
        machine, _ = _load(self._map)
        if machine["little_endian"] is not True:
            raise ValueError(_BIG_ENDIAN)
        content, storages = _load(self._map)
        keys, _ = _load(self._map)
        at = self._map.tell()
        for key in keys:
            storage = storages[key]
            if int.from_bytes(self._map[at : at + 8], "little") != storage.n_numbers:
                raise ValueError(f"storage {key} has another size than its tensors say")
            start = at + 8
            at = start + storage.n_numbers * _STORAGES[storage.kind].itemsize
            self._ranges[key] = start, at
        return content


def _load(stream: IO[bytes] | mmap.mmap) -> tuple[Any, dict[str, Storage]]:
    """Read the pickle at the position of a stream, and return its content and its storages by key."""
    start = stream.tell()
    for number, (opcode, argument, _) in enumerate(pickletools.genops(stream)):  # type: ignore[arg-type]
        # Python allocates a list as long as LONG_BINPUT says. Pickles number their objects without gaps.
        if opcode.name not in _OPCODES or (opcode.name == "LONG_BINPUT" and (argument or 0) > number):
            raise ValueError(f"its pickle has the opcode {opcode.name} with {argument}")
    stop = stream.tell()
    stream.seek(start)
    unpickler = _Unpickler(stream)
    content = unpickler.load()
    stream.seek(stop)
    return content, unpickler.storages


class _Unpickler(pickle.Unpickler):
    """Reads plain values and notes of tensors."""

    def __init__(self, stream: IO[bytes] | mmap.mmap) -> None:
        super().__init__(stream, encoding="utf-8")
        self.storages: dict[str, Storage] = {}
        calls: dict[str, Callable[..., Any]] = {
            "collections.OrderedDict": _OrderedDict,
            "torch._utils._rebuild_tensor": _rebuild_tensor,
            "torch._utils._rebuild_tensor_v2": _rebuild_tensor,
            "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
            "_codecs.encode": lambda text, _: text.encode("latin-1"),  # which every pickle of bytes asks for
            "numpy.dtype": _PickledDtype,
            # Its names before and since NumPy 2.
            "numpy.core.multiarray._reconstruct": _PickledArray,
            "numpy._core.multiarray._reconstruct": _PickledArray,
        }
        self._calls = {name: _Call(function) for name, function in calls.items()}

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full in self._calls:
            return self._calls[full]
        if full == "numpy.ndarray":  # an argument of `_reconstruct`
            return full
        if module == "torch" and name in _STORAGES:
            return name
        raise ValueError(f"it asks for {full} and not for plain tensors by name, and none of it was run")

    def persistent_load(self, reference: Any) -> Storage:
        what, kind, key, _, n_numbers, *view = reference
        if what != "storage" or kind not in _STORAGES or not isinstance(key, str) or any(view):
            raise ValueError("its pickle refers to something else than a storage")
        storage = self.storages[key] = Storage(kind, key, *_sizes([n_numbers]))
        return storage


class _Call:
    """A function that a pickle may call, and that it cannot change."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise ValueError("its pickle changes a function")


class _OrderedDict(dict[Any, Any]):
    """A dict without the attributes that a pickle gives it: a state dict has the versions of its modules there."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        pass


class _PickledDtype:
    """The dtype of a pickled array: its kind and size first, then the order of its bytes."""

    __slots__ = ("_kind", "dtype")

    def __init__(self, kind: str, *_: Any) -> None:
        self._kind = kind

    def __setstate__(self, state: Sequence[Any]) -> None:
        self.dtype = np.dtype(f"{state[1]}{self._kind}")


class _PickledArray:
    """A pickled array, whose content comes after its creation."""

    __slots__ = ("array",)

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Sequence[Any]) -> None:
        _, shape, dtype, is_fortran, octets = state
        self.array = np.frombuffer(octets, dtype.dtype).reshape(shape, order="F" if is_fortran else "C")


def _rebuild_tensor(
    storage: Storage, offset: int, shape: Sequence[int], strides: Sequence[int], *others: Any
) -> StoredTensor:
    """Note a tensor, after checking that it is within its storage."""
    # `others` are requires_grad, hooks, and marks of a tensor that shows its storage negated or conjugated.
    (offset,) = _sizes([offset])
    tensor = StoredTensor(storage, offset, _sizes(shape), _sizes(strides))
    if not isinstance(storage, Storage) or any(others[2:]):
        raise ValueError("its pickle describes a tensor that is not plain")
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if 0 not in shape and last >= storage.n_numbers:
        raise ValueError(f"a tensor of the shape {tensor.shape} reaches beyond its storage")
    return tensor


def _sizes(numbers: Sequence[Any]) -> Shape:
    if not all(type(number) is int and 0 <= number < _MAX_INT for number in numbers):
        raise ValueError("its pickle has a size that is no size")
    return tuple(numbers)
