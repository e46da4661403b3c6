"""Call the compiled C functions of ``elmokit.h``, and of other headers in the same style, with NumPy arrays.

Headers are read when the library is loaded. Structs become ctypes structs, and functions get the declared argument
types, so no signature is written twice. ctypes releases the interpreter lock during each call.

C cannot check what an address points to, so :func:`address` checks every array that is passed.
"""

from __future__ import annotations

import ctypes
import re
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmokit.engine.architecture import Shape
from elmokit.engine.precision import NAMES, Kernels, Precision
from elmokit.engine.state import Floats

UNKNOWN_IDS = "ids contains numbers without a character or word in the model."
WRONG_SIZES = "The sizes of the model do not match."

_NUMBERS = {"int64_t": ctypes.c_int64, "float": ctypes.c_float, "double": ctypes.c_double}


class Library:
    """A compiled library. Its functions are attributes, named without ``elmokit_``.

    Args:
        path: The shared library.
        instructions: The instruction set that it was built for.
        headers: The text of the headers that declare the functions.

    Attributes:
        instructions: As given.
        structs: The headers' structs, named without ``elmokit_``.
        constants: The headers' constants, named without ``ELMOKIT_``.
    """

    def __init__(self, path: Path, instructions: str, headers: str) -> None:
        library = ctypes.CDLL(str(path))
        declared = parse_header(headers)
        self.instructions = instructions
        self.structs, self.constants = declared.structs, declared.constants
        for name, (arguments, result) in declared.functions.items():
            function = getattr(library, f"elmokit_{name}")
            function.argtypes, function.restype = arguments, result
            setattr(self, name, function)
        self.is_permitted_here = bool(self.is_permitted())

    if TYPE_CHECKING:  # the functions are attributes

        def __getattr__(self, name: str) -> Any: ...


class Declarations:
    """The declarations in C headers."""

    def __init__(self) -> None:
        self.structs: dict[str, type[ctypes.Structure]] = {}
        self.constants: dict[str, int] = {}
        self.functions: dict[str, tuple[list[Any], Any]] = {}


def parse_header(text: str) -> Declarations:
    """Parse the declarations in one or more headers, which must use the same subset of C as ``elmokit.h``."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    declared = Declarations()
    for name, value in re.findall(r"ELMOKIT_(\w+) = (\d+)", text):
        declared.constants[name] = int(value)
    for body, name in re.findall(r"typedef struct \{(.*?)\} elmokit_(\w+);", text, flags=re.DOTALL):
        fields = [_declared(line) for line in body.split(";") if line.strip()]
        declared.structs[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    for result, name, arguments in re.findall(r"ELMOKIT_API (\w+) elmokit_(\w+)\((.*?)\);", text, flags=re.DOTALL):
        kinds: list[Any] = []
        if arguments.strip() != "void":
            kinds = [_declared(argument)[1] for argument in arguments.split(",")]
        declared.functions[name] = (kinds, _NUMBERS.get(result))
    return declared


def _declared(text: str) -> tuple[str, Any]:
    """Return the name and type of a field or argument."""
    kind, name = re.fullmatch(r"\s*(.*?)(\w+)\s*", text, flags=re.DOTALL).groups()  # type: ignore[union-attr]
    return name, ctypes.c_void_p if "*" in kind else _NUMBERS[kind.strip()]


def address(name: str, array: NDArray[Any] | None, dtype: Any, shape: Shape | None = None) -> int | None:
    """Check an array and return its data's address, or None for no array. Keep the array alive while C reads it."""
    if array is None:
        return None
    check_array(name, array, dtype, shape)
    return start_of(array)


def start_of(array: NDArray[Any]) -> int:
    """Return the address of an array's data, without checking the array."""
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]


def check_array(
    name: str,  # for the error message
    array: NDArray[Any],
    dtype: Any,
    shape: Shape | None = None,  # None for any shape; -1 for any size
) -> None:
    """Check an array for a C function. A mismatch is a mistake in the calling code."""
    if array.dtype == dtype and array.flags.c_contiguous and (shape is None or _fits(array.shape, shape)):
        return
    expected = np.dtype(dtype).name if shape is None else f"{np.dtype(dtype)} {shape}"
    order = "" if array.flags.c_contiguous else ", not contiguous"
    raise ValueError(
        f"{name} must be a contiguous array of {expected}, but is one of {array.dtype} {array.shape}{order}."
    )


def _fits(shape: Shape, expected: Shape) -> bool:
    """Compare a shape with an expected one, in which -1 means any size."""
    if len(shape) != len(expected):
        return False
    return all(want in (-1, size) for want, size in zip(expected, shape, strict=True))


def choose_kernels(
    library: Library,
    precision: Precision,  # the lowest allowed
    n_weights: int,
) -> Kernels:
    """Choose the kernels of a model whose LSTM layers have ``n_weights`` weights, not counting projections."""
    chosen = library.structs["kernels"]()
    library.choose_kernels(NAMES.index(precision), n_weights, ctypes.byref(chosen))
    return Kernels(NAMES[chosen.token_layer], NAMES[chosen.lstm], library.instructions)


def pointers(weights: Mapping[str, Floats], names: Sequence[str]) -> list[int | None]:
    """Return the addresses of arrays, None for missing ones. Keep the arrays alive as long as C reads them."""
    return [address(name, weights.get(name), np.float32) for name in names]


def open_packed(owner: object, library: Library, kind: str, struct: Any, precision: Precision) -> int | None:
    """Open packed weights of a kind, which are freed with their owner, and return C's handle."""
    handle = ctypes.c_void_p()
    open_kind = getattr(library, f"open_{kind}")
    check(library, open_kind(ctypes.byref(struct), NAMES.index(precision), ctypes.byref(handle)))
    close_with(owner, getattr(library, f"close_{kind}"), handle)
    return handle.value


def close_with(owner: object, close: Any, handle: ctypes.c_void_p) -> None:
    """Free packed weights when their owner is freed."""
    # But not at interpreter exit, when daemon threads may still be using them.
    weakref.finalize(owner, close, handle.value).atexit = False


def check(library: Library, reason: int) -> None:
    """Raise the error for a C function's return code; 0 means success."""
    if reason:
        errors = {
            "NO_MEMORY": MemoryError("There is too little memory for the model or the batch."),
            "BAD_SIZES": ValueError(WRONG_SIZES),
            "BAD_IDS": ValueError(UNKNOWN_IDS),
            "BAD_LAYER": ValueError("A layer is packed twice, or computed before all layers are packed."),
        }
        raise next(error for name, error in errors.items() if library.constants[name] == reason)
