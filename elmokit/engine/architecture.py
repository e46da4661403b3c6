"""The architecture of a biLM: sizes, switches, and the resulting tensor shapes."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, replace
from typing import Literal

from elmokit.config import (
    MAX_LAYERS,
    MAX_UNITS,
    check_at_least,
    check_at_most,
    check_choice,
    check_fraction,
    check_positive,
    setting,
)
from elmokit.errors import ConfigError

Activation = Literal["relu", "tanh"]
Shape = tuple[int, ...]
DIRECTIONS: tuple[Literal["forward"], Literal["backward"]] = ("forward", "backward")

# TensorFlow 1's `LSTMCell(forget_bias=1.0)` adds it in every step and does not store it. Forget gates that start open
# let gradients flow further back early in training (Jozefowicz et al. 2015).
FORGET_OFFSET = 1.0
MIN_CHARS = 3  # a token's begin and end marks, and one character between them
# Upper bounds, so a damaged configuration file causes an error instead of an attempt to allocate terabytes.
MAX_CHARS, MAX_ROWS = 10_000, 1_000_000_000


@dataclass(frozen=True)
class CharCNNConfig:
    """Sizes of the char CNN. The defaults are those of the original English ELMo."""

    filters: tuple[tuple[int, int], ...] = setting(
        ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)),
        "Width in characters and number of filters of each convolution.",
    )
    char_dim: int = setting(16, "Size of a character's vector.")
    n_highway: int = setting(2, "Number of highway layers.")
    activation: Activation = setting("relu", "Activation function after the convolutions.")
    max_chars: int = setting(50, "Characters (UTF-8 bytes) per token, including its begin and end marks.")
    n_chars: int = setting(261, "Number of distinct characters.")

    def __post_init__(self) -> None:
        if not self.filters or any(len(spec) != 2 or min(spec) < 1 for spec in self.filters):
            raise ConfigError(f"filters is {list(self.filters)}. Expected pairs (width, count), both at least 1.")
        widest = max(width for width, _ in self.filters)
        check_choice("activation", self.activation, ("relu", "tanh"))
        check_at_least("char_dim", self.char_dim, 1, MAX_UNITS)
        check_at_least("n_chars", self.n_chars, 1, MAX_ROWS)
        check_at_least("n_highway", self.n_highway, 0, MAX_LAYERS)
        check_at_least("max_chars", self.max_chars, max(widest, MIN_CHARS), MAX_CHARS)  # a token must fill every filter
        check_at_most("The total number of filters", self.n_features, MAX_UNITS)

    @property
    def n_features(self) -> int:
        """Number of features: the total number of filters."""
        return sum(count for _, count in self.filters)


@dataclass(frozen=True)
class WordFeaturesConfig:
    """Sizes of a word table whose vectors are concatenated with the char CNN's features, as in ELMoForManyLangs.

    If ``word_dim`` equals ``projection_dim``, a tied softmax can share the table. Layer 0 is then the sum of a word's
    row in the softmax and its spelling. Words outside the vocabulary have a row of zeros.
    """

    n_words: int = setting(MISSING, "Number of words.")
    word_dim: int = setting(100, "Size of a word's vector.")

    def __post_init__(self) -> None:
        for name, most in (("n_words", MAX_ROWS), ("word_dim", MAX_UNITS)):
            check_at_least(name, getattr(self, name), 1, most)


@dataclass(frozen=True)
class BiLMConfig:
    """The architecture of a biLM. The defaults are those of the original English ELMo.

    A model reads tokens as characters (``char_cnn``), as word ids (``n_words``), or as a word id together with
    characters (``word_features``, and ``char_cnn`` unless it is None).
    """

    char_cnn: CharCNNConfig | None = setting(
        CharCNNConfig(), "Sizes of the char CNN; false for a model that does not read characters."
    )
    n_words: int | None = setting(None, "Size of the vocabulary of a model that reads word ids.")
    word_features: WordFeaturesConfig | None = setting(
        None, "Sizes of a word table used in addition to the characters."
    )
    projection_dim: int = setting(512, "Output size per direction.")
    hidden_dim: int = setting(4096, "Size of the LSTM cells. If equal to projection_dim, there is no projection.")
    n_layers: int = setting(2, "Number of LSTM layers per direction.")
    cell_clip: float | None = setting(3.0, "Bound on the magnitude of the cells; `false` disables it.")
    projection_clip: float | None = setting(
        3.0, "Bound on the magnitude of the projected outputs; `false` disables it."
    )
    skip_connections: bool = setting(True, "Add a layer's input to its output, from the second layer on.")
    bidirectional: bool = setting(True, "Train both directions, or only the forward one.", off_flag="--forward-only")
    dropout: float = setting(
        0.1, "Dropout probability during training, applied to the inputs of LSTM layers and to the top output."
    )

    def __post_init__(self) -> None:
        if (self.char_cnn is None and self.word_features is None) == (self.n_words is None):
            raise ConfigError(
                "A model reads either characters or word ids: set char_cnn, word_features or both, or else n_words."
            )
        check_at_least("n_words", self.n_words, 1, MAX_ROWS, optional=True)
        check_at_least("projection_dim", self.projection_dim, 1)
        check_at_least("hidden_dim", self.hidden_dim, 1, MAX_UNITS)
        check_at_least("n_layers", self.n_layers, 1, MAX_LAYERS)
        check_at_most("projection_dim", self.projection_dim, self.hidden_dim)
        check_positive("cell_clip", self.cell_clip)
        check_positive("projection_clip", self.projection_clip)
        check_fraction("dropout", self.dropout)

    @property
    def n_directions(self) -> int:
        """2 for a bidirectional model, else 1."""
        return 2 if self.bidirectional else 1

    @property
    def read_backward(self) -> tuple[bool, ...]:
        """For each direction, whether it reads sentences backward."""
        return (False, True) if self.bidirectional else (False,)

    @property
    def direction_names(self) -> list[Literal["forward", "backward"]]:
        """The names of the directions, in the order used by all results with one value per direction."""
        return [DIRECTIONS[backward] for backward in self.read_backward]

    @property
    def word_table(self) -> str | None:
        """The name of the word table if its rows have the size of the outputs, so a softmax can share it."""
        if self.n_words is not None:
            return "token_layer.embedding.weight"
        words = self.word_features
        return "token_layer.word_embedding.weight" if words and words.word_dim == self.projection_dim else None

    @property
    def ids_per_token(self) -> int | None:
        """Number of ids per token if tokens have a word and characters; None if tokens may have fewer characters.

        With fewer ids, a character would be mistaken for the word.
        """
        if self.word_features is None:
            return None
        return 1 + (self.char_cnn.max_chars if self.char_cnn is not None else 0)

    @property
    def n_table_words(self) -> int | None:
        """Number of words in the :attr:`word_table`; None if there is none."""
        if self.word_table is None:
            return None
        return self.n_words if self.word_features is None else self.word_features.n_words

    def with_table_words(self, n_words: int) -> BiLMConfig:
        """Return this architecture with a different number of words in its :attr:`word_table`."""
        if self.word_features is None:
            return replace(self, n_words=n_words)
        return replace(self, word_features=replace(self.word_features, n_words=n_words))

    @property
    def output_dim(self) -> int:
        """Size of each layer's vectors: the outputs of all directions, concatenated."""
        return self.n_directions * self.projection_dim


