"""The biLM: a bidirectional LSTM language model, the one network behind training, embedding and the compat modules.

Characters (or word ids, or both) become token vectors, and token vectors go through the LSTM layers of each
direction. This module does no file I/O and works on ids only: sentence boundaries are tokens like any other, added by
``text/batching``. The LSTM state is an argument and a result, never hidden in the module.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from elmokit.config import MAX_LAYERS, MAX_UNITS, check_at_least, check_at_most, setting
from elmokit.errors import ConfigError
from elmokit.nn.char_cnn import Activation, CharCNN, WordCharLayer, WordEmbedding
from elmokit.nn.kernels.backends import check_precision
from elmokit.nn.kernels.computation import Computation, LayerKernel, computation_of
from elmokit.nn.kernels.native import Precision
from elmokit.nn.lstm import LSTMStack, LSTMState

MIN_CHARS = 3  # a token's begin and end marks, and one character between them
# Upper bounds, so that a damaged configuration file is an error message and not an attempt to allocate terabytes.
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
            raise ConfigError(f"filters is {list(self.filters)}. Give pairs (width, count), both at least 1.")
        widest = max(width for width, _ in self.filters)
        if self.max_chars < max(widest, MIN_CHARS):
            raise ConfigError(
                f"max_chars is {self.max_chars}, but the widest filter spans {widest} characters and a token needs "
                f"{MIN_CHARS}. Raise max_chars to at least {max(widest, MIN_CHARS)}, or drop the wider filters."
            )
        if self.activation not in ("relu", "tanh"):
            raise ConfigError(f"activation is {self.activation!r}. Use 'relu' or 'tanh'.")
        check_at_least("char_dim", self.char_dim, 1, MAX_UNITS)
        check_at_least("n_chars", self.n_chars, 1, MAX_ROWS)
        check_at_least("n_highway", self.n_highway, 0, MAX_LAYERS)
        check_at_least("max_chars", self.max_chars, MIN_CHARS, MAX_CHARS)
        check_at_most("The number of all filters", self.n_features, MAX_UNITS)

    @property
    def n_features(self) -> int:
        """Number of features: the filters of all convolutions."""
        return sum(count for _, count in self.filters)


@dataclass(frozen=True)
class WordFeaturesConfig:
    """Sizes of a word table whose vectors are concatenated with the char CNN's features, as in ELMoForManyLangs."""

    n_words: int = setting(MISSING, "Number of words.")
    word_dim: int = setting(100, "Size of a word's vector.")

    def __post_init__(self) -> None:
        for name, most in (("n_words", MAX_ROWS), ("word_dim", MAX_UNITS)):
            check_at_least(name, getattr(self, name), 1, most)


