"""Write the index of an HDF5 file behind vectors that are already in it.

An HDF5 file is data, plus an index that says which dataset is where. h5py writes both together: that takes 0.3 ms per
dataset while holding Python's lock, and an interruption leaves a file that cannot be opened. Here the vectors are
written first, one after another from ``DATA_START`` (``writer.py``). The index follows when all are there, and the
first 96 bytes, which make the file an HDF5 file, come last.

The file then looks like this, each part at an address that is a multiple of 8::

    superblock            96 bytes, then unused up to DATA_START
    vectors               the data of all datasets
    object headers        one per dataset: its shape, type, address and size
    maps                  sentence_to_index: a text, and the header of its dataset
    attribute             a text that the root group refers to
    root group            names (the local heap), leaves (name -> object header), B-tree over the leaves, object header

Source: HDF5 File Format Specification 3.0 (The HDF Group), in its oldest form, which h5py writes by default and every
HDF5 library reads: superblock 0, object headers 1, groups as symbol tables. Numbers are little-endian; addresses and
lengths take 8 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import OutputError

MAX_TEXT_BYTES = 2**32 - 1  # the length of a string is stored in four bytes
_REFERENCE_BYTES = 16  # of a reference to a string

_UNDEFINED = 2**64 - 1
_LEAF_K, _INTERNAL_K = 4, 16  # the defaults of h5py; nodes hold up to twice as many entries
_PER_LEAF, _PER_NODE = 2 * _LEAF_K, 2 * _INTERNAL_K
_ENTRIES_AT_ONCE = 1024 * _PER_LEAF

_LEAF = np.dtype(
    [
        ("signature", "S4"),
        ("version", "u1"),
        ("reserved", "u1"),
        ("n_entries", "<u2"),
        ("entries", [("name", "<u8"), ("header", "<u8"), ("cache", "V24")], (_PER_LEAF,)),
    ]
)
_NODE = np.dtype(
    [
        ("signature", "S4"),
        ("kind", "u1"),
        ("level", "u1"),
        ("n_children", "<u2"),
        ("left", "<u8"),
        ("right", "<u8"),
        ("pairs", [("key", "<u8"), ("child", "<u8")], (_PER_NODE,)),
        ("last_key", "<u8"),
    ]
)
_FLOATS = {
    # Version and class, flags, position of the sign bit, bytes; then: bit offset, bits, position and size of the
    # exponent, position and size of the mantissa, bias of the exponent.
    "float32": struct.pack("<BBBBIHHBBBBI4x", 0x11, 0x20, 31, 0, 4, 0, 32, 23, 8, 0, 23, 127),
    "float16": struct.pack("<BBBBIHHBBBBI4x", 0x11, 0x20, 15, 0, 2, 0, 16, 10, 5, 0, 10, 15),
}
_UTF8_STRING = struct.pack("<BBBBIBBBBI", 0x19, 1, 1, 0, 16, 0x10, 0, 0, 0, 1) + bytes.fromhex("0000080000000000")


def dataset_headers(
    first_address: int, n_tokens: NDArray[np.int64], n_layers: int | None, dim: int, dtype: str
) -> tuple[bytes, int]:
    """Return the object headers, ``header_bytes`` each, of datasets whose data is consecutive, and where the data ends.

    Datasets are ``(n_layers, tokens, dim)``, or ``(tokens, dim)`` if ``n_layers`` is None.
    """
    token_bytes = (n_layers or 1) * dim * np.dtype(dtype).itemsize
    n_bytes = n_tokens * token_bytes
    ends = first_address + np.cumsum(n_bytes)
    addresses = np.where(n_bytes > 0, ends - n_bytes, -1)  # -1, all bits set, is the undefined address: no data
    # All headers are equal but for four numbers, so they are copies of one template with these filled in. That
    # takes about a microsecond each.
    template = _dataset(*_shape_type(n_layers, dim, dtype), 0, 0)
    headers = np.tile(np.frombuffer(template, dtype=np.uint8), (len(n_tokens), 1))
    layout = len(template) - 24 + 2  # the layout message is the last one
    rank = 2 if n_layers is None else 3
    length, most = (16 + 8 + 8 + 8 * (axis - 2) for axis in (rank, 2 * rank))  # in the shape and the largest shape
    for start, values in ((length, n_tokens), (most, n_tokens), (layout, addresses), (layout + 8, n_bytes)):
        headers[:, start : start + 8] = values.astype("<i8").view(np.uint8).reshape(-1, 8)
    return headers.tobytes(), int(ends[-1]) if len(ends) else first_address


def header_bytes(n_layers: int | None) -> int:
    """Return the size of the object header of a dataset."""
    return len(_dataset(*_shape_type(n_layers, 1, "float32"), 0, 0))


def write_text_dataset(file: BinaryIO, position: int, chunks: Iterable[bytes]) -> tuple[int, int]:
    """Write one long UTF-8 text as a dataset of shape ``(1,)``, as h5py writes a list of one string.

    Positions are multiples of 8. Return the address of the dataset's object header, and the position after it.
    """
    # The data of the dataset is a reference to the text.
    reference, position = _write_text(file, position, chunks)
    file.seek(position)
    file.write(reference)
    header = _dataset((1,), _UTF8_STRING, position, len(reference))
    file.write(header)
    return position + len(reference), position + len(reference) + len(header)


def write_text_attribute(file: BinaryIO, position: int, name: bytes, text: bytes) -> tuple[bytes, int]:
    """Write the text of an attribute; return the attribute for ``write_group``, and the position after the text."""
    reference, position = _write_text(file, position, [text])
    return _attribute(name, reference), position


def attribute_bytes(name: bytes, n_text_bytes: int) -> int:
    """Return the size of a text attribute: of its text, and of its part of the group's header."""
    return _collection_bytes(n_text_bytes) + len(_attribute(name, bytes(_REFERENCE_BYTES)))


