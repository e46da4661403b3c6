"""The biLM: one network, used for training and for embedding.

Characters (or word ids, or both) -> token vectors -> L layers of LSTM in each direction. The network knows no
files, no strings and no special ids; sentence boundaries are tokens like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elmokit.config import check_at_least
from elmokit.errors import ConfigError
from elmokit.nn.char_cnn import Activation, CharCNN, WordCharLayer, WordEmbedding
from elmokit.nn.lstm import LSTMStack, LSTMState

MIN_CHARS = 3  # a token's begin and end marks and one character between them
# A damaged configuration should say so rather than fill the memory.
MOST_CHARS, MOST_LAYERS, MOST_UNITS, MOST_ROWS = 10_000, 1_000, 1_000_000, 1_000_000_000


@dataclass(frozen=True)
class CharCNNConfig:
    """Sizes of the char CNN; the defaults are those of the original English ELMo."""

    filters: tuple[tuple[int, int], ...] = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    char_dim: int = 16
    n_highway: int = 2
    activation: Activation = "relu"
    max_chars: int = 50
    n_chars: int = 261

    def __post_init__(self) -> None:
        if not self.filters or any(len(spec) != 2 or min(spec) < 1 for spec in self.filters):
            raise ConfigError(f"filters are pairs (width, count), both at least 1; given {list(self.filters)}.")
        widest = max(width for width, _ in self.filters)
        if self.max_chars < max(widest, MIN_CHARS):
            raise ConfigError(
                f"max_chars is {self.max_chars}, but the widest filter spans {widest} characters and a token needs "
                f"{MIN_CHARS}. Raise max_chars to at least {max(widest, MIN_CHARS)}, or drop the wider filters."
            )
        if self.activation not in ("relu", "tanh"):
            raise ConfigError(f"activation is {self.activation!r}; the char CNN knows 'relu' and 'tanh'.")
        for name, least in (("char_dim", 1), ("n_chars", 1), ("n_highway", 0), ("max_chars", MIN_CHARS)):
            check_at_least(name, getattr(self, name), least)
        _check_at_most("n_highway", self.n_highway, MOST_LAYERS)
        _check_at_most("max_chars", self.max_chars, MOST_CHARS)
        _check_at_most("char_dim", self.char_dim, MOST_UNITS)
        _check_at_most("The number of all filters", self.n_features, MOST_UNITS)
        _check_at_most("n_chars", self.n_chars, MOST_ROWS)

    @property
    def n_features(self) -> int:
        """Features of all filters together."""
        return sum(count for _, count in self.filters)


@dataclass(frozen=True)
class WordFeaturesConfig:
    """Sizes of a word table whose vectors stand before the char CNN's features; as in ELMoForManyLangs."""

    n_words: int
    word_dim: int = 100

    def __post_init__(self) -> None:
        for name, most in (("n_words", MOST_ROWS), ("word_dim", MOST_UNITS)):
            check_at_least(name, getattr(self, name), 1)
            _check_at_most(name, getattr(self, name), most)


@dataclass(frozen=True)
class BiLMConfig:
    """Sizes and switches of a biLM; the defaults are those of the original English ELMo.

    Tokens come in as characters (``char_cnn``), or as ids of ``n_words`` words when ``char_cnn`` is None. With
    ``word_features`` they come in as a word id and, where ``char_cnn`` is given too, characters: one projection
    brings both to ``projection_dim``.
    ``cell_clip`` and ``projection_clip`` bound magnitudes inside the LSTM cell, None for no bound.
    ``dropout`` acts in training only.
    """

    char_cnn: CharCNNConfig | None = field(default_factory=CharCNNConfig)
    n_words: int | None = None
    word_features: WordFeaturesConfig | None = None
    projection_dim: int = 512
    hidden_dim: int = 4096
    n_layers: int = 2
    cell_clip: float | None = 3.0
    projection_clip: float | None = 3.0
    skip_connections: bool = True
    bidirectional: bool = True
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if (self.char_cnn is None and self.word_features is None) == (self.n_words is None):
            raise ConfigError(
                "Tokens come in one way: give sizes in char_cnn, word_features or these two; or char_cnn none and "
                "n_words, not both."
            )
        if self.n_words is not None:
            check_at_least("n_words", self.n_words, 1)
            _check_at_most("n_words", self.n_words, MOST_ROWS)
        for name in ("projection_dim", "hidden_dim", "n_layers"):
            check_at_least(name, getattr(self, name), 1)
        _check_at_most("n_layers", self.n_layers, MOST_LAYERS)
        _check_at_most("hidden_dim", self.hidden_dim, MOST_UNITS)
        if self.projection_dim > self.hidden_dim:
            raise ConfigError(
                f"projection_dim is {self.projection_dim} and hidden_dim {self.hidden_dim}: a projection goes down. "
                f"Lower projection_dim to at most {self.hidden_dim}."
            )
        for name in ("cell_clip", "projection_clip"):
            clip = getattr(self, name)
            if clip is not None and not clip > 0:
                raise ConfigError(f"{name} is {clip}; give a number above 0, or none for no clip.")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout is {self.dropout}; it is a share of units from 0 to below 1.")

    @property
    def n_directions(self) -> int:
        """2 for a bidirectional model, else 1."""
        return 2 if self.bidirectional else 1

    @property
    def output_dim(self) -> int:
        """Size of each layer's vectors: the directions side by side."""
        return self.n_directions * self.projection_dim


