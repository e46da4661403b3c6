"""The layers of AllenNLP's ELMo: its names, arguments, parameters and state, for ``elmokit.compat.allennlp``.

They compute in AllenNLP's own layout, so that ``state_dict``, ``named_parameters`` and an optimiser's state are
those of an AllenNLP model (the layout is told in ``elmokit.weights.allennlp``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.bilm import BiLM
from elmokit.embedder import open_pretrained
from elmokit.errors import ConfigError
from elmokit.nn.lstm import STEPS_AT_ONCE
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE, encode_tokens
from elmokit.weights.allennlp import DIRECTIONS, char_cnn_of, encoder_to_allennlp, lstm_to_allennlp
from elmokit.weights.model import StoredModel

ConfigurationError = ConfigError  # AllenNLP's name

Source = str | Path | None
State = tuple[Tensor, Tensor]
Module = TypeVar("Module", bound=nn.Module)


def opened(options_file: Source, weight_file: Source) -> StoredModel:
    """A model by AllenNLP's two arguments; the weights may be whatever elmokit opens, and the options then None.

    Raises:
        ModelError: it cannot be opened.
        ConfigurationError: there is no weight file.
    """
    if weight_file is None:
        raise ConfigError(f"Which model? weight_file is None (and options_file {options_file!r}).")
    return open_pretrained(weight_file, options_file)


def on_cuda_device(module: Module, number: int) -> Module:
    """The module on a CUDA device, or as it is for -1.

    Raises:
        ConfigurationError: the device cannot be used.
    """
    try:
        return module if number < 0 else module.to(torch.device("cuda", number))
    except (RuntimeError, AssertionError) as error:  # torch says "not compiled with CUDA" by an assertion
        reason = str(error).splitlines()[0]
        raise ConfigError(f"CUDA device {number} cannot be used: {reason}. Give -1 to use the CPU.") from None


def add_sentence_boundary_token_ids(
    tensor: Tensor, mask: Tensor, sentence_begin_token: Tensor | int, sentence_end_token: Tensor | int
) -> tuple[Tensor, Tensor]:
    """Put a begin and an end around each row.

    AllenNLP took the new mask from the contents, so that an entry without a positive number was lost, and an empty
    entry inside a row moved the end onto a real one; here the mask follows from the lengths, and holes are refused.

    Args:
        tensor: ``(batch, time)`` or ``(batch, time, dim)``, padded on the right.
        mask: ``(batch, time)``, not 0 on a real entry.
        sentence_begin_token, sentence_end_token: a number, or ``(dim,)``.

    Returns:
        ``(batch, time + 2)`` or ``(batch, time + 2, dim)``, and a bool mask ``(batch, time + 2)``.

    Raises:
        ValueError: the tensor has another rank, or there is padding before or between entries.
    """
    if tensor.dim() not in (2, 3):
        raise ValueError(f"Boundaries go around rows of rank 2 or 3; given a tensor of shape {tuple(tensor.shape)}.")
    lengths = lengths_of(mask)
    n_rows, n_steps = tensor.shape[:2]
    padding = (0, 0) * (tensor.dim() - 2) + (1, 1)
    bounded = F.pad(tensor, padding)
    bounded[:, 0] = _detached(sentence_begin_token, tensor)
    bounded[torch.arange(n_rows, device=tensor.device), lengths + 1] = _detached(sentence_end_token, tensor)
    return bounded, torch.arange(n_steps + 2, device=tensor.device) < lengths[:, None] + 2


def remove_sentence_boundaries(tensor: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Take the first and last real position off each row.

    Args:
        tensor: ``(batch, time, dim)``.
        mask: ``(batch, time)``.

    Returns:
        ``(batch, time - 2, dim)``, zero where there is nothing, and a bool mask ``(batch, time - 2)``.
    """
    inside = torch.arange(mask.shape[1] - 2, device=mask.device) < (mask != 0).sum(dim=1)[:, None] - 2
    return torch.where(inside[..., None], tensor[:, 1:-1], torch.zeros_like(tensor[:, 1:-1])), inside


