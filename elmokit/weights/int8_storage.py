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
from typing import Any

import torch
from torch import Tensor

from elmokit.errors import FormatError, TensorMismatchError

SCALE = ".scale"
LARGEST = 127
_UPPER_HALF = -(1 << 16)  # the bits of a float32 number that bfloat16 keeps


def to_int8(tensors: Mapping[str, Tensor], unchanged: str) -> dict[str, Tensor]:
    """Convert the tensors of a model to their stored form.

    Args:
        tensors: By name.
        unchanged: Tensors whose name starts with this stay in float32.
    """
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        values = tensor.detach().float().cpu()
        if values.dim() < 2 or name.startswith(unchanged):
            stored[name] = values
            continue
        rows = values.flatten(1)
        scales = rows.abs().amax(dim=1) / LARGEST
        scales = (scales.view(torch.int32) & _UPPER_HALF).view(torch.float32)
        # The bound keeps rows of zeros, whose scale is 0, free of 0/0.
        integers = (rows / scales.clamp(min=torch.finfo().tiny)[:, None]).round().clamp(-LARGEST, LARGEST)
        stored[name] = integers.to(torch.int8).view(values.shape)
        stored[name + SCALE] = scales.bfloat16()
    return stored


class StoredTensors:
    """The tensors of an open safetensors file, whether stored as floating-point numbers or as integers with scales.

    Args:
        file: The file, from ``safe_open``.
        what: The file, for error messages.

    Raises:
        TensorMismatchError: Integers have no scales, or the number of scales is not that of the rows.

    Attributes:
        shapes: The shape of each tensor by name, without the scales.
    """

    def __init__(self, file: Any, what: str) -> None:
        self._file, self._what = file, what
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no dict)
        self.shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
        self._integers = {name for name, part in slices.items() if part.get_dtype() == "I8"}
        for name in self._integers:
            expected, found = self.shapes[name][:1], self.shapes.pop(name + SCALE, None)
            if found != expected or not expected:
                raise TensorMismatchError(
                    f"{what} holds {name} as integers of the shape {self.shapes[name]}, and its scales, "
                    f"{name + SCALE}, {'are missing' if found is None else f'have the shape {found}'}; expected one "
                    "scale for each row. Copy the file again."
                )

    def read(self, name: str) -> Tensor:
        """Return a tensor; integers are multiplied by their scales.

        Raises:
            FormatError: A scale is negative, or not a number.
        """
        tensor: Tensor = self._file.get_tensor(name)
        if name not in self._integers:
            return tensor
        scales: Tensor = self._file.get_tensor(name + SCALE).float()
        # A sign or a NaN in a scale would change a whole row, without any weight that looks wrong.
        if not bool((scales.isfinite() & (scales >= 0)).all()):
            raise FormatError(
                f"{self._what} holds scales in {name + SCALE} that are negative, NaN or infinite. Training diverged, "
                "or the file is damaged: download or copy it again."
            )
        return tensor.float() * scales.view(-1, *[1] * (tensor.dim() - 1))