_SMALL_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 128), (6, 128))
PRESETS: dict[str, BiLMConfig] = {
    "tiny": BiLMConfig(CharCNNConfig(((1, 8), (2, 16), (3, 32)), 8, 1), projection_dim=32, hidden_dim=64),
    "mini": BiLMConfig(CharCNNConfig(_SMALL_FILTERS, n_highway=1), projection_dim=128, hidden_dim=512),
    "small": BiLMConfig(CharCNNConfig(n_highway=1), projection_dim=128, hidden_dim=1024),
    "medium": BiLMConfig(CharCNNConfig(n_highway=1), projection_dim=256, hidden_dim=2048),
    "original": BiLMConfig(),
}
"""Architectures by name. "small", "medium" and "original" are the published ones; "mini" is for CPUs."""


def tensor_shapes(config: BiLMConfig) -> dict[str, Shape]:
    """Return the shape of each tensor of a biLM, by name.

    The names are those in the PyTorch module's state dict and in elmokit's own files.
    """
    return {
        **{f"token_layer.{name}": shape for name, shape in _token_layer_shapes(config).items()},
        **{
            f"directions.{direction}.layers.{layer}.{name}": shape
            for direction in range(config.n_directions)
            for layer in range(config.n_layers)
            for name, shape in _lstm_shapes(config).items()
        },
    }


def _token_layer_shapes(config: BiLMConfig) -> dict[str, Shape]:
    # Tables have one additional row: row 0 means "no token".
    dim, cnn, words = config.projection_dim, config.char_cnn, config.word_features
    if config.n_words is not None:
        return {"embedding.weight": (config.n_words + 1, dim)}
    if words is None:
        assert cnn is not None
        return _char_cnn_shapes(cnn, dim)
    shapes: dict[str, Shape] = {"word_embedding.weight": (words.n_words + 1, words.word_dim)}
    n_features = words.word_dim
    if cnn is not None:
        shapes |= {f"chars.{name}": shape for name, shape in _char_cnn_shapes(cnn, cnn.n_features).items()}
        n_features += cnn.n_features
    return shapes | {"projection.weight": (dim, n_features), "projection.bias": (dim,)}


def _char_cnn_shapes(config: CharCNNConfig, output_dim: int) -> dict[str, Shape]:
    n_features = config.n_features
    shapes: dict[str, Shape] = {"char_embedding.weight": (config.n_chars + 1, config.char_dim)}
    for number, (width, count) in enumerate(config.filters):
        shapes[f"convolutions.{number}.weight"] = (count, config.char_dim, width)
        shapes[f"convolutions.{number}.bias"] = (count,)
    for number in range(config.n_highway):
        for name in ("transform", "gate"):
            shapes[f"highways.{number}.{name}.weight"] = (n_features, n_features)
            shapes[f"highways.{number}.{name}.bias"] = (n_features,)
    if n_features != output_dim:
        shapes |= {"projection.weight": (output_dim, n_features), "projection.bias": (output_dim,)}
    return shapes


def _lstm_shapes(config: BiLMConfig) -> dict[str, Shape]:
    n_units, dim = config.hidden_dim, config.projection_dim
    shapes: dict[str, Shape] = {"weight": (4 * n_units, 2 * dim), "bias": (4 * n_units,)}
    return shapes | ({} if n_units == dim else {"projection": (dim, n_units)})
