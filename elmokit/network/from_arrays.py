"""Make PyTorch modules of the NumPy arrays of a model, without copying them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from elmokit.engine.config import BiLMConfig
from elmokit.engine.precision import Precision
from elmokit.engine.softmax import WordSoftmax
from elmokit.engine.state import Floats
from elmokit.network.bilm import BiLM
from elmokit.network.cached_char_cnn import CachedCharCNN
from elmokit.network.char_cnn import CharCNN
from elmokit.network.softmax import SoftmaxModule, build_softmax
from elmokit.network.tensors import tensor_of


def build_bilm(
    config: BiLMConfig,
    arrays: Mapping[str, Floats],
    precision: Precision | None = None,
    token_vectors: Floats | None = None,
) -> BiLM:
    """Return a biLM with these weights, and with a table of precomputed vectors ``(rows, projection_dim)`` if given."""
    with torch.device("meta"):
        bilm = BiLM(config, precision)
    load_arrays(bilm, arrays)
    if token_vectors is not None:
        assert isinstance(bilm.token_layer, CharCNN)
        bilm.token_layer = CachedCharCNN(bilm.token_layer, tensor_of(token_vectors))
    return bilm


def build_softmax_module(softmax: WordSoftmax, bilm: BiLM) -> SoftmaxModule:
    """Return a softmax with these weights; a tied one shares the word table of the biLM."""
    with torch.device("meta"):
        module = build_softmax(softmax.config, softmax.n_words, bilm.config.projection_dim, bilm.token_layer)
    load_arrays(module, softmax.arrays)
    return module


def load_arrays(module: nn.Module, arrays: Mapping[str, Floats]) -> None:
    """Load arrays into a module, which may be on the meta device."""
    # `assign`, because a parameter on the meta device has no memory to copy into.
    module.load_state_dict({name: tensor_of(array) for name, array in arrays.items()}, assign=True)
    module.eval()  # a loaded model is used as it is; training turns dropout on itself
