"""Read TensorFlow's TensorBundle format without TensorFlow.

A bundle ``X`` consists of ``X.index`` and data files ``X.data-0000i-of-0000n``. The index is a LevelDB table:

- blocks of entries sorted by key. A key omits the prefix that it shares with the key before;
- after each block one byte for its compression and a CRC-32C;
- at the end of the file, the positions of a filter block (always empty here) and of the block that lists the other
  blocks, and a magic number.

The values are protocol buffers, with the field numbers of TensorFlow's ``tensor_bundle.proto``. The empty key has the
header. Each variable's name has its dtype, shape, position in a data file and CRC-32C. Tensors are row-major and
little-endian.

A checkpoint may come from anywhere, so nothing that the index declares is trusted: it is checked against the sizes of
the files before any tensor is touched. Tensors are memory-mapped and only read when they are requested.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import FormatError, ModelNotFoundError
from elmokit.formats.crc32c import masked_crc32c
from elmokit.storage.bounded import read_bounded
from elmokit.storage.tensor_file import MAX_DIMENSIONS

if TYPE_CHECKING:
    from elmokit.engine.config import Shape

INDEX_SUFFIX = ".index"
# LevelDB's `kTableMagicNumber` (table/format.h): the last 8 bytes of a table.
MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
# Two handles of at most 20 bytes (two varints of up to 10 bytes each), padded to 40, and the magic number.
_FOOTER_SIZE = 48
_TRAILER_SIZE = 5  # compression byte and CRC

# An ELMo has a few dozen variables and a few kilobytes of index. The limits bound what a malicious index can cost.
_MAX_INDEX_SIZE = 16 << 20
_MAX_ENTRIES = 50_000
_MAX_KEY_SIZE = 1024

DTYPES: dict[int, np.dtype[np.generic]] = {
    number: np.dtype(name)
    for number, name in {
        1: "<f4", 2: "<f8", 3: "<i4", 4: "<u1", 5: "<i2", 6: "<i1", 9: "<i8", 10: "?", 17: "<u2", 19: "<f2",
        22: "<u4", 23: "<u8",
    }.items()
}  # fmt: skip
"""TensorFlow's numbers of the plain dtypes (``DataType`` in ``types.proto``)."""


@dataclass(frozen=True)
class Entry:
    """What the index says about one variable."""

    dtype: int
    shape: Shape
    shard: int
    offset: int
    size: int
    crc: int
    sliced: bool


