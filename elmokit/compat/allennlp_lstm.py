"""AllenNLP's LSTM with a projection: one cell and direction, and the stack of both, with its carried state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.compat.allennlp_layers import Source, fill, lengths_of, opened
from elmokit.nn.lstm import STEPS_AT_ONCE
from elmokit.weights.allennlp import DIRECTIONS, lstm_to_allennlp

State = tuple[Tensor, Tensor]


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
