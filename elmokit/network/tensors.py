"""Tensors of NumPy arrays, and in files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmokit.storage.tensor_file import write_tensor_file


def tensor_of(array: NDArray[np.float32]) -> Tensor:
    """Return an array as a tensor, which shares its memory unless that is read-only."""
    # PyTorch could not keep anybody from writing to it. To a map of a file, that would end the process.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file.

    Raises:
        OSError: The file cannot be written.
    """
    write_tensor_file({name: _array_of(tensor.detach().cpu()) for name, tensor in tensors.items()}, path)


def _array_of(tensor: Tensor) -> NDArray[Any]:
    if tensor.dtype == torch.bfloat16:  # which NumPy does not have: its bits
        return tensor.contiguous().view(torch.int16).numpy().view(np.uint16)
    array: NDArray[Any] = tensor.numpy()
    return array
