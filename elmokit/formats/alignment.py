"""Read published alignment matrices, which AllenNLP 0.9's ``ElmoTokenEmbedderMultiLang`` used (``aligning_files``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from elmokit.engine.config import BiLMConfig
from elmokit.engine.layer_selection import LayerAlignment
from elmokit.engine.state import Floats
from elmokit.errors import ConfigError, FormatError
from elmokit.formats.fetch import local_path
from elmokit.formats.torch_save import read_matrix


def read_alignment(sources: Sequence[str | Path], config: BiLMConfig) -> LayerAlignment:
    """Read the matrices of an alignment, one for all layers or one for each, layer 0 first, without running code."""
    # AllenNLP multiplied the mix of the layers by one matrix. Multiplying every layer by it gives the same mix, because
    # both are linear.
    n_layers = config.n_layers + 1
    if len(sources) not in (1, n_layers):
        raise ConfigError(
            f"There are {len(sources)} alignment matrices, and the model has {n_layers} layers: give one or {n_layers}."
        )
    matrices = [read_alignment_matrix(source, config.output_dim) for source in sources]
    return LayerAlignment.of_matrices(np.stack(matrices * n_layers if len(sources) == 1 else matrices))


def read_alignment_matrix(source: str | Path, dim: int) -> Floats:
    """Read one matrix ``(dim, dim)`` without running code from its pickle."""
    matrix = read_matrix(local_path(source))
    if matrix.shape != (dim, dim):
        raise FormatError(f"The matrix in {source} has the shape {matrix.shape}; expected ({dim}, {dim}).")
    return matrix
