"""Build a softmax from its config, and back."""

from __future__ import annotations

from torch import nn

from elmokit.engine.softmax import SoftmaxConfig
from elmokit.network.char_cnn import WordEmbedding
from elmokit.network.softmax import AdaptiveSoftmax, FullSoftmax, SoftmaxModule, TiedSoftmax


def build_softmax(config: SoftmaxConfig, n_words: int, input_dim: int, token_layer: nn.Module) -> SoftmaxModule:
    """Build a softmax with uninitialized parameters.

    Args:
        n_words: Size of the vocabulary.
        input_dim: Size of the LSTM's outputs (``projection_dim``).
        token_layer: The token layer of the biLM, whose embedding a tied softmax shares.

    Raises:
        ConfigError: The softmax does not fit the vocabulary or the biLM.
    """
    table = token_layer.embedding if isinstance(token_layer, WordEmbedding) else None
    config.check_sizes(n_words, input_dim, None if table is None else table.num_embeddings - 1)
    if table is not None and config.kind == "tied":
        return TiedSoftmax(table)
    if config.kind == "adaptive":
        return AdaptiveSoftmax(n_words, input_dim, config.cutoffs, config.shrink)
    return FullSoftmax(n_words, input_dim)


def softmax_config(softmax: SoftmaxModule) -> SoftmaxConfig:
    """Return the config that a softmax was built from."""
    if isinstance(softmax, AdaptiveSoftmax):
        return SoftmaxConfig("adaptive", tuple(softmax.stages.cutoffs[:-1]), softmax.stages.div_value)
    return SoftmaxConfig("tied" if isinstance(softmax, TiedSoftmax) else "full")