class TensorBundle:
    """The variables of one bundle; ``prefix`` is the path of its files, without ``.index``."""

    def __init__(self, prefix: str | Path) -> None:
        self.prefix = Path(prefix)
        self.index_path = _beside(self.prefix, INDEX_SUFFIX)
        entries = dict(_table(_index_bytes(self.index_path), self.index_path))
        header = entries.pop(b"", None)
        if header is None:
            raise FormatError(f"{self.index_path} has no header: it is no index of a TensorFlow bundle.")
        self._n_shards = _header(header, self.index_path)
        self._shards: dict[int, NDArray[np.uint8]] = {}
        names = ((key.decode("utf-8", "backslashreplace"), value) for key, value in entries.items())
        self.entries = {name: self._entry(name, value) for name, value in names}

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shape of each variable by its name."""
        return {name: entry.shape for name, entry in self.entries.items()}

    def read(self, name: str) -> NDArray[np.generic]:
        """Read a variable, memory-mapped and read-only, and check its checksum."""
        entry = self.entries[name]
        dtype = DTYPES.get(entry.dtype)
        if entry.sliced or dtype is None:
            kind = "in slices" if entry.sliced else f"with TensorFlow's type number {entry.dtype}"
            raise FormatError(f"{self.prefix}: variable {name} is stored {kind}, which elmokit does not read.")
        octets = self._shard(entry.shard)[entry.offset : entry.offset + entry.size]
        # Tensors are checked when they are read, not when the bundle is opened: a reader of the biLM need not wait for
        # a softmax of gigabytes.
        if masked_crc32c(octets) != entry.crc:
            raise FormatError(
                f"{self._shard_path(entry.shard)}: the checksum of variable {name} is wrong, so the file is damaged. "
                "Download or copy it again."
            )
        try:
            return octets.view(dtype).reshape(entry.shape)
        except ValueError:  # no bytes, but dimensions that no array can have
            raise FormatError(f"{self.prefix}: variable {name} is said to have shape {entry.shape}.") from None

    def _entry(self, name: str, value: bytes) -> Entry:
        """Parse one entry and check it against the data file that it points into."""
        where = f"{self.index_path}: variable {name}"
        # The field numbers are those of `BundleEntryProto`. proto3 does not write fields that are zero, such as the
        # shard and the offset of the first tensor.
        numbers = dict.fromkeys((1, 3, 4, 5, 6), 0)  # dtype, shard, offset, size, CRC; absent fields are 0
        shape: Shape = ()
        sliced = False
        for field, content in proto_fields(value, where):
            if field in numbers and isinstance(content, int):
                numbers[field] = content
            elif field == 2 and isinstance(content, bytes):
                shape = _shape(content, where)
            # Field 7, `slices`: a partitioned variable, whose data is under other keys. bilm-tf does not write any.
            sliced = sliced or field == 7
        entry = Entry(numbers[1], shape, numbers[3], numbers[4], numbers[5], numbers[6], sliced)
        if sliced:
            return entry
        dtype = DTYPES.get(entry.dtype)
        if dtype is not None and entry.size != math.prod(shape) * dtype.itemsize:
            raise FormatError(
                f"{where} is said to have shape {shape} and {entry.size} bytes, which do not agree. The file is "
                "damaged: download or copy it again."
            )
        if entry.shard >= self._n_shards:
            raise FormatError(f"{where} is said to be in data file {entry.shard} of {self._n_shards}.")
        n_bytes = len(self._shard(entry.shard))
        if entry.offset + entry.size > n_bytes:
            raise FormatError(
                f"{where} is said to end at byte {entry.offset + entry.size} of {self._shard_path(entry.shard)}, which "
                f"has {n_bytes}. The files do not belong together, or the data file was cut short: download or copy "
                "both again."
            )
        return entry

    def _shard_path(self, shard: int) -> Path:
        return _beside(self.prefix, f".data-{shard:05d}-of-{self._n_shards:05d}")

    def _shard(self, shard: int) -> NDArray[np.uint8]:
        """Return the bytes of a data file. They are mapped once, so that a file that is replaced keeps its content."""
        if shard not in self._shards:
            path = self._shard_path(shard)
            if not path.is_file():
                raise ModelNotFoundError(f"{path} is missing; {self.index_path.name} says that it holds tensors.")
            # An empty file cannot be mapped.
            self._shards[shard] = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
        return self._shards[shard]


def is_index(path: Path) -> bool:
    """Check whether a file ends like a LevelDB table, the format of a bundle's index."""
    try:
        with path.open("rb") as file:
            file.seek(-_FOOTER_SIZE, 2)
            return file.read(_FOOTER_SIZE).endswith(MAGIC)
    except OSError:
        return False


def _beside(prefix: Path, suffix: str) -> Path:
    return prefix.with_name(prefix.name + suffix)


def _index_bytes(path: Path) -> bytes:
    try:
        data = read_bounded(path, _MAX_INDEX_SIZE)
    except ValueError as error:
        raise FormatError(f"{path} is no index of a TensorFlow bundle: {error}.") from None
    except FileNotFoundError:
        raise ModelNotFoundError(f"There is no file {path}.") from None
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}.") from None
    if len(data) < _FOOTER_SIZE or not data.endswith(MAGIC):
        raise FormatError(
            f"{path} is no index of a TensorFlow bundle: it does not end as one. It is of another kind, or was cut "
            "short: download or copy it again."
        )
    return data