@dataclass(frozen=True)
class BiLMConfig:
    """The architecture of a biLM. The defaults are those of the original English ELMo.

    A model reads tokens in one of three ways: as characters (``char_cnn``), as word ids (``n_words``), or as a word id
    together with characters (``word_features``, and ``char_cnn`` unless it is None).
    """

    char_cnn: CharCNNConfig | None = setting(
        CharCNNConfig(), "Sizes of the char CNN; false for a model that reads no characters."
    )
    n_words: int | None = setting(None, "Size of the vocabulary of a model that reads word ids.")
    word_features: WordFeaturesConfig | None = setting(
        None, "Sizes of a word table that is used next to the characters."
    )
    projection_dim: int = setting(512, "Size of the outputs of each direction.")
    hidden_dim: int = setting(4096, "Size of the LSTM cells. If it equals projection_dim, there is no projection.")
    n_layers: int = setting(2, "LSTM layers per direction.")
    cell_clip: float | None = setting(3.0, "Bound on the magnitude of the cells; set to `false` to disable.")
    projection_clip: float | None = setting(
        3.0, "Bound on the magnitude of the projected outputs; set to `false` to disable."
    )
    skip_connections: bool = setting(True, "Add the input of a layer to its output, from the second layer on.")
    bidirectional: bool = setting(
        True, "Train both directions; if false, the forward one alone.", off_flag="--forward-only"
    )
    backward_only: bool = setting(
        False,
        "Train the backward direction alone, which reads each sentence from its end. In a file, also set bidirectional "
        "to false.",
    )
    dropout: float = setting(
        0.1, "Dropout probability in training, on the inputs of LSTM layers and on the top output."
    )

    def __post_init__(self) -> None:
        if (self.char_cnn is None and self.word_features is None) == (self.n_words is None):
            raise ConfigError(
                "A model reads either characters or word ids. Give char_cnn, word_features or both; or set char_cnn to "
                "none and give n_words."
            )
        check_at_least("n_words", self.n_words, 1, MAX_ROWS)
        check_at_least("projection_dim", self.projection_dim, 1)
        check_at_least("hidden_dim", self.hidden_dim, 1, MAX_UNITS)
        check_at_least("n_layers", self.n_layers, 1, MAX_LAYERS)
        if self.projection_dim > self.hidden_dim:
            raise ConfigError(
                f"projection_dim is {self.projection_dim}, more than hidden_dim, which is {self.hidden_dim}. "
                f"Lower projection_dim to at most {self.hidden_dim}."
            )
        for name in ("cell_clip", "projection_clip"):
            clip = getattr(self, name)
            if clip is not None and not clip > 0:
                raise ConfigError(f"{name} is {clip}. Give a number above 0, or none for no bound.")
        if self.backward_only and self.bidirectional:
            raise ConfigError("backward_only is for a model of one direction: set bidirectional to false, too.")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout is {self.dropout}. Give a probability of at least 0 and below 1.")

    @property
    def n_directions(self) -> int:
        """2 for a bidirectional model, else 1."""
        return 2 if self.bidirectional else 1

    @property
    def read_backward(self) -> tuple[bool, ...]:
        """For each direction, whether it reads sentences from their end."""
        return (False, True) if self.bidirectional else (self.backward_only,)

    @property
    def direction_names(self) -> list[Literal["forward", "backward"]]:
        """The names of the directions, in the order of every result that has a value for each."""
        return ["backward" if backward else "forward" for backward in self.read_backward]

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
"""Architectures by name: small, medium and original as published, mini as in this package, tiny for experiments."""


class BiLMState(NamedTuple):
    """The LSTM state of a biLM, passed from one window or batch to the next. Row r belongs to batch row r.

    Attributes:
        hidden: ``(directions, layers, batch, projection_dim)``
        cell: ``(directions, layers, batch, hidden_dim)``
    """

    hidden: Tensor
    cell: Tensor

    @property
    def n_rows(self) -> int:
        """Number of batch rows."""
        return self.hidden.shape[2]

    def of_direction(self, direction: int) -> list[LSTMState]:
        """Return the states of one direction's layers."""
        return [LSTMState(h, c) for h, c in zip(self.hidden[direction], self.cell[direction], strict=True)]

    def detach(self) -> BiLMState:
        """Return the same state without a gradient history."""
        return BiLMState(self.hidden.detach(), self.cell.detach())

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> BiLMState:
        """Return the same state on another device or in another dtype."""
        return BiLMState(self.hidden.to(device, dtype), self.cell.to(device, dtype))

    def repeat_row(self, n_rows: int) -> BiLMState:
        """Repeat a state of one row for ``n_rows`` rows, without copying it."""
        return BiLMState(self.hidden.expand(-1, -1, n_rows, -1), self.cell.expand(-1, -1, n_rows, -1))

    def with_zero_rows(self, rows: Tensor) -> BiLMState:
        """Return this state with some rows set to zero.

        Args:
            rows: ``(directions, batch)``, bool: the rows of each direction.
        """
        where = rows[:, None, :, None]
        return BiLMState(self.hidden.masked_fill(where, 0), self.cell.masked_fill(where, 0))

    def mean_row(self) -> BiLMState:
        """Return the mean over rows, a state of one row."""
        return BiLMState(self.hidden.mean(dim=2, keepdim=True), self.cell.mean(dim=2, keepdim=True))

    def first_rows(self, n_rows: int) -> BiLMState:
        """Return the first ``n_rows`` rows; rows that do not exist are zero."""
        missing = max(0, n_rows - self.n_rows)
        return BiLMState(*(nn.functional.pad(part, (0, 0, 0, missing))[:, :, :n_rows] for part in self))

    def with_first_rows(self, rows: BiLMState) -> BiLMState:
        """Return this state with its first rows replaced; the result grows if ``rows`` has more."""
        hidden, cell = (torch.cat([new, old[:, :, rows.n_rows :]], 2) for new, old in zip(rows, self, strict=True))
        return BiLMState(hidden, cell)


