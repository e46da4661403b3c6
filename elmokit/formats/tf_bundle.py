"""Read TensorFlow's TensorBundle format without TensorFlow.

A bundle ``X`` consists of ``X.index`` and data files ``X.data-0000i-of-0000n``. The index is a LevelDB table:

- blocks of entries sorted by key. A key omits the prefix that it shares with the previous one;
- after each block, one byte for its compression and a CRC-32C;
- at the end of the file, the positions of a filter block (always empty here) and of the block that lists the other
  blocks, and a magic number.

The values are protocol buffers, with the field numbers of TensorFlow's ``tensor_bundle.proto``. The empty key has the
header. Each variable's name has its dtype, shape, position in a data file and CRC-32C. Tensors are row-major and
little-endian.

Tensors are memory-mapped, and only read when they are requested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import FormatError, ModelNotFoundError, install_command, reading

if TYPE_CHECKING:
    from elmokit.engine.architecture import Shape

try:
    import google_crc32c
except ImportError:
    VERIFIES = False
else:
    VERIFIES = google_crc32c.implementation == "c"  # its Python version takes minutes for a model
INDEX_SUFFIX = ".index"
# LevelDB's `kTableMagicNumber` (table/format.h): the last 8 bytes of a table.
MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
# Two handles of at most 20 bytes (two varints of up to 10 bytes each), padded to 40, and the magic number.
_FOOTER_SIZE = 48
_TRAILER_SIZE = 5  # compression byte and CRC

DTYPES: dict[int, np.dtype[np.generic]] = {
    number: np.dtype(name)
    for number, name in {
        1: "<f4", 2: "<f8", 3: "<i4", 4: "<u1", 5: "<i2", 6: "<i1", 9: "<i8", 10: "?", 17: "<u2", 19: "<f2",
        22: "<u4", 23: "<u8",
    }.items()
}  # fmt: skip
"""TensorFlow's numbers for the plain dtypes (``DataType`` in ``types.proto``)."""


@dataclass(frozen=True)
class Entry:
    """A variable's entry in the index."""

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
        self._shards: dict[int, NDArray[np.uint8]] = {}
        # Checksums protect the index, so other problems in it do not come from TensorFlow.
        with reading(self.index_path, "index of a TensorFlow bundle", LookupError):
            data = self.index_path.read_bytes()
            entries = dict(_table(data, self.index_path))
            self._n_shards = _header(entries.pop(b""), self.index_path)
            self.entries = {key.decode("utf-8", "backslashreplace"): _entry(value) for key, value in entries.items()}
            for name, entry in self.entries.items():
                self._check_place(name, entry)

    def not_of_an_elmo(self, path: Path) -> FormatError:
        """Return an error about a bundle of another model; ``path`` is what was opened."""
        some = ", ".join(list(self.entries)[:3]) or "no variable"
        return FormatError(f"{path} is a TensorFlow file, but not an ELMo: it holds {some} ...")

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shape of each variable, by name."""
        return {name: entry.shape for name, entry in self.entries.items()}

    @property
    def card(self) -> dict[str, str]:
        """Facts about the bundle for the model card."""
        return {} if VERIFIES else {"checksums": f"not verified; to verify them: {install_command('checksums')}"}

    def read(self, name: str) -> NDArray[np.generic]:
        """Read a variable, memory-mapped and read-only, and check its checksum."""
        entry = self.entries[name]
        dtype = DTYPES.get(entry.dtype)
        if entry.sliced or dtype is None:
            kind = "in slices" if entry.sliced else f"with TensorFlow's type number {entry.dtype}"
            raise FormatError(f"{self.prefix}: variable {name} is stored {kind}, which elmokit cannot read.")
        octets = self._shard(entry.shard)[entry.offset : entry.offset + entry.size]
        # Tensors are checked when they are read, not when the bundle is opened, so reading the biLM does not wait for a
        # softmax of several gigabytes.
        if not _is_intact(octets, entry.crc):
            raise FormatError(
                f"{self._shard_path(entry.shard)}: the checksum of variable {name} is wrong. Download or copy it again."
            )
        try:
            return octets.view(dtype).reshape(entry.shape)
        except (ValueError, OverflowError):
            raise FormatError(f"{self.prefix}: variable {name} cannot have shape {entry.shape}.") from None

    def _check_place(self, name: str, entry: Entry) -> None:
        """Check that a variable is inside its data file, which may be an incomplete copy."""
        if entry.sliced:
            return
        n_bytes = len(self._shard(entry.shard))
        if entry.offset + entry.size > n_bytes:
            raise FormatError(
                f"{self.index_path}: variable {name} ends at byte {entry.offset + entry.size} of "
                f"{self._shard_path(entry.shard)}, which has {n_bytes}: download or copy both again."
            )

    def _shard_path(self, shard: int) -> Path:
        return _beside(self.prefix, f".data-{shard:05d}-of-{self._n_shards:05d}")

    def _shard(self, shard: int) -> NDArray[np.uint8]:
        """Return the bytes of a data file. It is mapped only once, so replacing the file has no effect."""
        if shard not in self._shards:
            path = self._shard_path(shard)
            if not path.is_file():
                raise ModelNotFoundError(f"{path} is missing; according to {self.index_path.name}, it holds tensors.")
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


def _table(data: bytes, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of a table: those of each block in the block list, in order."""
    if not data.endswith(MAGIC):
        raise ValueError("it does not end like one")
    footer = _Reader(data[-_FOOTER_SIZE : -len(MAGIC)])
    _ = footer.varint(), footer.varint()  # the filter block
    for _, handle in _block(data, footer.varint(), footer.varint()):
        position = _Reader(handle)
        yield from _block(data, position.varint(), position.varint())


