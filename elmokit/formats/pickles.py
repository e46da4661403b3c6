"""Read tensors that PyTorch pickled, a state dict or one matrix, without running code from the pickle.

A pickle can run any code when it is loaded, so this one only notes what it says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.engine.state import Floats
from elmokit.errors import reading
from elmokit.formats.torch_file import Array, StoredTensor, TorchFile


def read_state_dict(path: Path, parts: Sequence[str] = ()) -> dict[str, Array]:
    """Read the tensors of a state dict, or of a dict of the state dicts ``parts``, as ``part.name``."""
    with _opened(path, "PyTorch state dict") as opened:
        tensors = _checked(opened.content, parts)
        # Tied weights are one tensor with several names, in the file and here.
        arrays = {tensor: opened.read(tensor) for tensor in set(tensors.values())}
        return {name: arrays[tensor] for name, tensor in tensors.items()}


def read_matrix(path: Path) -> Floats:
    """Read one tensor or NumPy array of numbers, as float32."""
    with _opened(path, "matrix saved with torch.save") as opened:
        content = opened.content
        array = np.asarray(opened.read(content) if isinstance(content, StoredTensor) else content)
        with np.errstate(over="ignore"):  # infinity, which no use of a matrix accepts
            return array.astype(np.float32, casting="same_kind")  # of complex numbers, it would take the real parts


@contextlib.contextmanager
def _opened(path: Path, what: str) -> Iterator[TorchFile]:
    """Open a file, and turn whatever is wrong with it into an error that names it."""
    with reading(path, what, Exception), path.open("rb") as file:  # damaged bytes raise exceptions of any type
        yield TorchFile(file)


def _checked(content: Any, parts: Sequence[str]) -> dict[str, StoredTensor]:
    """Return the content if it is named tensors."""
    if parts and isinstance(content, dict) and set(content) == set(parts):
        content = {f"{part}.{name}": tensor for part in parts for name, tensor in dict(content[part]).items()}
    elif parts:
        content = None
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(tensor, StoredTensor) for name, tensor in content.items()
    ):
        dicts = f"the state dicts {' and '.join(parts)}" if parts else "a state dict"
        raise ValueError(f"it is a pickle, but not of {dicts}: expected plain tensors by name")
    return content