class BiLMOutput(NamedTuple):
    """The vectors of all layers for a batch, and the state after it.

    Attributes:
        layers: ``(n_layers + 1, batch, time, output_dim)``; zero where the mask is False.
        state: The state to pass to the next batch.
    """

    layers: Tensor
    state: BiLMState


class BiLM(nn.Module):
    """A bidirectional language model without its softmax (Peters et al. 2018, section 3).

    Layer 0 is the context-free token vector, repeated once per direction; layer k is the output of LSTM layer k,
    forward and backward concatenated.

    The constructor does not initialize the weights; call :meth:`reset_parameters`, or load them. That way a model can
    be created without allocating memory, under ``torch.device("meta")``, and then filled with memory-mapped weights.

    Args:
        config: The architecture.
        precision: The lowest precision accepted when no gradient is needed: "float32", "bfloat16" or "int8"; None means
            float32. It can be changed later. The environment variable ``ELMOKIT_BACKEND`` overrides it.

    Example:
        >>> bilm = BiLM(PRESETS["tiny"])
        >>> bilm.reset_parameters(seed=0)
        >>> output = bilm(char_ids, mask, bilm.zero_state(len(char_ids)))
        >>> output.layers.shape  # (n_layers + 1, batch, time, output_dim)
    """

    def __init__(self, config: BiLMConfig, precision: Precision | None = None) -> None:
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
        self.precision = precision

    @property
    def precision(self) -> Precision | None:
        """The lowest precision accepted when no gradient is needed; None means float32."""
        first = self.directions[0]
        assert isinstance(first, LSTMStack)
        return first.precision

    @precision.setter
    def precision(self, precision: Precision | None) -> None:
        check_precision(precision)
        for direction in self.directions:
            assert isinstance(direction, LSTMStack)
            direction.precision = precision
        for module in self.token_layer.modules():
            if isinstance(module, CharCNN):
                module.precision = precision

    def kernels(self) -> list[LayerKernel]:
        """Return what computes each LSTM layer when no gradient is needed: the forward layers, then the backward ones.

        A layer is computed in a higher precision than ``precision`` where that is faster.

        Example:
            >>> BiLM(PRESETS["original"], precision="int8").kernels()[0]
            LayerKernel(backend='native-int8', precision='int8', instructions='amx')
        """
        directions = (direction for direction in self.directions if isinstance(direction, LSTMStack))
        return [kernel for direction in directions for kernel in direction.kernels()]

    def computation(self) -> Computation:
        """Return what computes all layers when no gradient is needed.

        Example:
            >>> print(BiLM(PRESETS["original"], precision="int8").computation())
            int8 (native-int8, avx512-vnni, cpu)
        """
        pytorch = f"PyTorch's {torch.backends.cpu.get_cpu_capability()}"
        return computation_of(self.token_layer.kernel(), self.kernels(), self.device.type, pytorch)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the parameters."""
        return next(self.parameters()).dtype

    @property
    def n_parameters(self) -> int:
        """Number of trainable parameters, without the zero rows that mean "no token"."""
        tables = [module for module in self.token_layer.modules() if isinstance(module, nn.Embedding)]
        return sum(parameter.numel() for parameter in self.parameters()) - sum(table.embedding_dim for table in tables)

    def reset_parameters(self, seed: int | None = None) -> None:
        """Initialize all weights as bilm-tf does, from a seed or from PyTorch's default generator."""
        generator = None if seed is None else torch.Generator(self.device).manual_seed(seed)
        self.token_layer.reset_parameters(generator)
        for direction in self.directions:
            assert isinstance(direction, LSTMStack)
            direction.reset_parameters(generator)

    def modules_of_layer(self, layer: int) -> list[nn.Module]:
        """Return the modules that compute one layer: the token layer for 0, else the LSTM layer of each direction."""
        if layer == 0:
            return [self.token_layer]
        return [direction.get_submodule(f"layers.{layer - 1}") for direction in self.directions]

    def zero_state(self, n_rows: int) -> BiLMState:
        """Return the state of a model that has not read anything yet."""
        config = self.config
        shape = (config.n_directions, config.n_layers, n_rows)
        return BiLMState(
            torch.zeros(*shape, config.projection_dim, device=self.device, dtype=self.dtype),
            torch.zeros(*shape, config.hidden_dim, device=self.device, dtype=self.dtype),
        )

    def token_vectors(self, ids: Tensor) -> Tensor:
        """Return context-free token vectors (layer 0), computing each distinct token once.

        Args:
            ids: Char ids ``(..., chars)``; a word id and char ids ``(..., 1 + chars)`` for a model with word
                features; or word ids ``(...)`` for a word-input model. 0 where there is no token.

        Returns:
            ``(..., projection_dim)``
        """
        if isinstance(self.token_layer, WordEmbedding):
            return self.token_layer.forward(ids)
        distinct, index = torch.unique(ids.flatten(0, -2), dim=0, return_inverse=True)
        vectors: Tensor = self.token_layer(distinct)
        return vectors[index].view(*ids.shape[:-1], -1)

    def forward(self, ids: Tensor, mask: Tensor, state: BiLMState) -> BiLMOutput:
        """Compute all layers for a batch.

        Args:
            ids: ``(batch, time, chars)`` or ``(batch, time)``, as in ``token_vectors``.
            mask: ``(batch, time)`` bool, True on a real token.
            state: The state that each direction starts from.
        """
        return self.contextualize(self.token_vectors(ids), mask, state)

    def contextualize(self, vectors: Tensor, mask: Tensor, state: BiLMState) -> BiLMOutput:
        """Compute all layers for token vectors ``(batch, time, projection_dim)``; see ``forward`` for the rest."""
        vectors = vectors * mask[..., None]
        config, size = self.config, vectors.shape[-1]
        layers = None
        if not torch.is_grad_enabled():  # autograd does not track what the LSTMs write into a tensor
            layers = vectors.new_zeros(config.n_layers + 1, *vectors.shape[:2], config.n_directions * size)
        every_layer = [[vectors] * config.n_directions]
        per_direction: list[list[Tensor]] = []
        new_states: list[list[LSTMState]] = []
        for index, reverse in enumerate(config.read_backward):
            into = None if layers is None else list(layers[1:, ..., index * size : (index + 1) * size])
            outputs, states = self.run_direction(index, vectors, state.of_direction(index), mask, reverse, into)
            per_direction.append(outputs)
            new_states.append(states)
        if layers is None:
            every_layer += [list(halves) for halves in zip(*per_direction, strict=True)]
            layers = torch.stack([torch.cat(halves, dim=-1) for halves in every_layer])
        else:
            torch.cat(every_layer[0], dim=-1, out=layers[0])
        return BiLMOutput(layers, stack_states(new_states))

    def run_direction(
        self,
        direction: int,
        vectors: Tensor,
        states: list[LSTMState],
        mask: Tensor | None = None,
        reverse: bool = False,
        into: list[Tensor] | None = None,
    ) -> tuple[list[Tensor], list[LSTMState]]:
        """Run the LSTM layers of one direction.

        Training uses it directly, because each direction has its own text stream during training.

        Args:
            direction: Which LSTM: 0 for the forward one and 1 for the backward one, or 0 if there is only one.
            vectors: Token vectors, ``(batch, time, projection_dim)``.
            states: The state of each layer before the first step.
            mask: ``(batch, time)`` bool, True on a real token; None if every position is real.
            reverse: Read from the last position to the first.
            into: As in ``LSTMStack.forward``.

        Returns:
            Each layer's outputs ``(batch, time, projection_dim)``, and each layer's new state.
        """
        outputs, new_states = self.directions[direction](vectors, states, mask, reverse, into)
        return outputs, new_states


def _token_layer(config: BiLMConfig) -> CharCNN | WordEmbedding | WordCharLayer:
    cnn, words = config.char_cnn, config.word_features
    chars = None
    if cnn is not None:
        # Without its own projection if a projection of words and characters follows.
        output_dim = config.projection_dim if words is None else cnn.n_features
        chars = CharCNN(cnn.n_chars, cnn.char_dim, cnn.filters, cnn.activation, cnn.n_highway, output_dim)
    if words is not None:
        return WordCharLayer(words.n_words, words.word_dim, chars, config.projection_dim)
    if chars is not None:
        return chars
    assert config.n_words is not None
    return WordEmbedding(config.n_words, config.projection_dim)


def stack_states(states: list[list[LSTMState]]) -> BiLMState:
    """Combine the states of each direction's layers into one ``BiLMState``."""
    return BiLMState(
        torch.stack([torch.stack([layer.hidden for layer in direction]) for direction in states]),
        torch.stack([torch.stack([layer.cell for layer in direction]) for direction in states]),
    )