def _write_text(file: BinaryIO, position: int, chunks: Iterable[bytes]) -> tuple[bytes, int]:
    """Write a text at a position; return the reference to it, and the position after it."""
    # Strings of variable length are stored in a "global heap collection": here one object, the text. The rest of the
    # collection is object 0, which means free space. Its size comes first but is known last, so the header is written
    # after the text.
    file.seek(position + 32)
    n_bytes = 0
    for chunk in chunks:
        n_bytes += file.write(chunk)
    if n_bytes > MAX_TEXT_BYTES:
        raise OutputError(
            f"The map from sentences to numbers takes {n_bytes:,} bytes, more than HDF5 stores in a text. Omit it "
            "with --forget-sentences."
        )
    used, size = 32 + _up_to_8(n_bytes), _collection_bytes(n_bytes)
    file.write(bytes(used - 32 - n_bytes) + struct.pack("<HHIQ", 0, 0, 0, size - used) + bytes(size - used - 16))
    file.seek(position)
    file.write(struct.pack("<4sB3xQHH4xQ", b"GCOL", 1, size, 1, 0, n_bytes))
    # The length of the text, the address of the collection, the number of the object in it.
    return struct.pack("<IQI", n_bytes, position, 1), position + size


def write_group(
    file: BinaryIO, position: int, entries: Iterable[tuple[bytes, int]], n_name_bytes: int, attribute: bytes = b""
) -> None:
    """Write the root group behind everything else, and the superblock that points to it.

    ``entries`` are names of datasets and addresses of their object headers, sorted by name; ``n_name_bytes`` is the sum
    of their ``name_bytes``.
    """
    # Names and leaves are written side by side, block by block, so that memory does not grow with the number of
    # datasets. That is why the size of all names must be known before.
    heap_size = 8 + n_name_bytes  # the first name, at offset 0, is empty
    heap, nodes = position + heap_size, position + heap_size + 32
    file.seek(position)
    file.write(bytes(8))
    name_offset, n_leaves = 8, 0
    last_names: list[NDArray[np.int64]] = []
    iterator = iter(entries)
    while block := list(islice(iterator, _ENTRIES_AT_ONCE)):
        sizes = np.array([name_bytes(name) for name, _ in block])
        file.seek(position + name_offset)
        file.write(b"".join(name.ljust(size, b"\0") for (name, _), size in zip(block, sizes.tolist(), strict=True)))
        offsets = name_offset + np.cumsum(sizes) - sizes
        leaves = _leaves(offsets, np.array([header for _, header in block], dtype=np.int64))
        file.seek(nodes + n_leaves * _LEAF.itemsize)
        file.write(leaves.tobytes())
        last_names.append(offsets[np.minimum(np.arange(1, len(leaves) + 1) * _PER_LEAF, len(block)) - 1])
        name_offset, n_leaves = int(name_offset + sizes.sum()), n_leaves + len(leaves)
    file.seek(heap)
    file.write(struct.pack("<4sB3xQQQ", b"HEAP", 0, heap_size, 1, position))  # 1: it has no free space
    end = nodes + n_leaves * _LEAF.itemsize
    file.seek(end)
    children = nodes + np.arange(n_leaves) * _LEAF.itemsize
    tree, end = _write_tree(file, end, children, np.concatenate([*last_names, np.zeros(0, dtype=np.int64)]))
    file.write(_header(_message(0x11, struct.pack("<QQ", tree, heap)), *[attribute] * bool(attribute)))
    root, end = end, file.tell()
    file.truncate(end)
    # Last of all: from here on this is an HDF5 file.
    file.seek(0)
    file.write(_superblock(root, tree, heap, end))


