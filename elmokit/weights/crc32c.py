"""CRC-32C (Castagnoli), as TensorFlow guards its files with, fast enough in NumPy for a whole model.

A CRC without its start and end values is linear over bits: that of ``a`` followed by ``b`` is that of ``a``
advanced over ``len(b)`` zero bytes, exclusive-or that of ``b``. So many lanes of 32-bit words are summed side by
side, each word advanced over the bytes of one row of lanes at a time, and the lanes are folded at the end.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78  # bits reflected
_MASK_DELTA = 0xA282EAD8
_ALL = 0xFFFFFFFF
_MAX_LANES = 1 << 14
_MIN_LANED = 1 << 12  # bytes below which the plain loop is quick enough

Words = NDArray[np.uint32]


def crc32c(data: bytes | NDArray[np.uint8]) -> int:
    """The CRC-32C of bytes; a memory-mapped array is read piece by piece."""
    octets = np.frombuffer(data, dtype=np.uint8) if isinstance(data, bytes) else data
    n_lanes = _MAX_LANES
    while n_lanes * 64 > len(octets) and n_lanes > 64:
        n_lanes //= 2
    row_size = 4 * n_lanes
    n_head = len(octets) % row_size if len(octets) >= _MIN_LANED else len(octets)
    state = _advance_plain(_ALL, octets[:n_head].tobytes())
    body = octets[n_head:]
    if len(body):
        state = _advance_laned(state, body.reshape(-1, row_size))
    return state ^ _ALL


def masked_crc32c(data: bytes | NDArray[np.uint8]) -> int:
    """The CRC-32C as it is stored beside the data: rotated and shifted, so that it guards data that hold CRCs."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & _ALL


def _advance_plain(state: int, data: bytes) -> int:
    """The register after some bytes, one at a time."""
    table = _byte_table()
    for octet in data:
        state = (state >> 8) ^ table[(state ^ octet) & 0xFF]
    return state


def _advance_laned(state: int, rows: NDArray[np.uint8]) -> int:
    """The register after a block of bytes ``(rows, bytes)``, lane by lane."""
    n_lanes = rows.shape[1] // 4
    low, high = _advance_tables(4 * n_lanes)
    lanes = np.zeros(n_lanes, dtype="<u4")
    halves = lanes.view("<u2")
    for index, row in enumerate(rows):
        moved = low[halves[0::2]]
        moved ^= high[halves[1::2]]
        np.bitwise_xor(moved, np.frombuffer(row.tobytes(), dtype="<u4"), out=lanes)
        if not index:
            lanes[0] ^= state
    while n_lanes > 1:
        n_lanes //= 2
        lanes = _advanced(lanes[:n_lanes], 4 * n_lanes) ^ lanes[n_lanes:]
    return int(_advanced(lanes, 4)[0])


@cache
def _byte_table() -> list[int]:
    """The register after one byte, for each low byte of it."""
    table = []
    for octet in range(256):
        for _ in range(8):
            octet = (octet >> 1) ^ (_POLYNOMIAL if octet & 1 else 0)
        table.append(octet)
    return table


@cache
def _advance_columns(n_bytes: int) -> tuple[int, ...]:
    """Where each of the register's 32 bits goes over so many zero bytes; a power of two, or one."""
    if n_bytes == 1:
        return tuple(_advance_plain(1 << bit, b"\0") for bit in range(32))
    half = _advance_columns(n_bytes // 2)
    return tuple(int(_applied(half, np.array([column], dtype=np.uint32))[0]) for column in half)


@cache
def _advance_tables(n_bytes: int) -> tuple[Words, Words]:
    """The same for each value of the register's low and high 16 bits."""
    columns = _advance_columns(n_bytes)
    values = np.arange(1 << 16, dtype=np.uint32)
    return _applied(columns, values), _applied(columns[16:], values)


def _advanced(words: Words, n_bytes: int) -> Words:
    return _applied(_advance_columns(n_bytes), words)


def _applied(columns: tuple[int, ...], words: Words) -> Words:
    """A linear map of bits, given by the images of the bits, on each word."""
    moved = np.zeros_like(words)
    for bit, column in enumerate(columns):
        moved ^= ((words >> np.uint32(bit)) & np.uint32(1)) * np.uint32(column)
    return moved
