"""PaddlePaddle's ELMo by its formulas, one sentence, one step at a time, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reference.bilm_numpy import sigmoid
from tests.reference.many_langs_numpy import without_boundaries

Array = NDArray[np.float64]
CLIP = 3.0


def read_direction(inputs: list[Array], direction: str, number: int, n_layers: int, tensors: Mapping[str, Any]) -> Any:
    """The outputs of each layer of ``dynamic_lstmp``; the blocks are candidate, input, forget and output gate."""
    layers = []
    for k in range(n_layers):
        lstm = f"lstmp_{number * n_layers + k}"
        gate_w, w, projection, bias = (
            np.asarray(tensors[name], dtype=np.float64)
            for name in (f"{direction}_layer{k + 1}_gate_w", f"{lstm}.w_0", f"{lstm}.w_1", f"{lstm}.b_0")
        )
        hidden_dim = projection.shape[0]
        h, c = np.zeros(projection.shape[1]), np.zeros(hidden_dim)
        outputs = []
        for x in inputs:
            sums = x @ gate_w + h @ w + bias[0]
            candidate, i, f, o = (sums[n * hidden_dim : (n + 1) * hidden_dim] for n in range(4))
            c = np.clip(np.tanh(candidate) * sigmoid(i) + c * sigmoid(f), -CLIP, CLIP)
            h = np.clip((sigmoid(o) * np.tanh(c)) @ projection, -CLIP, CLIP)
            outputs.append(h + x if k else h)
        layers.append(outputs)
        inputs = outputs
    return layers


def sentence_layers(ids: list[int], n_layers: int, tensors: Mapping[str, Any]) -> Array:
    """``(layers, tokens, 2 * dim)`` of the rows of a sentence with its boundaries, which are left out again."""
    table = np.asarray(tensors["embedding_para"], dtype=np.float64)
    vectors = [table[number] for number in ids]
    forward = read_direction(vectors, "fw", 0, n_layers, tensors)
    return without_boundaries(vectors, forward, read_direction(vectors[::-1], "bw", 1, n_layers, tensors))