def _block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of one block."""
    end = offset + size
    content, crc = data[offset:end], data[end + 1 : end + _TRAILER_SIZE]
    # The checksum covers the block and the compression byte, which is 0: TensorFlow does not compress bundles.
    if not _is_intact(content + b"\0", int.from_bytes(crc, "little")):
        raise ValueError("a checksum is wrong")
    # The block ends with a list of restart points for binary search, which reading in order does not need.
    n_restarts = int.from_bytes(content[-4:], "little")
    block = _Reader(content[: -4 * (n_restarts + 1)])
    key = b""
    while block.more:
        n_shared, n_own, n_value = block.varint(), block.varint(), block.varint()
        key = key[:n_shared] + block.take(n_own)
        yield key, block.take(n_value)


def _is_intact(octets: bytes | NDArray[np.uint8], stored: int) -> bool:
    """Compare the CRC-32C of bytes with a stored one; without a library to compute it, bytes count as intact."""
    if not VERIFIES:
        return True
    crc = google_crc32c.value(octets)
    # TensorFlow stores it rotated, plus the offset of LevelDB's `crc32c::Mask`.
    masked = ((crc >> 15) | (crc << 17)) + 0xA282EAD8
    return bool(masked & 0xFFFFFFFF == stored)


class _Reader:
    """Reads bytes from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def more(self) -> bool:
        return self._at < len(self._data)

    def take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def varint(self) -> int:
        """Read a number in groups of seven bits, lowest first; each byte but the last has its top bit set."""
        number = shift = 0
        while True:
            octet = self._data[self._at]
            self._at += 1
            number |= (octet & 0x7F) << shift
            shift += 7
            if octet < 0x80:
                return number


def _proto_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protocol buffer: the number, and the value or bytes. Damage raises a LookupError."""
    message = _Reader(data)
    while message.more:
        tag = message.varint()
        kind = tag & 7  # the wire types: 0 varint, 1 fixed 64 bits, 2 length and bytes, 5 fixed 32 bits
        if kind == 0:
            yield tag >> 3, message.varint()
        elif kind == 2:
            yield tag >> 3, message.take(message.varint())
        else:
            yield tag >> 3, int.from_bytes(message.take({1: 8, 5: 4}[kind]), "little")


def _header(data: bytes, path: Path) -> int:
    """Return the number of data files."""
    # `BundleHeaderProto`: 1 num_shards, 2 endianness (0 is little), 3 version, whose field 2 is the oldest reader
    # allowed.
    fields = dict(_proto_fields(data))
    needed: int | bytes = 0
    for version in _messages(data, 3):
        needed = dict(_proto_fields(version)).get(2, 0)
    if fields.get(2) or needed not in (0, 1):
        raise FormatError(
            f"{path} is from a big-endian machine, or in a newer TensorFlow format than elmokit can read."
        )
    return int(fields.get(1, 1))


def _entry(value: bytes) -> Entry:
    """Parse one entry."""
    # The field numbers are those of `BundleEntryProto`. proto3 omits zero fields, such as the shard and offset of the
    # first tensor.
    fields = dict(_proto_fields(value))
    dtype, shard, offset, size, crc = (int(fields.get(number, 0)) for number in (1, 3, 4, 5, 6))
    shape: Shape = ()
    for content in _messages(value, 2):
        shape = _shape(content)
    # Field 7, `slices`: a partitioned variable, with its data under other keys. bilm-tf does not write them.
    return Entry(dtype, shape, shard, offset, size, crc, sliced=7 in fields)


def _shape(data: bytes) -> Shape:
    # `TensorShapeProto`: 2 dim, with its size in field 1.
    return tuple(int(dict(_proto_fields(dim)).get(1, 0)) for dim in _messages(data, 2))


def _messages(data: bytes, number: int) -> list[bytes]:
    """List the messages in a field of a protocol buffer."""
    messages = []
    for field, content in _proto_fields(data):
        if field == number and isinstance(content, bytes):
            messages.append(content)
    return messages