def name_bytes(name: bytes) -> int:
    """Return the size of a name in the heap: its bytes and a zero, padded to a multiple of 8."""
    return _up_to_8(len(name) + 1)


def numbers_by_name(n: int) -> Iterator[int]:
    """Yield 0 to n - 1 in the order of their names (0, 1, 10, 100, ..., 2, 20, ...), without sorting them in memory."""
    if n:
        yield 0
    number = 1
    for _ in range(1, n):
        yield number
        if number * 10 < n:
            number *= 10
            continue
        while number % 10 == 9 or number == n - 1:
            number //= 10
        number += 1


def number_name_bytes(n: int) -> int:
    """Return the size of the decimal names of 0 to n - 1 together."""
    total, first, width = 0, 0, 1
    while first < n:
        last = min(n, 10**width)
        total += (last - first) * _up_to_8(width + 1)
        first, width = last, width + 1
    return total


def group_bytes(n_entries: int, n_name_bytes: int) -> int:
    """Return how many bytes ``write_group`` writes, without the superblock."""
    n_nodes = n_leaves = -(-n_entries // _PER_LEAF)
    total = 8 + n_name_bytes + 32 + n_leaves * _LEAF.itemsize + 40
    while True:
        n_nodes = max(1, -(-n_nodes // _PER_NODE))
        total += n_nodes * _NODE.itemsize
        if n_nodes == 1:
            return total


def _leaves(names: NDArray[np.int64], headers: NDArray[np.int64]) -> NDArray[np.void]:
    """Return symbol table nodes of eight entries each; the last one may have fewer."""
    n_leaves = -(-len(names) // _PER_LEAF)
    leaves = np.zeros(n_leaves, dtype=_LEAF)
    leaves["signature"], leaves["version"], leaves["n_entries"] = b"SNOD", 1, _PER_LEAF
    leaves["n_entries"][-1] = len(names) - (n_leaves - 1) * _PER_LEAF
    for field, values in (("name", names), ("header", headers)):
        padded = np.zeros(n_leaves * _PER_LEAF, dtype=np.int64)
        padded[: len(values)] = values
        leaves["entries"][field] = padded.reshape(n_leaves, _PER_LEAF)
    return leaves


def _write_tree(
    file: BinaryIO, position: int, children: NDArray[np.int64], last_names: NDArray[np.int64]
) -> tuple[int, int]:
    """Write the B-tree over the leaves, level by level; return the address of its root, and the position after it."""
    # Key i of a node is the last name before child i: a name above key i and up to key i + 1 is in child i. Children
    # are addresses, names are offsets.
    level = 0
    while True:
        n_nodes = max(1, -(-len(children) // _PER_NODE))
        addresses = position + np.arange(n_nodes) * _NODE.itemsize
        keys = np.zeros((n_nodes, _PER_NODE + 1), dtype=np.int64)
        below = np.zeros(n_nodes * _PER_NODE, dtype=np.int64)
        below[: len(children)] = children
        after = np.zeros(n_nodes * _PER_NODE, dtype=np.int64)
        after[: len(children)] = last_names
        keys[:, 1:] = after.reshape(n_nodes, _PER_NODE)
        keys[1:, 0] = keys[:-1, -1]
        nodes = np.zeros(n_nodes, dtype=_NODE)
        nodes["signature"], nodes["level"], nodes["n_children"] = b"TREE", level, _PER_NODE
        nodes["n_children"][-1] = len(children) - (n_nodes - 1) * _PER_NODE
        nodes["left"] = np.concatenate([[-1], addresses[:-1]]).astype(np.int64).view(np.uint64)
        nodes["right"] = np.concatenate([addresses[1:], [-1]]).astype(np.int64).view(np.uint64)
        nodes["pairs"]["key"], nodes["last_key"] = keys[:, :-1], keys[:, -1]
        nodes["pairs"]["child"] = below.reshape(n_nodes, _PER_NODE)
        file.write(nodes.tobytes())
        position += nodes.nbytes
        if n_nodes == 1:
            return int(addresses[0]), position
        last_of_node = np.minimum(np.arange(1, n_nodes + 1) * _PER_NODE, len(children)) - 1
        children, last_names, level = addresses, last_names[last_of_node], level + 1


def _superblock(root: int, tree: int, heap: int, end: int) -> bytes:
    signature = b"\x89HDF\r\n\x1a\n"
    versions = struct.pack("<8BHHI", 0, 0, 0, 0, 0, 8, 8, 0, _LEAF_K, _INTERNAL_K, 0)
    addresses = struct.pack("<QQQQ", 0, _UNDEFINED, end, _UNDEFINED)
    return signature + versions + addresses + struct.pack("<QQI4xQQ", 0, root, 1, tree, heap)


def _shape_type(n_layers: int | None, dim: int, dtype: str) -> tuple[tuple[int, ...], bytes]:
    return ((0, dim) if n_layers is None else (n_layers, 0, dim)), _FLOATS[dtype]


def _dataset(shape: tuple[int, ...], kind: bytes, address: int, n_bytes: int) -> bytes:
    """Return the object header of a dataset whose data is contiguous."""
    dataspace = struct.pack(f"<BBB5x{len(shape)}Q{len(shape)}Q", 1, len(shape), 1, *shape, *shape)
    fill_value = struct.pack("<BBBBI", 2, 2, 2, 1, 0)
    layout = struct.pack("<BBQQ6x", 3, 1, address, n_bytes)
    return _header(
        _message(0x01, dataspace), _message(0x03, kind, 1), _message(0x05, fill_value, 1), _message(0x08, layout)
    )


def _attribute(name: bytes, reference: bytes) -> bytes:
    """Return the message of an attribute whose value is one string."""
    scalar = struct.pack("<BBB5x", 1, 0, 0)  # a dataspace without dimensions
    sizes = struct.pack("<BxHHH", 1, len(name) + 1, len(_UTF8_STRING), len(scalar))
    body = sizes + name.ljust(name_bytes(name), b"\0") + _UTF8_STRING + scalar + reference
    return _message(0x0C, body)


def _collection_bytes(n_text_bytes: int) -> int:
    """Return the size of the heap collection that holds a text; HDF5 wants 4096 bytes or more."""
    return max(4096, 32 + _up_to_8(n_text_bytes) + 16)


def _header(*messages: bytes) -> bytes:
    body = b"".join(messages)
    return struct.pack("<BxHII4x", 1, len(messages), 1, len(body)) + body


def _message(kind: int, body: bytes, flags: int = 0) -> bytes:
    return struct.pack("<HHB3x", kind, len(body), flags) + body


def _up_to_8(n: int) -> int:
    return -(-n // 8) * 8
