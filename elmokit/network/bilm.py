"""The biLM: a bidirectional LSTM language model, used for training, embedding and the compat modules.

Characters (or word ids, or both) become token vectors, and token vectors pass through the LSTM layers of each
direction. This module does no file I/O and only sees ids. Sentence boundaries are ordinary tokens, added by
``text/batching``. The LSTM state is an argument and a result; the module never stores it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from elmokit.engine.architecture import BiLMConfig
from elmokit.engine.precision import PLAIN_KERNEL, Computation, LayerKernel, computation_of
from elmokit.engine.state import State
from elmokit.network.char_cnn import CachedCharCNN, CharCNN, WordCharLayer, WordEmbedding
from elmokit.network.lstm_module import LSTMStack, LSTMState
from elmokit.network.operators import is_traced, join_directions, kernel_for, take_rows
from elmokit.network.tensors import distinct_rows, tensor_of


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

    @classmethod
    def from_numpy(cls, state: State) -> BiLMState:
        """Convert a state of NumPy arrays to tensors, which share its memory unless it is read-only."""
        return cls(*map(tensor_of, state))

    def numpy(self) -> State:
        """Convert the state to NumPy arrays."""
        return State(*(part.detach().float().cpu().numpy() for part in self))

    def of_direction(self, direction: int) -> list[LSTMState]:
        """Return the states of one direction's layers."""
        return [LSTMState(h, c) for h, c in zip(self.hidden[direction], self.cell[direction], strict=True)]

    def detach(self) -> BiLMState:
        """Detach the state from the autograd graph."""
        return BiLMState(self.hidden.detach(), self.cell.detach())

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> BiLMState:
        """Move the state to another device or dtype."""
        return BiLMState(self.hidden.to(device, dtype), self.cell.to(device, dtype))

    def repeat_row(self, n_rows: int) -> BiLMState:
        """Expand a state with one row to ``n_rows`` rows, without copying."""
        return BiLMState(self.hidden.expand(-1, -1, n_rows, -1), self.cell.expand(-1, -1, n_rows, -1))

    def with_zero_rows(self, rows: Tensor) -> BiLMState:
        """Return this state with some rows set to zero.

        Args:
            rows: ``(directions, batch)``, bool: the rows of each direction.
        """
        where = rows[:, None, :, None]
        return BiLMState(self.hidden.masked_fill(where, 0), self.cell.masked_fill(where, 0))

    def mean_row(self) -> BiLMState:
        """Return the mean over rows, as a state with one row."""
        return BiLMState(self.hidden.mean(dim=2, keepdim=True), self.cell.mean(dim=2, keepdim=True))

    def first_rows(self, n_rows: int) -> BiLMState:
        """Return the first ``n_rows`` rows; missing rows are zero."""
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

    Most programs use :class:`~elmokit.Elmo` or :class:`~elmokit.ElmoModule`, which contain a biLM, batch sentences and
    add their boundaries. Use this class for your own training loop, which passes the LSTM state from window to window.
    :meth:`PretrainedBiLM.build_bilm <elmokit.PretrainedBiLM.build_bilm>` creates one with the weights of a model.

    The constructor does not initialize the weights; call :meth:`reset_parameters`, or load them. A model can therefore
    be created without allocating memory, under ``torch.device("meta")``, and then filled with memory-mapped weights.

    Args:
        config: The architecture.

    Example:
        >>> bilm = BiLM(PRESETS["tiny"])
        >>> bilm.reset_parameters(seed=0)
        >>> output = bilm(char_ids, mask, bilm.zero_state(len(char_ids)))
        >>> output.layers.shape  # (n_layers + 1, batch, time, output_dim)
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
    def has_token_table(self) -> bool:
        """Whether some tokens are looked up in a table of precomputed vectors."""
        return isinstance(self.token_layer, CachedCharCNN)

    def kernels(self) -> list[LayerKernel]:
        """Describe how each LSTM layer is computed without gradients: the forward layers, then the backward layers.

        Example:
            >>> BiLM(PRESETS["original"]).kernels()[0]
            LayerKernel(backend='native', precision='float32', instructions='amx')
        """
        directions = (
            direction.kernels() if isinstance(direction, LSTMStack) else [PLAIN_KERNEL] for direction in self.directions
        )
        return [kernel for kernels in directions for kernel in kernels]

    def computation(self) -> Computation:
        """Describe how all layers are computed when no gradient is needed.

        Example:
            >>> print(BiLM(PRESETS["original"]).computation())
            float32 (native, avx512-vnni, cpu)
        """
        pytorch = f"PyTorch's {torch.backends.cpu.get_cpu_capability()}"
        if isinstance(self.token_layer, CharCNN | WordCharLayer):
            kernel = kernel_for(next(self.token_layer.parameters()))
        else:
            kernel = PLAIN_KERNEL  # a lookup, or a module from another library
        return computation_of(kernel, self.kernels(), self.device.type, pytorch)

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
        """Number of trainable parameters, without the zero rows for "no token"."""
        tables = [module for module in self.token_layer.modules() if isinstance(module, nn.Embedding)]
        return sum(parameter.numel() for parameter in self.parameters()) - sum(table.embedding_dim for table in tables)

    def reset_parameters(self, seed: int | None = None) -> None:
        """Initialize all weights as bilm-tf does, from a seed or PyTorch's default generator."""
        generator = None if seed is None else torch.Generator(self.device).manual_seed(seed)
        self.token_layer.reset_parameters(generator)
        for direction in self.directions:
            assert isinstance(direction, LSTMStack)
            direction.reset_parameters(generator)

    def with_config(self, **changes: Any) -> BiLM:
        """Return a biLM with the same weights and a changed config, which must have the same tensor shapes."""
        with torch.device("meta"):
            new = BiLM(replace(self.config, **changes))
        new.load_state_dict(self.state_dict(), assign=True)
        return new

    def modules_of_layer(self, layer: int) -> list[nn.Module]:
        """Return the modules that compute one layer: the token layer for 0, else the LSTM layer of each direction."""
        if layer == 0:
            return [self.token_layer]
        return [direction.get_submodule(f"layers.{layer - 1}") for direction in self.directions]

    def zero_state(self, n_rows: int) -> BiLMState:
        """Return a state of zeros, for a model that has not read anything yet."""
        config = self.config
        shape = (config.n_directions, config.n_layers, n_rows)
        return BiLMState(
            torch.zeros(*shape, config.projection_dim, device=self.device, dtype=self.dtype),
            torch.zeros(*shape, config.hidden_dim, device=self.device, dtype=self.dtype),
        )

    def mask_of(self, ids: Tensor) -> Tensor:
        """Return a mask ``(batch, time)``, True on tokens: where ids are not all 0. See ``token_vectors`` for ids."""
        return ids > 0 if self.config.n_words is not None else (ids > 0).any(dim=-1)

    def token_vectors(self, ids: Tensor) -> Tensor:
        """Compute context-free token vectors (layer 0), each distinct token once.

        Args:
            ids: Char ids ``(..., chars)``; a word id and char ids ``(..., 1 + chars)`` for a model with word features;
                or word ids ``(...)`` for a word-input model. 0 means no token.

        Returns:
            ``(..., projection_dim)``
        """
        if self.config.n_words is not None:
            of_words: Tensor = self.token_layer(ids)
            return of_words
        tokens = ids.long().flatten(0, -2)
        if is_traced():  # the number of distinct tokens depends on the text
            vectors: Tensor = self.token_layer(tokens)
        else:
            distinct, index = distinct_rows(tokens)
            vectors = take_rows(self.token_layer(distinct), index)
        return vectors.view(*ids.shape[:-1], vectors.shape[-1])

    def forward(self, ids: Tensor | None, mask: Tensor, state: BiLMState, vectors: Tensor | None = None) -> BiLMOutput:
        """Compute all layers for a batch.

        Args:
            ids: ``(batch, time, chars)`` or ``(batch, time)``, as in ``token_vectors``; None if ``vectors`` are given.
            mask: ``(batch, time)`` bool, True on a real token.
            state: The initial state of each direction.
            vectors: Token vectors ``(batch, time, projection_dim)``, instead of ``ids``.

        Returns:
            All layers, and the state after each row's last token.
        """
        if vectors is None:
            assert ids is not None
            vectors = self.token_vectors(ids)
        return self._contextualize(vectors, mask, state)

    def contextualize(self, vectors: Tensor, mask: Tensor, state: BiLMState) -> BiLMOutput:
        """Compute all layers for token vectors ``(batch, time, projection_dim)``; see ``forward`` for the rest."""
        output: BiLMOutput = self(None, mask, state, vectors)  # a call, so that this module's hooks run
        return output

    def _contextualize(self, vectors: Tensor, mask: Tensor, state: BiLMState) -> BiLMOutput:
        per_direction: list[list[Tensor]] = []
        new_states: list[list[LSTMState]] = []
        for direction, reverse in enumerate(self.config.read_backward):
            outputs, after_last = self.directions[direction](vectors, state.of_direction(direction), mask, reverse)
            per_direction.append([vectors, *outputs])
            new_states.append(after_last)
        return BiLMOutput(join_directions(per_direction, mask), stack_states(new_states))

    def run_direction(
        self,
        direction: int,
        vectors: Tensor,
        states: list[LSTMState],
        mask: Tensor | None = None,
        reverse: bool = False,
    ) -> tuple[list[Tensor], list[LSTMState]]:
        """Run the LSTM layers of one direction.

        Training calls it directly, because each direction then reads its own text stream.

        Args:
            direction: The LSTM to run: 0 for forward, 1 for backward; 0 if there is only one.
            vectors: Token vectors, ``(batch, time, projection_dim)``.
            states: Each layer's state before the first step.
            mask: ``(batch, time)`` bool, True on a real token; None if every position is real.
            reverse: Read from the last position to the first.

        Returns:
            Each layer's outputs ``(batch, time, projection_dim)``, and each layer's new state.
        """
        results: tuple[list[Tensor], list[LSTMState]] = self.directions[direction](vectors, states, mask, reverse)
        return results


def _token_layer(config: BiLMConfig) -> CharCNN | WordEmbedding | WordCharLayer:
    cnn, words = config.char_cnn, config.word_features
    chars = None
    if cnn is not None:
        # No projection of its own if a projection of words and characters follows.
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
