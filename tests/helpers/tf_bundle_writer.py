"""A writer of TensorFlow's TensorBundle, from the description of the format, with ways to make it lie."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

MAGIC = bytes.fromhex("57fb808b247547db")
RESTART_INTERVAL = 16
TYPE_NUMBERS = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}
Tensors = Mapping[str, NDArray[Any]]


@functools.cache
def _octet_crc32c(octet: int) -> int:
    """Divide an octet by the polynomial, bit by bit."""
    for _ in range(8):
        octet = (octet >> 1) ^ (0x82F63B78 if octet & 1 else 0)
    return octet


@functools.cache  # the tests write the same tensors again and again
def slow_crc32c(data: bytes) -> int:
    """Compute the checksum octet by octet."""
    crc = 0xFFFFFFFF
    for octet in data:
        crc = (crc >> 8) ^ _octet_crc32c((crc ^ octet) & 0xFF)
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> bytes:
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def varint(number: int) -> bytes:
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number: int, value: int | bytes) -> bytes:
    """One field of a protocol buffer: a number, or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def header(n_shards: int = 1, endianness: int = 0, needs_version: int = 0) -> bytes:
    version = field(1, 1) + (field(2, needs_version) if needs_version else b"")
    return field(1, n_shards) + (field(2, endianness) if endianness else b"") + field(3, version)


def entry(dtype: int, shape: tuple[int, ...], shard: int, offset: int, size: int, crc: bytes, sliced: bool) -> bytes:
    out = field(1, dtype) + field(2, b"".join(field(2, field(1, dim)) for dim in shape))
    for number, value in ((3, shard), (4, offset), (5, size)):
        out += field(number, value) if value else b""
    return out + varint(6 << 3 | 5) + crc + (field(7, b"") if sliced else b"")


def block(entries: list[tuple[bytes, bytes]], compression: int = 0) -> bytes:
    """A block with its trailer; keys leave out what they share with the key before, but for every sixteenth."""
    out, restarts, last = b"", [], b""
    for index, (key, value) in enumerate(entries):
        n_shared = 0
        if index % RESTART_INTERVAL == 0:
            restarts.append(len(out))
        else:
            while n_shared < min(len(key), len(last)) and key[n_shared] == last[n_shared]:
                n_shared += 1
        out += varint(n_shared) + varint(len(key) - n_shared) + varint(len(value)) + key[n_shared:] + value
        last = key
    restarts = restarts or [0]
    out += b"".join(place.to_bytes(4, "little") for place in restarts) + len(restarts).to_bytes(4, "little")
    return sealed(out, compression)


def sealed(content: bytes, compression: int = 0) -> bytes:
    content += bytes([compression])
    return content + masked(slow_crc32c(content))


def table_file(entries: list[tuple[bytes, bytes]], entries_per_block: int = 10_000, compression: int = 0) -> bytes:
    """A sorted table of strings, from entries in their order."""
    groups = [entries[at : at + entries_per_block] for at in range(0, len(entries), entries_per_block)]
    return assembled([block(group, compression) for group in groups], [group[-1][0] for group in groups])


def assembled(blocks: list[bytes], last_keys: list[bytes]) -> bytes:
    """A table of finished blocks."""
    out, handles = b"", []
    for index, (content, key) in enumerate(zip(blocks, last_keys, strict=True)):
        if index == len(blocks) - 1:
            key = bytes([key[0] + 1]) if key else b""  # a short key that is above all others will do
        handles.append((key, varint(len(out)) + varint(len(content) - 5)))
        out += content
    footer = b""
    for content in (block([]), block(handles)):
        footer += varint(len(out)) + varint(len(content) - 5)
        out += content
    return out + footer.ljust(40, b"\0") + MAGIC


def write_bundle(
    prefix: Path,
    tensors: Tensors,
    n_shards: int = 1,
    entries_per_block: int = 10_000,
    lies: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write ``prefix.index`` and ``prefix.data-*``.

    Args:
        lies: for a variable, what its entry says instead of the truth.
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    shards = [b""] * n_shards
    entries = [(b"", header(n_shards))]
    for index, name in enumerate(sorted(tensors)):
        array = tensors[name]
        data = array.astype(array.dtype.newbyteorder("<")).tobytes()
        shard = index % n_shards
        facts = {
            "dtype": TYPE_NUMBERS[array.dtype.name],
            "shape": array.shape,
            "shard": shard,
            "offset": len(shards[shard]),
            "size": len(data),
            "crc": masked(slow_crc32c(data)),
            "sliced": False,
        }
        shards[shard] += data
        entries.append((name.encode(), entry(**facts | dict((lies or {}).get(name, {})))))
    for index, data in enumerate(shards):
        prefix.with_name(f"{prefix.name}.data-{index:05d}-of-{n_shards:05d}").write_bytes(data)
    prefix.with_name(f"{prefix.name}.index").write_bytes(table_file(entries, entries_per_block))
