"""Read tensors from files of ``torch.save``, but no other objects, so no code in a file is run.

The tensors are those of a state dict, or the published alignment matrices that AllenNLP 0.9's
``ElmoTokenEmbedderMultiLang`` used (``aligning_files``).

Only these files need PyTorch; models converted to another format do not.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmokit.engine.state import Floats
from elmokit.errors import needs_torch, reading

if TYPE_CHECKING:
    from torch import Tensor

from collections.abc import Sequence

from elmokit.engine.architecture import BiLMConfig
from elmokit.engine.layer_selection import LayerAlignment
from elmokit.errors import ConfigError, FormatError
from elmokit.formats.fetch import local_path


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a state dict, bfloat16 as float32."""
    content = _load(path, "PyTorch state dict")
    with reading(path, "PyTorch state dict", Exception):
        if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
            raise TypeError("expected a dict of tensors")
        return {name: _plain(tensor) for name, tensor in content.items()}


def read_matrix(path: Path) -> Floats:
    """Read a single tensor or NumPy array as float32."""
    content = _load(path, "matrix saved with torch.save")
    with reading(path, "matrix saved with torch.save", Exception):
        import torch

        return _plain(torch.as_tensor(content)).float().numpy()


def _load(path: Path, what: str) -> Any:
    with needs_torch(f"Reading {path}, a file of torch.save,"):
        import torch
    # Published alignments are NumPy arrays. NumPy 2 renamed the function that unpickles them.
    build: Any = np.empty(0).__reduce__()[0]
    names = [(build, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    dtypes = [type(np.dtype(name)) for name in ("float32", "float64", "int64")]
    with reading(path, what, Exception), torch.serialization.safe_globals([*names, np.ndarray, np.dtype, *dtypes]):
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            # PyTorch's message is long, and suggests running the code.
            wanted = re.search(r"GLOBAL (\S+)", str(error))
            reason = f"it needs {wanted[1]}, which is not run" if wanted else "damaged, or from another program"
            raise ValueError(reason) from None


def _plain(tensor: Any) -> Tensor:
    """Check that a value is a tensor of real numbers, and detach it."""
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_complex():
        raise TypeError(f"expected plain tensors of real numbers, found {tensor!r:.40}")
    plain: Tensor = tensor.detach()
    return plain.float() if plain.dtype == torch.bfloat16 else plain


def read_alignment(sources: Sequence[str | Path], config: BiLMConfig) -> LayerAlignment:
    """Read alignment matrices, one for all layers or one per layer from layer 0, without running code."""
    # AllenNLP multiplied the mix of layers by one matrix. Multiplying each layer by it gives the same mix, because both
    # are linear.
    n_layers = config.n_layers + 1
    if len(sources) not in (1, n_layers):
        raise ConfigError(
            f"There are {len(sources)} alignment matrices, but the model has {n_layers} layers; pass one or {n_layers}."
        )
    matrices = [read_alignment_matrix(source, config.output_dim) for source in sources]
    return LayerAlignment.of_matrices(np.stack(matrices * n_layers if len(sources) == 1 else matrices))


def read_alignment_matrix(source: str | Path, dim: int) -> Floats:
    """Read a matrix ``(dim, dim)`` without running code from its pickle."""
    matrix = read_matrix(local_path(source))
    if matrix.shape != (dim, dim):
        raise FormatError(f"The matrix in {source} has shape {matrix.shape}; expected ({dim}, {dim}).")
    return matrix
