"""Call the compiled C functions of ``elmokit.h``, and of other headers in its style, with NumPy arrays.

Headers are read when the library is loaded: their structs become ctypes structs, and their functions get the argument
types that they declare, so no signature is written down twice. ctypes releases the interpreter lock for the time of
each call.

C cannot check what an address leads to: :func:`address` does, for every array that is passed.
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
WRONG_SIZES = "The sizes of the model do not fit together."

_NUMBERS = {"int64_t": ctypes.c_int64, "float": ctypes.c_float, "double": ctypes.c_double}


class Library:
    """A compiled library, whose functions are attributes, by their names without ``elmokit_``.

    Args:
        path: The shared library.
        instructions: The instruction set that it was built for.
        headers: The text of the headers that declare its functions.

    Attributes:
        instructions: As given.
        structs: The structs of the headers, by their names without ``elmokit_``.
        constants: Their constants, by their names without ``ELMOKIT_``.
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
    """What headers declare."""

    def __init__(self) -> None:
        self.structs: dict[str, type[ctypes.Structure]] = {}
        self.constants: dict[str, int] = {}
        self.functions: dict[str, tuple[list[Any], Any]] = {}


def parse_header(text: str) -> Declarations:
    """Read the declarations of one or more headers, which use the part of C that ``elmokit.h`` does."""
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
    """Return the name and the type of a field or an argument."""
    kind, name = re.fullmatch(r"\s*(.*?)(\w+)\s*", text, flags=re.DOTALL).groups()  # type: ignore[union-attr]
    return name, ctypes.c_void_p if "*" in kind else _NUMBERS[kind.strip()]


def address(name: str, array: NDArray[Any] | None, dtype: Any, shape: Shape | None = None) -> int | None:
    """Return where the numbers of an array begin, which must stay alive while C reads it; None for no array."""
    if array is None:
        return None
    check_array(name, array, dtype, shape)
    return start_of(array)


def start_of(array: NDArray[Any]) -> int:
    """Return where the numbers of an array begin that was checked, or made here."""
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]


def check_array(
    name: str,  # for the error message
    array: NDArray[Any],
    dtype: Any,
    shape: Shape | None = None,  # None if any will do; -1 in it means any number
) -> None:
    """Check an array that a C function takes: a wrong one is a mistake in the calling code."""
    if array.dtype == dtype and array.flags.c_contiguous and (shape is None or _fits(array.shape, shape)):
        return
    expected = np.dtype(dtype).name if shape is None else f"{np.dtype(dtype)} {shape}"
    order = "" if array.flags.c_contiguous else ", not contiguous"
    raise ValueError(
        f"{name} must be a contiguous array of {expected}, but is one of {array.dtype} {array.shape}{order}."
    )


def _fits(shape: Shape, expected: Shape) -> bool:
    """Compare a shape with one in which -1 means any number."""
    if len(shape) != len(expected):
        return False
    return all(want in (-1, size) for want, size in zip(expected, shape, strict=True))


def choose_kernels(
    library: Library,
    precision: Precision,  # the lowest that is accepted
    n_weights: int,
) -> Kernels:
    """Describe what computes a model with LSTM layers of ``n_weights``, without their projections."""
    chosen = library.structs["kernels"]()
    library.choose_kernels(NAMES.index(precision), n_weights, ctypes.byref(chosen))
    return Kernels(NAMES[chosen.token_layer], NAMES[chosen.lstm], library.instructions)


def pointers(weights: Mapping[str, Floats], names: Sequence[str]) -> list[int | None]:
    """Return where arrays begin, which must stay alive for as long as C reads them; None for missing ones."""
    return [address(name, weights.get(name), np.float32) for name in names]


def open_packed(owner: object, library: Library, kind: str, struct: Any, precision: Precision) -> int | None:
    """Open packed weights of a kind, have them freed with their owner, and return what C calls them by."""
    handle = ctypes.c_void_p()
    open_kind = getattr(library, f"open_{kind}")
    check(library, open_kind(ctypes.byref(struct), NAMES.index(precision), ctypes.byref(handle)))
    close_with(owner, getattr(library, f"close_{kind}"), handle)
    return handle.value


def close_with(owner: object, close: Any, handle: ctypes.c_void_p) -> None:
    """Free packed weights when their owner is freed."""
    # Not when the interpreter exits, as `finalize` also would: daemon threads may still compute with them.
    weakref.finalize(owner, close, handle.value).atexit = False


def check(library: Library, reason: int) -> None:
    """Raise the error that a C function returned the reason of; do nothing for 0, which means success."""
    if reason:
        errors = {
            "NO_MEMORY": MemoryError("There is too little memory for the model or the batch."),
            "BAD_SIZES": ValueError(WRONG_SIZES),
            "BAD_IDS": ValueError(UNKNOWN_IDS),
            "BAD_LAYER": ValueError("A layer is packed twice, or computed before all layers are packed."),
        }
        raise next(error for name, error in errors.items() if library.constants[name] == reason)
