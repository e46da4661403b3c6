"""The choice of softmax: a config, the softmax built from it, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from elmokit.config import setting
from elmokit.errors import ConfigError
from elmokit.nn.char_cnn import WordEmbedding
from elmokit.nn.softmax import AdaptiveSoftmax, FullSoftmax, Softmax, TiedSoftmax


@dataclass(frozen=True)
class SoftmaxConfig:
    """The softmax: ``full`` as in bilm-tf, ``tied`` to the embedding of a word-input model, or ``adaptive``."""

    kind: Literal["full", "tied", "adaptive"] = setting("full", "The kind of softmax.")
    cutoffs: tuple[int, ...] = setting((), "The first word of each tail of an adaptive softmax, such as 2000,10000.")
    shrink: float = setting(4.0, "Each tail of an adaptive softmax is this many times narrower than the one before.")

    def __post_init__(self) -> None:
        if self.kind not in ("full", "tied", "adaptive"):
            raise ConfigError(f"softmax kind is {self.kind!r}; it is 'full', 'tied' or 'adaptive'.")
        ascending = all(low < high for low, high in zip((0, *self.cutoffs), self.cutoffs, strict=False))
        if (self.kind == "adaptive") != bool(self.cutoffs) or not ascending:
            raise ConfigError(
                f"cutoffs are {list(self.cutoffs)} of a softmax of kind {self.kind!r}; an adaptive one needs some, "
                "ascending and above 0, such as [2000, 10000], and the others none."
            )
        if not self.shrink >= 1:
            raise ConfigError(f"shrink is {self.shrink}; tails become narrower, so it must be at least 1.")


def build_softmax(config: SoftmaxConfig, n_words: int, input_dim: int, token_layer: nn.Module) -> Softmax:
    """Build a softmax with uninitialized parameters.

    Args:
        n_words: Size of the vocabulary.
        input_dim: Size of the LSTM's outputs (``projection_dim``).
        token_layer: The token layer of the biLM, whose embedding a tied softmax shares.

    Raises:
        ConfigError: The softmax does not fit the vocabulary or the biLM.
    """
    if config.kind == "full":
        return FullSoftmax(n_words, input_dim)
    if config.kind == "tied":
        if not isinstance(token_layer, WordEmbedding) or token_layer.embedding.num_embeddings - 1 != n_words:
            raise ConfigError(
                "A tied softmax shares the embedding of a word-input model with the same words. Read words instead "
                f"of characters (n_words {n_words}, no char_cnn), or choose a full softmax."
            )
        return TiedSoftmax(token_layer.embedding)
    if config.cutoffs[-1] >= n_words:
        raise ConfigError(
            f"The last cutoff is {config.cutoffs[-1]} and the vocabulary holds {n_words} words. Lower the cutoffs."
        )
    if input_dim < config.shrink ** len(config.cutoffs):
        raise ConfigError(
            f"{len(config.cutoffs)} tails, each {config.shrink:g} times narrower, leave nothing of {input_dim} "
            "dimensions. Lower shrink, or give fewer cutoffs."
        )
    return AdaptiveSoftmax(n_words, input_dim, config.cutoffs, config.shrink)


def softmax_config(softmax: Softmax) -> SoftmaxConfig:
    """Return the config that a softmax was built from."""
    if isinstance(softmax, AdaptiveSoftmax):
        return SoftmaxConfig("adaptive", tuple(softmax.stages.cutoffs[:-1]), softmax.stages.div_value)
    return SoftmaxConfig("tied" if isinstance(softmax, TiedSoftmax) else "full")
