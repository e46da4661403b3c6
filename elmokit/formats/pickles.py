"""Read tensors that PyTorch pickled, a state dict or one matrix, without running code from the pickle.

A pickle can run any code when it is loaded, and can declare a tensor of any size in a few bytes. So what it says is
checked before a number is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from elmokit.engine.state import Floats
from elmokit.errors import FormatError, ModelNotFoundError
from elmokit.formats.torch_file import Array, ForeignNameError, StoredTensor, TorchFile

_ADVICE = "It may be cut short: download or copy it again."


def read_state_dict(path: Path, parts: Sequence[str] = ()) -> dict[str, Array]:
    """Read the tensors of a state dict, or of a dict of the state dicts ``parts``, as ``part.name``."""
    try:
        with path.open("rb") as file:
            return _read_state_dict(file, path, parts)
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path} is missing.") from None
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror or error}.") from None


def read_matrix(path: Path) -> Floats:
    """Read one tensor or NumPy array of numbers, as float32."""
    try:
        with path.open("rb") as file:
            opened = TorchFile(file)
            content = opened.content
            if isinstance(content, StoredTensor):
                _check_size([content], opened.n_bytes, path)
                content = opened.read(content)
            if not isinstance(content, np.ndarray):
                raise FormatError(f"{path} is not a matrix saved with torch.save: it holds something else.")
            with np.errstate(over="ignore"):  # infinity, which no use of a matrix accepts
                return content.astype(np.float32)
    except FileNotFoundError:
        raise ModelNotFoundError(f"The matrix {path} is missing.") from None
    except FormatError:
        raise
    except Exception as error:  # damaged bytes raise exceptions of any type
        raise FormatError(f"{path} is not a matrix saved with torch.save ({_reason(error)}).") from None


def _read_state_dict(file: IO[bytes], path: Path, parts: Sequence[str]) -> dict[str, Array]:
    try:
        opened = TorchFile(file)
        tensors = _checked(opened.content, path, parts)
        # Tied weights are one tensor with several names, in the file and here.
        distinct = set(tensors.values())
        _check_size(distinct, opened.n_bytes, path)
        arrays = {tensor: opened.read(tensor) for tensor in distinct}
        return {name: arrays[tensor] for name, tensor in tensors.items()}
    except ForeignNameError as error:
        if error.is_tensor:
            raise _other_content(path) from None
        raise FormatError(
            f"{path} asks for {error.name}, which is not a tensor: it holds code or objects, and none of it was run. "
            "Get the file from its original source, or save the model's state_dict() alone."
        ) from None
    except FormatError:
        raise
    except Exception as error:  # damaged bytes raise exceptions of any type
        raise FormatError(f"{path} is not a readable PyTorch state dict ({_reason(error)}). {_ADVICE}") from None


def _reason(error: Exception) -> str:
    """Return the first sentence of a message."""
    return str(error).splitlines()[0].split(". ")[0] if str(error) else type(error).__name__


def _checked(content: Any, path: Path, parts: Sequence[str]) -> dict[str, StoredTensor]:
    """Return the content if it is named tensors."""
    if parts:
        if not isinstance(content, dict) or set(content) != set(parts) or not all(map(_is_dict, content.values())):
            raise FormatError(f"{path} is a pickle, but does not hold the state dicts {' and '.join(parts)}.")
        content = {f"{part}.{name}": tensor for part in parts for name, tensor in content[part].items()}
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(tensor, StoredTensor) for name, tensor in content.items()
    ):
        raise _other_content(path)
    return content


def _other_content(path: Path) -> FormatError:
    return FormatError(f"{path} is a pickle, but not a state dict: expected plain tensors by name.")


def _is_dict(content: Any) -> bool:
    return isinstance(content, dict)


def _check_size(tensors: Iterable[StoredTensor], n_bytes: int, path: Path) -> None:
    """Refuse more numbers than fit in a file of ``n_bytes``."""
    declared = sum(tensor.n_bytes for tensor in tensors)
    if declared > n_bytes:
        raise FormatError(
            f"{path} declares tensors of {declared:,} bytes and is itself {n_bytes:,} bytes long. "
            "It is cut short or forged: download or copy it again."
        )
