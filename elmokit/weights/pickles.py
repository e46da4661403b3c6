"""Read tensors that PyTorch pickled, a state dict or one matrix, without running code from the pickle.

A pickle can run any code when it is loaded. Only torch's ``weights_only`` mode is used, which knows tensors and plain
containers and refuses everything else. Tensors are always read onto the CPU, because old files were saved from a GPU.
Both containers of PyTorch are read: today's zip archive, and the bare pickle of PyTorch 0.4 to 1.5.
"""

from __future__ import annotations

import _codecs
import io
import pickle
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from elmokit.errors import FormatError, ModelNotFoundError

_ZIP_MAGIC = b"PK\x03\x04"


def read_state_dict(path: Path, parts: Sequence[str] = ()) -> dict[str, Tensor]:
    """Read the tensors of a state dict by name, onto the CPU.

    Args:
        parts: If the file holds a dict of state dicts, the names of all of them. Their tensors are returned with the
            name of the part and a dot in front.

    Raises:
        ModelNotFoundError: The file does not exist.
        FormatError: The file is damaged, holds anything but named tensors, or declares more numbers than it holds.
    """
    try:
        with path.open("rb") as file:
            return _read(file, path, parts)
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path} is missing.") from None
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror or error}.") from None


def read_matrix(path: Path) -> Tensor:
    """Read one tensor or NumPy array of numbers, as float32 onto the CPU.

    Raises:
        ModelNotFoundError: The file does not exist.
        FormatError: The file is damaged, holds anything else, or declares more numbers than it holds.
    """
    try:
        with path.open("rb") as file, torch.serialization.safe_globals(_numpy_names()):
            n_bytes = _n_bytes(file)
            if _is_zip(file):
                _check_size([torch.as_tensor(_load(file, "meta"))], n_bytes, path)
            content = torch.as_tensor(_load(file, "cpu"))
            _check_size([content], n_bytes, path)
            return content.to(torch.float32)
    except FileNotFoundError:
        raise ModelNotFoundError(f"The matrix {path} is missing.") from None
    except FormatError:
        raise
    except Exception as error:  # damaged bytes raise exceptions of any type
        raise FormatError(f"{path} is not a matrix saved with torch.save ({_reason(error)}).") from None


def _numpy_names() -> list[Any]:
    """Return what the pickle of a NumPy array of numbers asks for, under its names before and since NumPy 2."""
    rebuild = np.zeros(1).__reduce__()[0]
    names = [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    kinds = [type(np.dtype(kind)) for kind in (np.float32, np.float64)]
    return [*names, np.ndarray, np.dtype, *kinds, _codecs.encode]


def _read(file: IO[bytes], path: Path, parts: Sequence[str]) -> dict[str, Tensor]:
    # A pickle can declare a tensor of any size in a few bytes, and torch would allocate it.
    n_bytes = _n_bytes(file)
    if _is_zip(file):
        _checked(_loaded(file, "meta", path), n_bytes, path, parts)  # check the sizes before anything is allocated
    # The old format has no sizes that can be read without the data, so it is checked afterwards only.
    return _checked(_loaded(file, "cpu", path), n_bytes, path, parts)


def _n_bytes(file: IO[bytes]) -> int:
    return file.seek(0, io.SEEK_END)


def _is_zip(file: IO[bytes]) -> bool:
    file.seek(0)
    return file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC


def _load(file: IO[bytes], device: str) -> Any:
    file.seek(0)
    return torch.load(file, map_location=device, weights_only=True)


def _reason(error: Exception) -> str:
    """Return the first sentence of a message of torch, which can be a page long."""
    return str(error).splitlines()[0].split(". ")[0] if str(error) else type(error).__name__


def _loaded(file: IO[bytes], device: str, path: Path) -> Any:
    try:
        return _load(file, device)
    except pickle.UnpicklingError as error:
        # torch names the class that it refused; that name tells the user what is in the file.
        if found := re.search(r"GLOBAL (\S+)", str(error)):
            raise FormatError(
                f"{path} asks for {found[1]}, which is not a tensor: it holds code or objects, and none of it was run. "
                "Get the file from its original source, or save the model's state_dict() alone."
            ) from None
        raise FormatError(f"{path} is not a readable PyTorch state dict. {_ADVICE}") from None
    except Exception as error:  # damaged bytes raise exceptions of any type
        raise FormatError(f"{path} is not a readable PyTorch state dict ({_reason(error)}). {_ADVICE}") from None


_ADVICE = "It may be cut short: download or copy it again."


def _checked(content: Any, n_bytes: int, path: Path, parts: Sequence[str]) -> dict[str, Tensor]:
    """Return the content if it is named tensors, and no more of them than fit in a file of ``n_bytes``."""
    if parts:
        if not isinstance(content, dict) or set(content) != set(parts) or not all(map(_is_dict, content.values())):
            raise FormatError(f"{path} is a pickle, but does not hold the state dicts {' and '.join(parts)}.")
        content = {f"{part}.{name}": tensor for part in parts for name, tensor in content[part].items()}
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided
        for name, tensor in content.items()
    ):
        raise FormatError(f"{path} is a pickle, but not a state dict: expected plain tensors by name.")
    _check_size(content.values(), n_bytes, path)
    return content


def _is_dict(content: Any) -> bool:
    return isinstance(content, dict)


def _check_size(tensors: Iterable[Tensor], n_bytes: int, path: Path) -> None:
    declared = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if declared > n_bytes:
        raise FormatError(
            f"{path} declares tensors of {declared:,} bytes and is itself {n_bytes:,} bytes long. "
            "It is cut short or forged: download or copy it again."
        )
