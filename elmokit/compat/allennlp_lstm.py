"""AllenNLP's LSTM with a projection: one layer in one direction, and both directions' layers with their state.

AllenNLP stores an LSTM layer as three linear layers, with the gates in the order i, f, g, o and 1 added to the stored
forget bias. The layer's operator reads them directly. Training uses one matrix in the order i, g, f, o, which is
derived from AllenNLP's parameters for each batch, with gradients flowing back to them.

One operator computes a layer if calling its linear layers would do nothing else. Otherwise, for example with a hook or
an adapter, they are called in AllenNLP's order and with its shapes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.compat.allennlp_common import Source, open_files
from elmokit.compat.allennlp_layers import lengths_of, set_parameters
from elmokit.compat.tracing import untraced
from elmokit.engine.architecture import DIRECTIONS
from elmokit.formats.allennlp_weights import gate_bias_from_allennlp, lstm_to_allennlp
from elmokit.network.bilm import BiLMState, stack_states
from elmokit.network.lstm_module import LSTMState
from elmokit.network.operators import (
    LSTMParts,
    add,
    are_hidden,
    join_directions,
    lstm_layer,
    needs_gradient,
    run_lstm,
    take_rows,
)
from elmokit.network.tensors import has_memory

HiddenAndCell = tuple[Tensor, Tensor]


def _call_attributes() -> list[str]:
    """Return the attributes in which a module stores its call hooks."""
    probe = nn.Module()
    for register in (probe.register_forward_pre_hook, probe.register_forward_hook):
        register(print)
    for register_backward in (probe.register_full_backward_pre_hook, probe.register_full_backward_hook):
        register_backward(print)
    return ["forward", *(name for name, value in vars(probe).items() if isinstance(value, dict) and value)]


_CALL_ATTRIBUTES = _call_attributes()
_GLOBAL_HOOKS = [value for value in vars(nn.modules.module).values() if isinstance(value, OrderedDict)]


def _are_plain(*linears: nn.Module) -> bool:
    """Check whether calling linear layers would only multiply by their weights.

    Users replace linear layers with adapters (peft) or with quantized or parametrized layers, and register hooks.
    PyTorch's own fused layers make the same check.
    """
    if any(_GLOBAL_HOOKS):
        return False
    for linear in linears:
        if type(linear) is not nn.Linear or any(map(vars(linear).get, _CALL_ATTRIBUTES)):
            return False
        if not has_memory(linear.weight):  # a type that may multiply differently
            return False
    return True


# Not a subclass of `ProjectedLSTM`, which has different parameters.
class LstmCellWithProjection(nn.Module):
    """One LSTM layer in one direction with a projected, clipped recurrent state.

    In a new layer, the gate blocks (i, f, g, o) are orthogonal, and the biases are 0, or 1 for the forget gate.

    Args:
        input_size: Size of the inputs.
        hidden_size: Size of the outputs and of the recurrent state.
        cell_size: Size of the memory cell.
        go_forward: Read from the first token to the last; otherwise, from the last to the first.
        recurrent_dropout_probability: Dropout on the outputs and the recurrent state, the same at every step.
        memory_cell_clip_value, state_projection_clip_value: Maximum magnitude of the memory cell and the outputs; 0 or
            None for no limit.
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
        if not self.state_projection.weight.is_meta:  # layers on the meta device are filled from a file later
            self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize the weights."""
        for linear in (self.input_linearity, self.state_linearity):
            for block in linear.weight.chunk(4):
                nn.init.orthogonal_(block)
        # Only this layer has a bias, so the gates have a single bias: as in AllenNLP, `input_linearity` has none.
        self.state_linearity.bias.zero_()[self.cell_size : 2 * self.cell_size] = 1.0

    @untraced
    def forward(
        self, inputs: Tensor, batch_lengths: Sequence[int], initial_state: HiddenAndCell | None = None
    ) -> tuple[Tensor, HiddenAndCell]:
        """Read a batch.

        Args:
            inputs: ``(batch, time, input_size)``, longest row first.
            batch_lengths: Number of tokens of each row.
            initial_state: ``(1, batch, hidden_size)`` and ``(1, batch, cell_size)``; zeros if None.

        Returns:
            Outputs ``(batch, time, hidden_size)``, zero beyond a row's length, and each row's state after its last
            step, shaped like ``initial_state``.

        Raises:
            ValueError: The rows are not sorted by length.
        """
        if list(batch_lengths) != sorted(batch_lengths, reverse=True):
            raise ValueError(f"Rows must be sorted longest first, but the lengths are {list(batch_lengths)}.")
        n_rows, n_steps = inputs.shape[:2]
        if initial_state is None:
            initial_state = inputs.new_zeros(1, n_rows, self.hidden_size), inputs.new_zeros(1, n_rows, self.cell_size)
        if not self._is_one_layer():
            return self._call_modules(inputs, batch_lengths, initial_state)
        lengths = torch.tensor(list(batch_lengths), device=inputs.device)
        mask = torch.arange(n_steps, device=inputs.device) < lengths[:, None]
        hidden, cell = initial_state[0][0], initial_state[1][0]
        weights = self._weights()
        reverse = not self.go_forward
        if needs_gradient(inputs, hidden, cell, *self.parameters()) or are_hidden(inputs, hidden, cell):
            outputs, hidden, cell = run_lstm(inputs, hidden, cell, weights.joined(), mask, reverse, adds_inputs=False)
        else:
            outputs, hidden, cell = lstm_layer(inputs, hidden, cell, weights, mask, reverse, adds_inputs=False)
        return outputs, (hidden[None], cell[None])

    def _is_one_layer(self) -> bool:
        """Check whether one operator can replace the linear layers: it has one bias, and no recurrent dropout."""
        linears = self.input_linearity, self.state_linearity, self.state_projection
        if self.training and self.recurrent_dropout_probability:
            return False
        return _are_plain(*linears) and [linear.bias is not None for linear in linears] == [False, True, False]

    def _weights(self) -> LSTMParts:
        return LSTMParts(
            self.input_linearity.weight,
            self.state_linearity.weight,
            gate_bias_from_allennlp(self.state_linearity.bias),
            self.state_projection.weight,  # AllenNLP has one even if the sizes are equal
            self.memory_cell_clip_value or None,  # it also treats 0 as no limit
            self.state_projection_clip_value or None,
            swaps_gates=True,
        )

    def _call_modules(
        self, inputs: Tensor, batch_lengths: Sequence[int], initial_state: HiddenAndCell
    ) -> tuple[Tensor, HiddenAndCell]:
        """Compute ``forward`` step by step, calling the linear layers with each step's rows."""
        n_rows, n_steps = inputs.shape[:2]
        hidden, cell = initial_state[0][0], initial_state[1][0]
        # The same units at every step.
        kept = F.dropout(torch.ones_like(hidden), self.recurrent_dropout_probability, self.training)
        outputs = [inputs.new_zeros(n_rows, self.hidden_size)] * n_steps
        for step in range(n_steps) if self.go_forward else reversed(range(n_steps)):
            n = sum(length > step for length in batch_lengths)
            if not n:
                continue
            gates = self.input_linearity(inputs[:n, step]) + self.state_linearity(hidden[:n])
            i, f, g, o = gates.chunk(4, dim=-1)
            new_cell = torch.sigmoid(f) * cell[:n] + torch.sigmoid(i) * torch.tanh(g)
            new_cell = _clipped(new_cell, self.memory_cell_clip_value)
            output = self.state_projection(torch.sigmoid(o) * torch.tanh(new_cell))
            output = _clipped(output, self.state_projection_clip_value) * kept[:n]
            hidden, cell = torch.cat([output, hidden[n:]]), torch.cat([new_cell, cell[n:]])
            outputs[step] = F.pad(output, (0, 0, 0, n_rows - n))
        stacked = torch.stack(outputs, dim=1) if outputs else inputs.new_zeros(n_rows, 0, self.hidden_size)
        return stacked, (hidden[None], cell[None])