def _check_at_most(name: str, value: int, most: int) -> None:
    if value > most:
        raise ConfigError(f"{name} is {value:,}; at most {most:,} are built.")


_SMALL_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 128), (6, 128))
PRESETS: dict[str, BiLMConfig] = {
    "tiny": BiLMConfig(CharCNNConfig(((1, 8), (2, 16), (3, 32)), 8, 1), projection_dim=32, hidden_dim=64),
    "mini": BiLMConfig(CharCNNConfig(_SMALL_FILTERS, n_highway=1), projection_dim=128, hidden_dim=512),
    "small": BiLMConfig(CharCNNConfig(n_highway=1), projection_dim=128, hidden_dim=1024),
    "medium": BiLMConfig(CharCNNConfig(n_highway=1), projection_dim=256, hidden_dim=2048),
    "original": BiLMConfig(),
}
"""Sizes by name: small, medium and original as published, mini as shipped in this package, tiny for trials."""


class BiLMState(NamedTuple):
    """What a biLM hands from one window or batch to the next. Row r belongs to batch row r."""

    hidden: Tensor  # (directions, layers, batch, projection_dim)
    cell: Tensor  # (directions, layers, batch, hidden_dim)

    @property
    def n_rows(self) -> int:
        """Batch rows."""
        return self.hidden.shape[2]

    def of_direction(self, direction: int) -> list[LSTMState]:
        """The states of one direction's layers."""
        return [LSTMState(h, c) for h, c in zip(self.hidden[direction], self.cell[direction], strict=True)]

    def detach(self) -> BiLMState:
        """The same numbers, cut off from the gradient."""
        return BiLMState(self.hidden.detach(), self.cell.detach())

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> BiLMState:
        """The same numbers elsewhere."""
        return BiLMState(self.hidden.to(device, dtype), self.cell.to(device, dtype))

    def repeat_row(self, n_rows: int) -> BiLMState:
        """A state of one row, given to ``n_rows`` rows."""
        return BiLMState(self.hidden.expand(-1, -1, n_rows, -1), self.cell.expand(-1, -1, n_rows, -1))

    def first_rows(self, n_rows: int) -> BiLMState:
        """The first ``n_rows`` rows; rows that are not there yet are zero."""
        missing = max(0, n_rows - self.n_rows)
        return BiLMState(*(nn.functional.pad(part, (0, 0, 0, missing))[:, :, :n_rows] for part in self))

    def with_first_rows(self, rows: BiLMState) -> BiLMState:
        """This state with its first rows replaced (and rows added, where there are more)."""
        hidden, cell = (torch.cat([new, old[:, :, rows.n_rows :]], 2) for new, old in zip(rows, self, strict=True))
        return BiLMState(hidden, cell)


class BiLMOutput(NamedTuple):
    """All layers of a batch and the state after it."""

    layers: Tensor  # (n_layers + 1, batch, time, output_dim); zero where the mask is False
    state: BiLMState


