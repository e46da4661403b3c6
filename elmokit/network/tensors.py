"""Convert, save and place tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import forward_ad

from elmokit.errors import ConfigError
from elmokit.storage.tensor_file import write_tensor_file


def tensor_of(array: NDArray[np.float32]) -> Tensor:
    """Convert an array to a tensor, which shares its memory unless the array is read-only."""
    # PyTorch has no read-only tensors, and writing to a memory-mapped file would crash the process.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file.

    Raises:
        OSError: The file cannot be written.
    """
    write_tensor_file({name: _array_of(tensor.detach().cpu()) for name, tensor in tensors.items()}, path)


def _array_of(tensor: Tensor) -> NDArray[Any]:
    if tensor.dtype == torch.bfloat16:  # NumPy has no such type, so use its bits
        return tensor.contiguous().view(torch.int16).numpy().view(np.uint16)
    array: NDArray[Any] = tensor.numpy()
    return array


def parse_device(device: str | torch.device) -> torch.device:
    """Return the device with the given name, after checking that a tensor can be created on it.

    Raises:
        ConfigError: The device does not exist or cannot be used.
    """
    named = name_device(device)
    try:
        torch.zeros(1, device=named).item()  # tensors on the device "meta" have no values
        return named
    except (RuntimeError, AssertionError) as error:  # PyTorch built without CUDA raises an AssertionError
        reason = str(error).splitlines()[0]
        if isinstance(error, NotImplementedError):  # its message lists all other backends
            reason = "PyTorch has nothing here that computes on it"
        raise ConfigError(f"device {str(device)!r} cannot be used: {reason}. Omit it to use the CPU.") from None


def name_device(device: str | torch.device) -> torch.device:
    """Return the device with the given name, even if this machine does not have it.

    Raises:
        ConfigError: PyTorch has no device with this name.
    """
    try:
        return torch.device(device)
    except RuntimeError:  # its message lists 20 kinds of hardware
        raise ConfigError(
            f"There is no device {device!r}. Choose 'cpu' or 'cuda', or 'cuda:1' for a second GPU."
        ) from None


def has_memory(tensor: Tensor) -> bool:
    """Check whether NumPy and C can read a tensor's values.

    They cannot inside ``torch.func`` or for dual tensors, and a subclass may store something else.
    """
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided:
        return False
    if forward_ad.unpack_dual(tensor).tangent is not None:  # type: ignore[no-untyped-call]
        return False
    try:
        tensor.data_ptr()
    except RuntimeError:  # wrapped by vmap, grad, jvp
        return False
    return True


def distinct_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct rows of an integer matrix, sorted, and each row's index among them.

    It is equivalent to ``torch.unique(rows, dim=0, return_inverse=True)``, which copies rows one by one; on a CPU, that
    took a tenth of the time of a short sentence.
    """
    if not rows.is_cpu or not rows.numel() or not has_memory(rows):
        distinct, index = torch.unique(rows, dim=0, return_inverse=True)
        return distinct, index
    # In big-endian order, the bytes of non-negative numbers sort like the numbers.
    ordered = np.ascontiguousarray(rows.numpy(), ">i8")
    keys = ordered.view(f"V{ordered.itemsize * ordered.shape[1]}")[:, 0].tolist()
    numbers = {key: number for number, key in enumerate(sorted(set(keys)))}
    in_order = np.frombuffer(b"".join(numbers), ">i8").astype(np.int64).reshape(len(numbers), -1)
    index = np.array([numbers[key] for key in keys])
    return torch.from_numpy(in_order), torch.from_numpy(index)
