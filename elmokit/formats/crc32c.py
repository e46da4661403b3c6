"""CRC-32C (Castagnoli), the checksum in TensorFlow's files, fast enough in NumPy for a whole model (0.2 GB/s).

The usual loop handles one byte at a time, which takes minutes in Python. This module uses that a CRC is linear over
bits, apart from its initial and final values: the CRC of ``a`` followed by ``b`` is the CRC of ``a`` advanced over
``len(b)`` zero bytes, XOR the CRC of ``b``. So the data is laid out in rows of many 32-bit words ("lanes"). NumPy
advances all lanes over one row of zero bytes at once and XORs the next row in; at the end the lanes are folded into one
word in the same way.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

# 0x1EDC6F41, the polynomial of RFC 3720 (iSCSI), with its bits reversed: the register shifts to the right.
_POLYNOMIAL = 0x82F63B78  # bits reflected
# Rotation and offset are those of LevelDB's `crc32c::Mask`.
_MASK_DELTA = 0xA282EAD8
_ALL = 0xFFFFFFFF
_MAX_LANES = 1 << 14
_MIN_LANED = 1 << 12  # below this many bytes the plain loop is fast enough

Words = NDArray[np.uint32]


def crc32c(data: bytes | NDArray[np.uint8]) -> int:
    """Compute the CRC-32C of bytes. A memory-mapped array is read row by row."""
    octets = np.frombuffer(data, dtype=np.uint8) if isinstance(data, bytes) else data
    n_lanes = _MAX_LANES
    # At least 16 rows of 4 bytes per lane, so that the loop over rows, not the fold at the end, does the work.
    while n_lanes * 64 > len(octets) and n_lanes > 64:
        n_lanes //= 2
    row_size = 4 * n_lanes
    # Bytes that do not fill a row go first: the register after them enters the lanes with a single XOR.
    n_head = len(octets) % row_size if len(octets) >= _MIN_LANED else len(octets)
    state = _advance_plain(_ALL, octets[:n_head].tobytes())
    body = octets[n_head:]
    if len(body):
        state = _advance_laned(state, body.reshape(-1, row_size))
    return state ^ _ALL


def masked_crc32c(data: bytes | NDArray[np.uint8]) -> int:
    """Compute the CRC-32C as TensorFlow stores it: rotated and offset."""
    # The mask is there because the CRC of data that contains its own CRC is weak.
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & _ALL


def _advance_plain(state: int, data: bytes) -> int:
    """Advance the register over bytes, one at a time."""
    table = _byte_table()
    for octet in data:
        state = (state >> 8) ^ table[(state ^ octet) & 0xFF]
    return state


def _advance_laned(state: int, rows: NDArray[np.uint8]) -> int:
    """Advance the register over a block of bytes ``(rows, bytes)``, all lanes at once."""
    n_lanes = rows.shape[1] // 4
    low, high = _advance_tables(4 * n_lanes)
    lanes = np.zeros(n_lanes, dtype="<u4")
    halves = lanes.view("<u2")
    for index, row in enumerate(rows):
        # A linear map of 32 bits is the XOR of two table lookups of 16 bits each.
        moved = low[halves[0::2]]
        moved ^= high[halves[1::2]]
        np.bitwise_xor(moved, np.frombuffer(row.tobytes(), dtype="<u4"), out=lanes)
        if not index:  # the register so far belongs in front of the first word
            lanes[0] ^= state
    # The left half of the lanes holds words that come 4 * n_lanes bytes before those of the right half: advance it by
    # that distance, and XOR. Log2(lanes) steps leave one word.
    while n_lanes > 1:
        n_lanes //= 2
        lanes = _advanced(lanes[:n_lanes], 4 * n_lanes) ^ lanes[n_lanes:]
    # The XOR put the last word into the register; it has yet to move through it.
    return int(_advanced(lanes, 4)[0])


@cache
def _byte_table() -> list[int]:
    """Tabulate the effect of one byte on the register, for each value of its low byte."""
    table = []
    for octet in range(256):
        for _ in range(8):
            octet = (octet >> 1) ^ (_POLYNOMIAL if octet & 1 else 0)
        table.append(octet)
    return table


@cache
def _advance_columns(n_bytes: int) -> tuple[int, ...]:
    """Return the image of each of the register's 32 bits after ``n_bytes`` zero bytes (a power of two)."""
    if n_bytes == 1:
        return tuple(_advance_plain(1 << bit, b"\0") for bit in range(32))
    # Advancing by n bytes is advancing by n / 2 bytes twice.
    half = _advance_columns(n_bytes // 2)
    return tuple(int(_applied(half, np.array([column], dtype=np.uint32))[0]) for column in half)


@cache
def _advance_tables(n_bytes: int) -> tuple[Words, Words]:
    """Tabulate the effect of ``n_bytes`` zero bytes for each value of the register's low and high 16 bits."""
    columns = _advance_columns(n_bytes)
    values = np.arange(1 << 16, dtype=np.uint32)
    return _applied(columns, values), _applied(columns[16:], values)


def _advanced(words: Words, n_bytes: int) -> Words:
    return _applied(_advance_columns(n_bytes), words)


def _applied(columns: tuple[int, ...], words: Words) -> Words:
    """Apply a linear map of bits, given by the images of the bits, to each word."""
    moved = np.zeros_like(words)
    for bit, column in enumerate(columns):
        moved ^= ((words >> np.uint32(bit)) & np.uint32(1)) * np.uint32(column)
    return moved
