"""Weights as 8-bit integers in a file, with one scale for each row.

A matrix ``weight`` becomes ``weight`` (int8) and ``weight.scale`` (bfloat16, one for each output). Loading multiplies
the two. Tensors of one dimension are stored in float32: they are small, and biases of the softmax are word frequencies.

Why bfloat16 for the scales? An integer of 7 bits times a number of 8 bits has 15 bits, so a loaded weight is exactly
the sum of two bfloat16 numbers. The C function for the sum over the vocabulary needs two such numbers for weights
stored in float16, too; arbitrary float32 numbers need three, and more time. Scales are rounded down, and the largest
weight of each row becomes 127. The kernels for ``precision="int8"`` divide each row by its largest weight, so they
find the same integers again.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from elmokit.engine.state import Floats
from elmokit.errors import FormatError, TensorMismatchError
from elmokit.formats.tensor_file import Array, TensorFile

SCALE = ".scale"
LARGEST = 127
_HALF_BITS = 16  # of a float32 number; bfloat16 keeps the upper ones


def to_int8(arrays: Mapping[str, Floats], unchanged: str) -> dict[str, Array]:
    """Convert the tensors of a model to their stored form, scales as the bits of bfloat16 numbers.

    Args:
        arrays: By name.
        unchanged: Tensors whose name starts with this stay in float32.
    """
    stored: dict[str, Array] = {}
    for name, array in arrays.items():
        if array.ndim < 2 or name.startswith(unchanged):
            stored[name] = array
            continue
        rows = array.reshape(len(array), -1)
        bits = (np.abs(rows).max(axis=1) / np.float32(LARGEST)).view(np.uint32) >> _HALF_BITS
        scales = (bits << _HALF_BITS).view(np.float32)
        # The bound keeps rows of zeros, whose scale is 0, free of 0/0.
        integers = np.rint(rows / np.maximum(scales, np.finfo(np.float32).tiny)[:, None]).clip(-LARGEST, LARGEST)
        with np.errstate(invalid="ignore"):  # NaN, which the scale keeps
            stored[name] = integers.astype(np.int8).reshape(array.shape)
        stored[name + SCALE] = bits.astype(np.uint16)
    return stored


class StoredTensors:
    """The tensors of a safetensors file, whether stored as floating-point numbers or as integers with scales.

    Args:
        file: The file.
        what: The file, for error messages.

    Raises:
        TensorMismatchError: Integers have no scales, or the number of scales is not that of the rows.

    Attributes:
        shapes: The shape of each tensor by name, without the scales.
    """

    def __init__(self, file: TensorFile, what: str) -> None:
        self._file, self._what = file, what
        self.shapes = dict(file.shapes)
        self._integers = {name for name, dtype in file.dtypes.items() if dtype == "I8"}
        for name in self._integers:
            expected, shape = self.shapes[name][:1], self.shapes.pop(name + SCALE, None)
            if shape != expected or not expected:
                raise TensorMismatchError(
                    f"{what} holds {name} as integers of the shape {self.shapes[name]}, and its scales, "
                    f"{name + SCALE}, {'are missing' if shape is None else f'have the shape {shape}'}; expected one "
                    "scale for each row. Copy the file again."
                )

    def read(self, name: str) -> Array:
        """Return a tensor; integers are multiplied by their scales.

        Raises:
            FormatError: A scale is negative, or not a number.
        """
        array = self._file.read(name)
        if name not in self._integers:
            return array
        scales = self._file.read(name + SCALE).astype(np.float32)
        # A sign or a NaN in a scale would change a whole row, without any weight that looks wrong.
        if not bool((np.isfinite(scales) & (scales >= 0)).all()):
            raise FormatError(
                f"{self._what} holds scales in {name + SCALE} that are negative, NaN or infinite. Training diverged, "
                "or the file is damaged: download or copy it again."
            )
        return np.multiply(array, scales.reshape(-1, *[1] * (array.ndim - 1)), dtype=np.float32)