def _clipped(values: Tensor, bound: float | None) -> Tensor:
    """Clip the magnitude of values; 0 means no limit, as in AllenNLP."""
    return values.clamp(-bound, bound) if bound else values


def _in_batch_order(rows: Tensor, others: Tensor, places: Tensor) -> Tensor:
    """Restore the batch order of rows that were sorted by length, with other rows after them."""
    return take_rows(torch.cat([rows.to(others.dtype), others]), places)


# Not a subclass of `BiLM`, which has a token layer and no state.
class ElmoLstm(nn.Module):
    """AllenNLP's ``ElmoLstm``: the LSTM layers of both directions.

    As in AllenNLP, row r of a batch starts from the final state of row r of the previous batch (``_states``). Unlike in
    AllenNLP, ``stateful=False`` starts every batch from zeros, the state follows the inputs to another device or dtype,
    a state with NaN or infinity is discarded, and a batch without tokens gives zeros. New weights are trainable;
    ``requires_grad`` applies to weights read by ``load_weights``.
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
        self.requires_grad = requires_grad
        self._states: HiddenAndCell | None = None  # (layers, rows, 2 * hidden_size) and (layers, rows, 2 * cell_size)
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
        """Load the LSTM weights of a published model. ``requires_grad`` decides whether they are trained.

        Raises:
            ModelError: The files cannot be opened.
        """
        set_parameters(self, lstm_to_allennlp(open_files(options_file, weight_file).build_bilm()), self.requires_grad)

    @untraced
    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Compute all LSTM layers of a batch.

        Args:
            inputs: ``(batch, time, input_size)``.
            mask: ``(batch, time)``, nonzero on a real token, padded on the right.

        Returns:
            ``(layers, batch, time, 2 * hidden_size)``, the forward half first; zero on padding.

        Raises:
            ValueError: There is padding before or between tokens.
        """
        lengths = lengths_of(mask)
        carried = self._carried_state(inputs)
        # As in AllenNLP, additional rows of a larger batch start from zero.
        start = carried.first_rows(len(inputs))
        outputs, states = self._call_cells(inputs, lengths, start)
        if self.stateful:
            self._store(carried, start, stack_states(states).detach().to(inputs.device, inputs.dtype))
        return join_directions(outputs, mask != 0)

    def _layers_of(self, direction: str) -> list[LstmCellWithProjection]:
        return [getattr(self, f"{direction}_layer_{k}") for k in range(self.num_layers)]

    @property
    def forward_layers(self) -> list[LstmCellWithProjection]:
        """The layers that read from the first token to the last."""
        return self._layers_of("forward")

    @property
    def backward_layers(self) -> list[LstmCellWithProjection]:
        """The layers that read from the last token to the first."""
        return self._layers_of("backward")

    def _call_cells(
        self, inputs: Tensor, lengths: Tensor, start: BiLMState
    ) -> tuple[list[list[Tensor]], list[list[LSTMState]]]:
        """Call the cells of both directions layer by layer, with non-empty rows, longest first."""
        cells = [self._layers_of(direction) for direction in DIRECTIONS]
        order = lengths.argsort(descending=True, stable=True)
        n_rows = int((lengths > 0).sum())
        rows, others, places = order[:n_rows], order[n_rows:], order.argsort()
        batch_lengths = lengths[rows].tolist()
        width = max(batch_lengths, default=0)
        missing = (0, 0, 0, inputs.shape[1] - width, 0, len(others))  # steps and rows without tokens
        outputs: list[list[Tensor]] = [[], []]
        states = [start.of_direction(d) for d in range(len(DIRECTIONS))]
        read = [take_rows(inputs[:, :width], rows)] * len(DIRECTIONS)
        for k in range(self.num_layers):
            for d in range(len(DIRECTIONS)):
                if not batch_lengths:
                    outputs[d].append(inputs.new_zeros(*inputs.shape[:2], self.hidden_size))
                    continue
                hidden, cell = states[d][k]
                before = take_rows(hidden, rows)[None], take_rows(cell, rows)[None]
                layer_outputs, after = cells[d][k](read[d], batch_lengths, before)
                states[d][k] = LSTMState(
                    _in_batch_order(after[0][0], take_rows(hidden, others), places),
                    _in_batch_order(after[1][0], take_rows(cell, others), places),
                )
                read[d] = add(layer_outputs, read[d]) if k else layer_outputs
                padded = F.pad(read[d], missing) if any(missing) else read[d]
                outputs[d].append(take_rows(padded, places))
        return outputs, states

    def reset_states(self, mask: Tensor | None = None) -> None:
        """Reset the states of all rows, or of the rows where ``mask`` ``(rows,)`` is nonzero."""
        if mask is None or self._states is None:
            self._states = None
            return
        # (1, rows, 1), to broadcast to the states' (layers, rows, dim).
        kept = (mask == 0)[None, :, None]
        hidden, memory = (torch.where(kept.to(state.device), state, 0.0) for state in self._states)
        self._states = hidden, memory

    def _carried_state(self, inputs: Tensor) -> BiLMState:
        """Return the carried state with the inputs' device and dtype; without rows if no state is carried."""
        if self._states is None or not self.stateful:
            shape = (len(DIRECTIONS), self.num_layers, 0)
            return BiLMState(inputs.new_zeros(*shape, self.hidden_size), inputs.new_zeros(*shape, self.cell_size))
        hidden, memory = (torch.stack(state.chunk(2, dim=-1)) for state in self._states)
        return BiLMState(hidden, memory).to(inputs.device, inputs.dtype)

    def _store(self, carried: BiLMState, start: BiLMState, after: BiLMState) -> None:
        """Store the state after a batch. Rows beyond the batch, or with NaN or infinity, keep their old state."""
        # (rows,). In AllenNLP, a single NaN stays in its row for all later batches.
        finite = torch.stack([tensor.isfinite().all(dim=-1).all(dim=0).all(dim=0) for tensor in after]).all(dim=0)
        kept = BiLMState(*(torch.where(finite[:, None], new, old) for new, old in zip(after, start, strict=True)))
        hidden, memory = (torch.cat(list(tensor), dim=-1) for tensor in carried.with_first_rows(kept))
        self._states = hidden, memory