class BiLM(nn.Module):
    """A bidirectional language model without its softmax (Peters et al. 2018, section 3).

    Layer 0 is the context-free token vector, once per direction side by side; layer k holds the outputs
    of LSTM layer k, forward then backward. Parameters are drawn by ``reset_parameters``, never by the
    constructor, so that a model can be built without memory (``torch.device("meta")``) and then filled.
    """

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__()
        self.config = config
        self.token_layer = _token_layer(config)
        self.directions = nn.ModuleList(
            LSTMStack(
                config.n_layers,
                config.hidden_dim,
                config.projection_dim,
                config.cell_clip,
                config.projection_clip,
                config.skip_connections,
                config.dropout,
            )
            for _ in range(config.n_directions)
        )

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The number type of the parameters."""
        return next(self.parameters()).dtype

    @property
    def n_parameters(self) -> int:
        """Trainable numbers as the field counts them: without the zero rows that stand for "no token"."""
        tables = [module for module in self.token_layer.modules() if isinstance(module, nn.Embedding)]
        return sum(parameter.numel() for parameter in self.parameters()) - sum(table.embedding_dim for table in tables)

    def reset_parameters(self, seed: int | None = None) -> None:
        """Draw all weights as bilm-tf does, from the seed or from torch's own generator."""
        generator = None if seed is None else torch.Generator(self.device).manual_seed(seed)
        self.token_layer.reset_parameters(generator)
        for direction in self.directions:
            assert isinstance(direction, LSTMStack)
            direction.reset_parameters(generator)

    def zero_state(self, n_rows: int) -> BiLMState:
        """The state of a model that has read nothing."""
        config = self.config
        shape = (config.n_directions, config.n_layers, n_rows)
        return BiLMState(
            torch.zeros(*shape, config.projection_dim, device=self.device, dtype=self.dtype),
            torch.zeros(*shape, config.hidden_dim, device=self.device, dtype=self.dtype),
        )

    def token_vectors(self, ids: Tensor) -> Tensor:
        """Context-free vectors, each distinct token computed once.

        Args:
            ids: char ids ``(..., chars)``, a word id and char ids ``(..., 1 + chars)`` with word features, or word ids
                ``(...)`` for a word-input model; 0 where there is no token.

        Returns:
            ``(..., projection_dim)``
        """
        if isinstance(self.token_layer, WordEmbedding):
            return self.token_layer.forward(ids)
        distinct, index = torch.unique(ids.flatten(0, -2), dim=0, return_inverse=True)
        vectors: Tensor = self.token_layer(distinct)
        return vectors[index].view(*ids.shape[:-1], -1)

    def forward(self, ids: Tensor, mask: Tensor, state: BiLMState) -> BiLMOutput:
        """All layers of a batch.

        Args:
            ids: ``(batch, time, chars)`` or ``(batch, time)``, as in ``token_vectors``.
            mask: ``(batch, time)`` bool, True on a real token.
            state: what both directions start from.
        """
        return self.contextualize(self.token_vectors(ids), mask, state)

    def contextualize(self, vectors: Tensor, mask: Tensor, state: BiLMState) -> BiLMOutput:
        """All layers of a batch of token vectors ``(batch, time, projection_dim)``; the rest as in ``forward``."""
        vectors = vectors * mask[..., None]
        every_layer = [[vectors] * self.config.n_directions]
        per_direction: list[list[Tensor]] = []
        new_states: list[list[LSTMState]] = []
        for index in range(self.config.n_directions):
            outputs, states = self.read(index, vectors, state.of_direction(index), mask, reverse=index == 1)
            per_direction.append(outputs)
            new_states.append(states)
        every_layer += [list(halves) for halves in zip(*per_direction, strict=True)]
        layers = torch.stack([torch.cat(halves, dim=-1) for halves in every_layer])
        return BiLMOutput(layers, stack_states(new_states))

    def read(
        self,
        direction: int,
        vectors: Tensor,
        states: list[LSTMState],
        mask: Tensor | None = None,
        reverse: bool = False,
    ) -> tuple[list[Tensor], list[LSTMState]]:
        """One direction alone: 0 the forward LSTM, 1 the backward one; training feeds each its own stream."""
        outputs, new_states = self.directions[direction](vectors, states, mask, reverse)
        return outputs, new_states


def _token_layer(config: BiLMConfig) -> CharCNN | WordEmbedding | WordCharLayer:
    cnn, words = config.char_cnn, config.word_features
    chars = None
    if cnn is not None:
        # Without a projection of its own where one over words and characters follows.
        output_dim = config.projection_dim if words is None else cnn.n_features
        chars = CharCNN(cnn.n_chars, cnn.char_dim, cnn.filters, cnn.activation, cnn.n_highway, output_dim)
    if words is not None:
        return WordCharLayer(words.n_words, words.word_dim, chars, config.projection_dim)
    if chars is not None:
        return chars
    assert config.n_words is not None
    return WordEmbedding(config.n_words, config.projection_dim)


def stack_states(states: list[list[LSTMState]]) -> BiLMState:
    """One ``BiLMState`` from the layers' states of each direction."""
    return BiLMState(
        torch.stack([torch.stack([layer.hidden for layer in direction]) for direction in states]),
        torch.stack([torch.stack([layer.cell for layer in direction]) for direction in states]),
    )
