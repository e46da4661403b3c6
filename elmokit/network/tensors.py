"""Tensors of NumPy arrays, and in files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def tensor_of(array: NDArray[np.float32]) -> Tensor:
    """Return an array as a tensor, which shares its memory unless that is read-only."""
    # PyTorch could not keep anybody from writing to it. To a map of a file, that would end the process.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file.

    Raises:
        OSError: The file cannot be written.
    """
    # Imported here, because importing the network must read no more than its own code.
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode  # safetensors replaces the file with one that only its owner can read
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    path.chmod(mode)
