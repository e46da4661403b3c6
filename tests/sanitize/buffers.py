"""Memory for C functions in which every access beyond a buffer is noticed.

There are two kinds. ``GuardedBuffers`` need nothing but the operating system: each buffer ends where a page begins that
nobody may touch, so reading or writing one number too many kills the process. ``HeapBuffers`` come from ``malloc``,
which AddressSanitizer and valgrind watch on both sides.

In both, a number of an output that a function forgets to write is found afterwards: outputs begin as a NaN that no
computation gives. valgrind needs no such mark, because it knows which bytes were written.
"""

from __future__ import annotations

import ctypes
import mmap
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

PAGE = mmap.PAGESIZE
ALIGNMENT = 64  # of scratch memory, as `training.h` asks for
_UNWRITTEN = 0x7FA5A5A5  # a signaling NaN; the same bits are no plausible integer either
_BYTE = 0xA5  # in the gap between scratch memory and its guard page
_PROT_READ, _PROT_WRITE, _PRIVATE_ANONYMOUS = 1, 2, 0x22

_C = ctypes.CDLL(None, use_errno=True)
_C.mmap.restype = _C.malloc.restype = ctypes.c_void_p
_C.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_C.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_C.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_C.malloc.argtypes = [ctypes.c_size_t]
_C.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
_C.free.argtypes = [ctypes.c_void_p]


class Buffers(ABC):
    """The buffers of one test, which are freed together when it ends (it is a context manager)."""

    def __enter__(self) -> Buffers:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def of(self, values: Any, dtype: Any = np.float32) -> NDArray[Any]:
        """Return a copy of numbers that C may read and, where the system can forbid it, not write."""
        array = self.writable(values, dtype)
        self._forbid_writing(array)
        return array

    def writable(self, values: Any, dtype: Any = np.float32) -> NDArray[Any]:
        """Return a copy of numbers that C reads and writes."""
        given = np.ascontiguousarray(values, dtype)
        array = self._array(given.shape, given.dtype)
        array[...] = given
        return array

    def output(self, *shape: int, dtype: Any = np.float32) -> NDArray[Any]:
        """Return an array that C writes; see :func:`check_written`."""
        array = self._array(shape, np.dtype(dtype))
        self._mark(array)
        return array

    @abstractmethod
    def scratch(self, n_bytes: int) -> int:
        """Return the address of memory without content, at a multiple of 64."""

    @abstractmethod
    def free(self) -> None:
        """Free all buffers."""

    @abstractmethod
    def _array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]: ...

    def _forbid_writing(self, array: NDArray[Any]) -> None:  # noqa: B027
        """Make an input read-only; nothing, where that takes whole pages."""

    def _mark(self, array: NDArray[Any]) -> None:
        array.view(np.uint32)[...] = _UNWRITTEN


class GuardedBuffers(Buffers):
    """Buffers that end at a page that must not be touched, after another such page."""

    def __init__(self) -> None:
        self._maps: list[tuple[int, int]] = []
        self._gaps: list[tuple[int, int]] = []  # address and size of what is between scratch memory and its guard page

    def _pages(self, n_bytes: int) -> int:
        """Return the address of the guard page behind room for this many bytes."""
        inside = -(-n_bytes // PAGE) * PAGE
        start = _C.mmap(None, inside + 2 * PAGE, 0, _PRIVATE_ANONYMOUS, -1, 0)
        if start in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"{n_bytes:,} bytes with guard pages")
        self._maps.append((start, inside + 2 * PAGE))
        if inside and _C.mprotect(start + PAGE, inside, _PROT_READ | _PROT_WRITE):
            raise MemoryError(f"the permissions of {n_bytes:,} bytes")
        return int(start) + PAGE + inside

    def _array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        n_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return _array_at(self._pages(n_bytes) - n_bytes, shape, dtype)

    def _forbid_writing(self, array: NDArray[Any]) -> None:
        first = at(array) // PAGE * PAGE
        if array.nbytes:
            _C.mprotect(first, at(array) + array.nbytes - first, _PROT_READ)

    def scratch(self, n_bytes: int) -> int:
        gap = -n_bytes % ALIGNMENT
        start = self._pages(n_bytes + gap) - n_bytes - gap
        ctypes.memset(start, _BYTE, n_bytes + gap)
        self._gaps.append((start + n_bytes, gap))
        return start

    def free(self) -> None:
        touched = [start for start, gap in self._gaps if ctypes.string_at(start, gap) != bytes([_BYTE]) * gap]
        for start, size in self._maps:
            _C.munmap(start, size)
        self._maps.clear()
        self._gaps.clear()
        assert not touched, "C wrote behind its scratch memory"


class HeapBuffers(Buffers):
    """Buffers from ``malloc``, for AddressSanitizer; or, with ``marks`` False, for valgrind."""

    def __init__(self, marks: bool = True) -> None:
        self._addresses: list[int] = []
        self._marks = marks

    def _take(self, address: int | None, n_bytes: int) -> int:
        if not address:
            raise MemoryError(f"{n_bytes:,} bytes")
        self._addresses.append(address)
        return address

    def _array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        n_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return _array_at(self._take(_C.malloc(n_bytes), n_bytes), shape, dtype)

    def _mark(self, array: NDArray[Any]) -> None:
        if self._marks:
            super()._mark(array)

    def scratch(self, n_bytes: int) -> int:
        # Not `aligned_alloc`, which AddressSanitizer permits whole multiples of the alignment only.
        made = ctypes.c_void_p()
        failed = _C.posix_memalign(ctypes.byref(made), ALIGNMENT, n_bytes)
        return self._take(None if failed else made.value, n_bytes)

    def free(self) -> None:
        for address in self._addresses:
            _C.free(address)
        self._addresses.clear()


def _array_at(address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    # NumPy wants a byte at least, which an empty array never touches.
    n_bytes = max(1, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    return np.ndarray(shape, dtype, (ctypes.c_char * n_bytes).from_address(address))


def at(array: NDArray[Any]) -> int:
    """Return the address of an array's numbers."""
    return int(array.__array_interface__["data"][0])


def check_written(*arrays: NDArray[Any]) -> None:
    """Check that no number of some outputs is as ``Buffers.output`` made it."""
    for array in arrays:
        n_left = int((np.ascontiguousarray(array).view(np.uint32) == _UNWRITTEN).sum())
        assert not n_left, f"{n_left} of {array.size} numbers were not written"