def lengths_of(mask: Tensor) -> Tensor:
    """Real entries of each row of a mask ``(batch, time)``.

    Raises:
        ValueError: there is padding before or between them.
    """
    mask = mask != 0
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise ValueError("There is padding before or between tokens; pad on the right only, as batch_to_ids does.")
    return mask.sum(dim=1)


def _detached(token: Tensor | int, like: Tensor) -> Tensor | int:
    return token.detach().to(like) if isinstance(token, Tensor) else token


class ScalarMix(nn.Module):
    """``gamma * sum_k softmax(scalar_parameters)_k * tensor_k``, AllenNLP's ``ScalarMix``.

    Args:
        mixture_size: how many tensors.
        do_layer_norm: first give each tensor mean 0 and variance 1 over *all* real positions of the batch, so that
            sentences of a batch depend on each other.
        initial_scalar_parameters: before the softmax; zeros if None.
        trainable: of the weights and of gamma.

    Raises:
        ConfigurationError: not ``mixture_size`` initial parameters.
    """

    def __init__(
        self,
        mixture_size: int,
        do_layer_norm: bool = False,
        initial_scalar_parameters: Sequence[float] | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__()
        self.mixture_size = mixture_size
        self.do_layer_norm = do_layer_norm
        initial = [0.0] * mixture_size if initial_scalar_parameters is None else initial_scalar_parameters
        if len(initial) != mixture_size:
            raise ConfigError(f"ScalarMix mixes {mixture_size} tensors; given {len(initial)} initial parameters.")
        self.scalar_parameters = nn.ParameterList(
            nn.Parameter(torch.tensor([float(value)]), requires_grad=trainable) for value in initial
        )
        self.gamma = nn.Parameter(torch.ones(1), requires_grad=trainable)

    def forward(self, tensors: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Mix tensors of one shape, ``(batch, time, dim)``; ``mask`` ``(batch, time)`` is for layer norm only.

        Raises:
            ConfigurationError: not ``mixture_size`` tensors, or no mask for layer norm.
        """
        if len(tensors) != self.mixture_size:
            raise ConfigError(f"ScalarMix mixes {self.mixture_size} tensors; given {len(tensors)}.")
        if self.do_layer_norm:
            if mask is None:
                raise ConfigError("ScalarMix with do_layer_norm needs the mask of the batch.")
            tensors = [_normalised(tensor, (mask != 0)[..., None]) for tensor in tensors]
        weights = torch.cat(list(self.scalar_parameters)).softmax(dim=0)
        mixed = weights[0] * tensors[0]
        for weight, tensor in zip(weights[1:], tensors[1:], strict=True):
            mixed = mixed + weight * tensor
        return self.gamma * mixed


def _normalised(tensor: Tensor, real: Tensor) -> Tensor:
    """Mean 0 and variance 1 over all real positions together, computed in float32 at least."""
    wide = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
    n_values = real.sum() * tensor.shape[-1]
    mean = (wide * real).sum() / n_values
    variance = (((wide - mean) * real) ** 2).sum() / n_values
    return ((wide - mean) / (variance + 1e-13).sqrt()).to(tensor.dtype)


class LstmCellWithProjection(nn.Module):
    """One LSTM layer in one direction with a projected, clipped recurrent state; clips of 0 or None are none.

    A new layer's gate blocks (i, f, g, o) are orthogonal, its biases 0 and 1 for the forget gate.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        cell_size: int,
        go_forward: bool = True,
        recurrent_dropout_probability: float = 0.0,
        memory_cell_clip_value: float | None = None,
        state_projection_clip_value: float | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.cell_size = input_size, hidden_size, cell_size
        self.go_forward = go_forward
        self.recurrent_dropout_probability = recurrent_dropout_probability
        self.memory_cell_clip_value = memory_cell_clip_value
        self.state_projection_clip_value = state_projection_clip_value
        self.input_linearity = nn.Linear(input_size, 4 * cell_size, bias=False)
        self.state_linearity = nn.Linear(hidden_size, 4 * cell_size)
        self.state_projection = nn.Linear(cell_size, hidden_size, bias=False)
        if not self.state_projection.weight.is_meta:  # a cell that a file is going to fill
            self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weights."""
        for linear in (self.input_linearity, self.state_linearity):
            for block in linear.weight.chunk(4):
                nn.init.orthogonal_(block)
        self.state_linearity.bias.zero_()[self.cell_size : 2 * self.cell_size] = 1.0

    def forward(
        self, inputs: Tensor, batch_lengths: Sequence[int], initial_state: State | None = None
    ) -> tuple[Tensor, State]:
        """Read a batch.

        Args:
            inputs: ``(batch, time, input_size)``, longest row first.
            batch_lengths: tokens of each row.
            initial_state: ``(1, batch, hidden_size)`` and ``(1, batch, cell_size)``; zeros if None.

        Returns:
            outputs ``(batch, time, hidden_size)``, zero beyond a row's length, and each row's state after its last
            step, shaped as ``initial_state``.

        Raises:
            ValueError: rows are not sorted by length.
        """
        if list(batch_lengths) != sorted(batch_lengths, reverse=True):
            raise ValueError(f"Rows go longest first; given lengths {list(batch_lengths)}.")
        n_rows, n_steps = inputs.shape[:2]
        if initial_state is None:
            initial_state = inputs.new_zeros(1, n_rows, self.hidden_size), inputs.new_zeros(1, n_rows, self.cell_size)
        hidden, memory = initial_state[0][0], initial_state[1][0]
        dropout = F.dropout(torch.ones_like(hidden), self.recurrent_dropout_probability, self.training)
        outputs: list[Tensor] = []
        steps = range(n_steps) if self.go_forward else range(n_steps)[::-1]
        for start in range(0, n_steps, STEPS_AT_ONCE):
            chunk = steps[start : start + STEPS_AT_ONCE]
            first = min(chunk)
            from_input = self.input_linearity(inputs[:, first : max(chunk) + 1])
            for step in chunk:
                n = sum(length > step for length in batch_lengths)  # rows that are still, or already, being read
                gates = from_input[:n, step - first] + self.state_linearity(hidden[:n])
                new_hidden, new_memory = self._step(gates, memory[:n])
                new_hidden = new_hidden * dropout[:n]
                hidden, memory = torch.cat([new_hidden, hidden[n:]]), torch.cat([new_memory, memory[n:]])
                outputs.append(F.pad(new_hidden, (0, 0, 0, n_rows - n)))
        if not self.go_forward:
            outputs.reverse()
        stacked = torch.stack(outputs, dim=1) if outputs else inputs.new_zeros(n_rows, 0, self.hidden_size)
        return stacked, (hidden[None], memory[None])

    def _step(self, gates: Tensor, memory: Tensor) -> State:
        i, f, g, o = gates.chunk(4, dim=-1)
        memory = torch.sigmoid(i) * torch.tanh(g) + torch.sigmoid(f) * memory
        if self.memory_cell_clip_value:
            memory = memory.clamp(-self.memory_cell_clip_value, self.memory_cell_clip_value)
        hidden: Tensor = self.state_projection(torch.sigmoid(o) * torch.tanh(memory))
        if self.state_projection_clip_value:
            hidden = hidden.clamp(-self.state_projection_clip_value, self.state_projection_clip_value)
        return hidden, memory


class ElmoLstm(nn.Module):
    """The LSTM layers of both directions, AllenNLP's ``ElmoLstm``.

    As there, row r of a batch goes on from the state that row r of the batch before left (``_states``); unlike
    there, ``stateful=False`` starts every batch from zeros, the state follows the inputs to another device or
    number type, a row that went to infinity or NaN is not carried, and a batch of padding alone gives zeros.
    New weights train; ``requires_grad`` speaks of those that ``load_weights`` reads.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        cell_size: int,
        num_layers: int,
        requires_grad: bool = False,
        recurrent_dropout_probability: float = 0.0,
        memory_cell_clip_value: float | None = None,
        state_projection_clip_value: float | None = None,
        *,
        stateful: bool = True,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.cell_size = input_size, hidden_size, cell_size
        self.num_layers = num_layers
        self.stateful = stateful
        self._requires_grad = requires_grad
        self._states: State | None = None  # (layers, rows, 2 * hidden_size) and (layers, rows, 2 * cell_size)
        for k in range(num_layers):
            for direction in DIRECTIONS:
                cell = LstmCellWithProjection(
                    input_size if k == 0 else hidden_size,
                    hidden_size,
                    cell_size,
                    direction == "forward",
                    recurrent_dropout_probability,
                    memory_cell_clip_value,
                    state_projection_clip_value,
                )
                self.add_module(f"{direction}_layer_{k}", cell)

    def load_weights(self, weight_file: Source, options_file: Source = None) -> None:
        """Take the LSTM weights of a published model; as told by ``requires_grad`` they train or not.

        Raises:
            ModelError: the files cannot be opened.
        """
        fill(self, lstm_to_allennlp(opened(options_file, weight_file).bilm), self._requires_grad)

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """All LSTM layers of a batch.

        Args:
            inputs: ``(batch, time, input_size)``.
            mask: ``(batch, time)``, not 0 on a real token, padded on the right.

        Returns:
            ``(layers, batch, time, 2 * hidden_size)``, the forward half first; zero on padding.

        Raises:
            ValueError: there is padding before or between tokens.
        """
        lengths, rows = lengths_of(mask).sort(descending=True, stable=True)
        sizes = [length for length in lengths.tolist() if length]
        rows, longest = rows[: len(sizes)], max(sizes, default=0)
        before = self._states_for(inputs)
        hidden, memory = (part.clone() for part in before)
        layers: list[Tensor] = []
        read = [inputs[rows, :longest]] * 2  # what each direction's next layer reads
        for k in range(self.num_layers):
            for d, (h, m) in enumerate(zip(hidden.chunk(2, dim=-1), memory.chunk(2, dim=-1), strict=True)):
                cell = getattr(self, f"{DIRECTIONS[d]}_layer_{k}")
                output, last = cell(read[d], sizes, (h[k : k + 1, rows], m[k : k + 1, rows]))
                h[k, rows], m[k, rows] = (part[0].detach().to(inputs.dtype) for part in last)
                read[d] = output if k == 0 else output + read[d]
            layers.append(torch.cat(read, dim=-1))
        if self.stateful:
            finite = hidden.isfinite().all(dim=-1).all(dim=0) & memory.isfinite().all(dim=-1).all(dim=0)
            kept = finite[None, :, None]
            self._states = torch.where(kept, hidden, before[0]), torch.where(kept, memory, before[1])
        stacked = torch.stack(layers)
        every_row = stacked.new_zeros(self.num_layers, *inputs.shape[:2], 2 * self.hidden_size)
        every_row[:, rows, :longest] = stacked
        return every_row

    def reset_states(self, mask: Tensor | None = None) -> None:
        """Forget all states, or those of the rows where ``mask`` ``(rows,)`` is not 0.

        Raises:
            ValueError: the mask is not as long as there are states.
        """
        if mask is None or self._states is None:
            self._states = None
            return
        if len(mask) != self._states[0].shape[1]:
            raise ValueError(f"There are states of {self._states[0].shape[1]} rows; the mask has {len(mask)} entries.")
        kept = (mask == 0)[None, :, None]
        hidden, memory = (torch.where(kept.to(part.device), part, 0.0) for part in self._states)
        self._states = hidden, memory

    def _states_for(self, inputs: Tensor) -> State:
        """A copy of the stored states that is as large as the batch and lies where the batch does."""
        stored = self._states if self.stateful else None
        n_rows = max(len(inputs), 0 if stored is None else stored[0].shape[1])
        hidden = inputs.new_zeros(self.num_layers, n_rows, 2 * self.hidden_size)
        memory = inputs.new_zeros(self.num_layers, n_rows, 2 * self.cell_size)
        if stored is not None:
            hidden[:, : stored[0].shape[1]], memory[:, : stored[1].shape[1]] = stored
        return hidden, memory


class _Highway(nn.Module):
    """Gated layers in AllenNLP's layout: one matrix for the transformed branch and the gate of the carried one."""

    def __init__(self, dim: int, n_layers: int) -> None:
        super().__init__()
        self._layers = nn.ModuleList(nn.Linear(dim, 2 * dim) for _ in range(n_layers))

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self._layers:
            transformed, gate = layer(inputs).chunk(2, dim=-1)
            gate = torch.sigmoid(gate)
            inputs = gate * inputs + (1 - gate) * F.relu(transformed)
        return inputs


class _ElmoCharacterEncoder(nn.Module):
    """Character ids to context-free token vectors, boundaries added: AllenNLP's ``_ElmoCharacterEncoder``.

    Each distinct token of a batch is computed once.

    Args:
        options_file, weight_file: as for ``Elmo``.
        requires_grad: whether the parameters train.
        bilm: a biLM that is open already, in place of the files.

    Raises:
        ModelError, ConfigurationError: the files cannot be opened, or do not hold an ELMo that reads characters.
    """

    def __init__(
        self, options_file: Source, weight_file: Source, requires_grad: bool = False, *, bilm: BiLM | None = None
    ) -> None:
        super().__init__()
        bilm = opened(options_file, weight_file).bilm if bilm is None else bilm
        cnn = char_cnn_of(bilm.config)
        self.output_dim = bilm.config.projection_dim
        self.max_chars = cnn.max_chars
        self.activation = cnn.activation
        with torch.device("meta"):
            self._char_embedding_weights = nn.Parameter(torch.empty(cnn.n_chars + 1, cnn.char_dim))
            self._convolutions = []  # names, so that the parameters' names are AllenNLP's
            for k, (width, count) in enumerate(cnn.filters):
                self.add_module(f"char_conv_{k}", nn.Conv1d(cnn.char_dim, count, width))
                self._convolutions.append(f"char_conv_{k}")
            self._highways = _Highway(cnn.n_features, cnn.n_highway)
            self._projection = nn.Linear(cnn.n_features, self.output_dim)
        fill(self, encoder_to_allennlp(bilm), requires_grad)

    def get_output_dim(self) -> int:
        """Size of a token vector."""
        return self.output_dim

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """Encode a batch.

        Args:
            inputs: character ids ``(batch, time, chars)``, all 0 on padding, which stands on the right.

        Returns:
            ``token_embedding`` ``(batch, time + 2, output_dim)`` and ``mask`` ``(batch, time + 2)`` bool.

        Raises:
            ValueError: ids of another shape, or padding before or between tokens.
        """
        if inputs.dim() != 3 or inputs.shape[-1] != self.max_chars:
            raise ValueError(
                f"Character ids are (batch, time, {self.max_chars}) for this model; given {tuple(inputs.shape)}. "
                f"Make them with batch_to_ids(sentences, max_word_length={self.max_chars})."
            )
        begin, end = self._boundary_ids(inputs)
        ids, mask = add_sentence_boundary_token_ids(inputs, (inputs > 0).any(dim=-1), begin, end)
        return {"token_embedding": self.token_vectors(ids), "mask": mask}

    def token_vectors(self, ids: Tensor) -> Tensor:
        """``(..., chars)`` ids of tokens to ``(..., output_dim)``, nothing added."""
        distinct, index = torch.unique(ids.flatten(0, -2), dim=0, return_inverse=True)
        characters = F.embedding(distinct, self._char_embedding_weights).transpose(1, 2)  # (tokens, char_dim, chars)
        activate = F.relu if self.activation == "relu" else torch.tanh
        pooled = [activate(getattr(self, name)(characters).max(dim=-1).values) for name in self._convolutions]
        vectors: Tensor = self._projection(self._highways(torch.cat(pooled, dim=-1)))
        return vectors[index].view(*ids.shape[:-1], self.output_dim)

    @torch.no_grad()
    def boundary_vectors(self) -> Tensor:
        """The vectors of ``<S>`` and ``</S>``, ``(2, output_dim)``."""
        return self.token_vectors(self._boundary_ids(self._char_embedding_weights))

    def _boundary_ids(self, like: Tensor) -> Tensor:
        ids = torch.from_numpy(encode_tokens([BEGIN_SENTENCE, END_SENTENCE], self.max_chars))
        return ids.to(like.device)


def fill(module: nn.Module, tensors: dict[str, Tensor], requires_grad: bool) -> None:
    """Give a module, which may stand on the meta device, these tensors for its own."""
    module.load_state_dict(tensors, assign=True)
    module.requires_grad_(requires_grad)