def _table(data: bytes, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of a table: those of each block that the block list names, in order."""
    footer = _Reader(data[-_FOOTER_SIZE : -len(MAGIC)], path)
    for _ in _block(data, footer.varint(), footer.varint(), path):
        raise FormatError(f"{path} is no index of a TensorFlow bundle: it has a filter, which bundles do not have.")
    offset, size = footer.varint(), footer.varint()
    last: bytes | None = None
    n_entries = end = 0
    for _, handle in _block(data, offset, size, path):
        position = _Reader(handle, path)
        offset, size = position.varint(), position.varint()
        # Overlapping blocks could make a small file expand without bound, so each must start after the one before.
        if offset < end:
            raise FormatError(f"{path} is damaged: its blocks are not in order. Download or copy it again.")
        end = offset + size
        for key, value in _block(data, offset, size, path):
            n_entries += 1
            if n_entries > _MAX_ENTRIES:
                raise FormatError(f"{path} names more than {_MAX_ENTRIES} variables: no ELMo does.")
            if last is not None and key <= last:
                raise FormatError(f"{path} is damaged: its names are not in order. Download or copy it again.")
            yield key, value
            last = key


def _block(data: bytes, offset: int, size: int, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of one block."""
    if offset + size + _TRAILER_SIZE > len(data) - _FOOTER_SIZE:
        raise FormatError(f"{path} is damaged: a block reaches beyond the end. Download or copy it again.")
    content = data[offset : offset + size]
    compression = data[offset + size]
    # The checksum covers the block and the compression byte.
    crc = int.from_bytes(data[offset + size + 1 : offset + size + _TRAILER_SIZE], "little")
    if masked_crc32c(data[offset : offset + size + 1]) != crc:
        raise FormatError(f"{path} is damaged: a checksum is wrong. Download or copy it again.")
    if compression:
        raise FormatError(f"{path} is compressed (kind {compression}), which TensorFlow's bundles are not.")
    # The block ends with a list of restart points, for binary search; reading in order needs none of them.
    n_restarts = int.from_bytes(content[-4:], "little")
    end = size - 4 * (n_restarts + 1)
    if end < 0:
        raise FormatError(f"{path} is damaged: a block is shorter than it says. Download or copy it again.")
    block = _Reader(content[:end], path)
    key = b""
    while block.more:
        n_shared, n_own, n_value = block.varint(), block.varint(), block.varint()
        # Without a limit, keys that each extend the one before would make a small file take memory with the square of
        # its size.
        if n_shared > len(key) or n_shared + n_own > _MAX_KEY_SIZE:
            raise FormatError(f"{path} is damaged: a name has an impossible length. Download or copy it again.")
        key = key[:n_shared] + block.take(n_own)
        yield key, block.take(n_value)


class _Reader:
    """Reads bytes from the front, and never past their end."""

    def __init__(self, data: bytes, where: object) -> None:
        self._data = data
        self._where = where
        self._at = 0

    @property
    def more(self) -> bool:
        return self._at < len(self._data)

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise FormatError(f"{self._where} is damaged: it ends too early. Download or copy it again.")
        self._at += size
        return self._data[self._at - size : self._at]

    def varint(self) -> int:
        """Read a number in groups of seven bits, lowest first; each byte but the last has its top bit set."""
        number = 0
        # Ten groups of seven bits hold 64 bits; a longer varint is invalid.
        for shift in range(0, 70, 7):
            octet = self.take(1)[0]
            number |= (octet & 0x7F) << shift
            if octet < 0x80:
                return number
        raise FormatError(f"{self._where} is damaged: a number does not end. Download or copy it again.")


def proto_fields(data: bytes, where: str) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protocol buffer: number, and value or bytes."""
    message = _Reader(data, where)
    while message.more:
        tag = message.varint()
        kind = tag & 7
        if kind == 0:  # the wire types: 0 varint, 1 fixed 64 bits, 2 length and bytes, 5 fixed 32 bits
            yield tag >> 3, message.varint()
        elif kind in (1, 5):
            yield tag >> 3, int.from_bytes(message.take(8 if kind == 1 else 4), "little")
        elif kind == 2:
            yield tag >> 3, message.take(message.varint())
        else:
            raise FormatError(f"{where} is damaged: a field is of no known kind. Download or copy it again.")


def _header(data: bytes, path: Path) -> int:
    """Return the number of data files."""
    # `BundleHeaderProto`: 1 num_shards, 2 endianness (0 is little), 3 version, whose field 2 is the oldest reader
    # allowed.
    numbers = {1: 1, 2: 0}
    for field, content in proto_fields(data, f"{path}: header"):
        if field in numbers and isinstance(content, int):
            numbers[field] = content
        if field == 3 and isinstance(content, bytes):
            needed = dict(proto_fields(content, f"{path}: header")).get(2, 0)
            if not isinstance(needed, int) or needed > 1:
                raise FormatError(f"{path} is of a newer version of TensorFlow's format than elmokit reads.")
    if numbers[2]:
        raise FormatError(f"{path} was written on a big-endian machine, which elmokit does not read.")
    return numbers[1]


def _shape(data: bytes, where: str) -> Shape:
    sizes = []
    for field, content in proto_fields(data, where):
        # `TensorShapeProto`: 2 dim, with its size in field 1; 3 unknown_rank.
        if field == 3 and content:
            raise FormatError(f"{where} has no known shape.")
        if field == 2 and isinstance(content, bytes):
            size = dict(proto_fields(content, where)).get(1, 0)
            # A negative size (unknown) is written as a varint of 64 bits in two's complement.
            if not isinstance(size, int) or size >= 1 << 63:
                raise FormatError(f"{where} has a dimension that is no size. Download or copy the file again.")
            sizes.append(size)
    if len(sizes) > MAX_DIMENSIONS:
        raise FormatError(f"{where} is said to have {len(sizes)} dimensions.")
    return tuple(sizes)
