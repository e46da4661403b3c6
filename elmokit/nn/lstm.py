"""LSTM layers with a projected, clipped recurrent state, in one direction: the plain path.

The formulas are those of TensorFlow 1's LSTMCell as bilm-tf used it (Sak et al. 2014, without
peepholes), one step from input ``x`` and state ``(m, c)``::

    i, g, f, o = weight @ [x, m] + bias
    c' = clip(sigmoid(f + 1) * c + sigmoid(i) * tanh(g), cell_clip)
    m' = clip(projection @ (sigmoid(o) * tanh(c')), projection_clip)

Blocks stand in the order i, g, f, o and the 1 is not part of the stored bias, as in every
published file. Without a projection (hidden_dim equals projection_dim) the second clip is absent too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.nn.kernels import window as kernels
from elmokit.nn.kernels.backends import Kernels, asked, choose
from elmokit.nn.kernels.inference import read_stack
from elmokit.nn.kernels.packed import CompiledLayer, LayerWeights, PackedWeights, TorchLayer, pack_layer

FORGET_OFFSET = 1.0
STEPS_AT_ONCE = 64  # input products are hoisted over so many steps: bounded memory on a long text


class LSTMState(NamedTuple):
    """What one layer hands from step to step and from window to window."""

    hidden: Tensor  # (batch, projection_dim): projected and clipped, without the residual
    cell: Tensor  # (batch, hidden_dim)


class ProjectedLSTM(nn.Module):
    """One layer in one direction.

    Args:
        input_dim: size of the inputs.
        hidden_dim: size of the cell.
        projection_dim: size of the outputs and of the recurrent input.
        cell_clip: bound on the magnitude of the cell, or None.
        projection_clip: bound on the magnitude of the projected output, or None.
    """

    def __init__(
        self,
        input_dim: int,
        hidden_dim: int,
        projection_dim: int,
        cell_clip: float | None,
        projection_clip: float | None,
    ) -> None:
        super().__init__()
        self.input_dim = input_dim
        self.hidden_dim = hidden_dim
        self.projection_dim = projection_dim
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip
        self.weight = nn.Parameter(torch.empty(4 * hidden_dim, input_dim + projection_dim))
        self.bias = nn.Parameter(torch.empty(4 * hidden_dim))
        projected = hidden_dim != projection_dim
        self.projection = nn.Parameter(torch.empty(projection_dim, hidden_dim)) if projected else None
        self._packed: PackedWeights[TorchLayer | CompiledLayer] = PackedWeights()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights as bilm-tf does: Glorot uniform, biases 0."""
        nn.init.xavier_uniform_(self.weight, generator=generator)
        nn.init.zeros_(self.bias)
        if self.projection is not None:
            nn.init.xavier_uniform_(self.projection, generator=generator)

    def forward(
        self, inputs: Tensor, state: LSTMState, mask: Tensor | None = None, reverse: bool = False
    ) -> tuple[Tensor, LSTMState]:
        """Read a batch step by step.

        Args:
            inputs: ``(batch, time, input_dim)``.
            state: what the layer starts from.
            mask: ``(batch, time)`` bool, True on a real token. Elsewhere the output is zero and the
                state stands still. None where every position is real.
            reverse: read from the last step to the first.

        Returns:
            outputs ``(batch, time, projection_dim)`` and the state after the last step.
        """
        bias = self._whole_bias()
        in_training = torch.is_grad_enabled() and mask is None and not reverse and inputs.shape[1] > 0
        if in_training and not (state.hidden.requires_grad or state.cell.requires_grad):
            outputs, last_cell = kernels.read_window(
                inputs, self.weight, bias, self.projection, *state, self.cell_clip, self.projection_clip
            )
            return outputs, LSTMState(outputs[:, -1].detach(), last_cell)
        return self._read_plainly(inputs, bias, state, mask, reverse)

    def packed(self, kernels: Kernels) -> TorchLayer | CompiledLayer:
        """The weights as the kernels want them, made once and again after they change."""

        def pack() -> TorchLayer | CompiledLayer:
            clips = (float("inf") if clip is None else clip for clip in (self.cell_clip, self.projection_clip))
            weights = LayerWeights(self.weight, self._whole_bias(), self.projection, *clips)
            return pack_layer(kernels, weights, self.input_dim)

        return self._packed.get(kernels, list(self.parameters()), pack)

    def _whole_bias(self) -> Tensor:
        """The bias with the forget offset."""
        offset = torch.zeros_like(self.bias)
        offset[2 * self.hidden_dim : 3 * self.hidden_dim] = FORGET_OFFSET
        return self.bias + offset

    def _read_plainly(
        self, inputs: Tensor, bias: Tensor, state: LSTMState, mask: Tensor | None, reverse: bool
    ) -> tuple[Tensor, LSTMState]:
        """The formulas step by step; what every other path is tested against."""
        n_steps = inputs.shape[1]
        input_weight, recurrent_weight = self.weight[:, : self.input_dim], self.weight[:, self.input_dim :]
        hidden, cell = state
        outputs: list[Tensor] = []
        starts = range(0, n_steps, STEPS_AT_ONCE)
        for start in reversed(starts) if reverse else starts:
            stop = min(start + STEPS_AT_ONCE, n_steps)
            from_input = F.linear(inputs[:, start:stop], input_weight, bias).unbind(1)
            for step in reversed(range(start, stop)) if reverse else range(start, stop):
                gates = from_input[step - start] + F.linear(hidden, recurrent_weight)
                new_hidden, new_cell = self._step(gates, cell)
                if mask is None:
                    hidden, cell = new_hidden, new_cell
                    outputs.append(hidden)
                else:
                    real = mask[:, step, None]
                    hidden = torch.where(real, new_hidden, hidden)
                    cell = torch.where(real, new_cell, cell)
                    outputs.append(torch.where(real, new_hidden, torch.zeros_like(new_hidden)))
        if reverse:
            outputs.reverse()
        stacked = torch.stack(outputs, dim=1) if outputs else inputs.new_zeros(len(inputs), 0, self.projection_dim)
        return stacked, LSTMState(hidden, cell)

    def _step(self, gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """From gate sums ``(batch, 4 * hidden_dim)`` and the old cell to the new hidden state and cell."""
        i, g, f, o = gates.chunk(4, dim=-1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        if self.cell_clip is not None:
            cell = cell.clamp(-self.cell_clip, self.cell_clip)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        if self.projection is not None:
            hidden = F.linear(hidden, self.projection)
            if self.projection_clip is not None:
                hidden = hidden.clamp(-self.projection_clip, self.projection_clip)
        return hidden, cell


class LSTMStack(nn.Module):
    """The layers of one direction: from layer 1 on, a layer's input is added to its output.

    Dropout falls on the input of every layer with a fresh mask at every step, and the residual adds
    the input as the layer saw it, dropped out, as in bilm-tf.
    """

    def __init__(
        self,
        n_layers: int,
        hidden_dim: int,
        projection_dim: int,
        cell_clip: float | None,
        projection_clip: float | None,
        skip_connections: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            ProjectedLSTM(projection_dim, hidden_dim, projection_dim, cell_clip, projection_clip)
            for _ in range(n_layers)
        )
        self.skip_connections = skip_connections
        self.dropout = nn.Dropout(dropout)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights of every layer."""
        for layer in self.layers:
            assert isinstance(layer, ProjectedLSTM)
            layer.reset_parameters(generator)

    def forward(
        self, inputs: Tensor, states: list[LSTMState], mask: Tensor | None = None, reverse: bool = False
    ) -> tuple[list[Tensor], list[LSTMState]]:
        """Read a batch through all layers.

        Args:
            inputs: ``(batch, time, projection_dim)``.
            states: one per layer.
            mask: ``(batch, time)`` bool, True on a real token; None where all are.
            reverse: read from the last step to the first.

        Returns:
            each layer's outputs ``(batch, time, projection_dim)``, and each layer's new state.
        """
        if (kernels := self._kernels(inputs, states, mask)) != "plain":
            with torch.no_grad():
                packed = [layer.packed(kernels) for layer in self.layers]  # type: ignore[operator]
                mask = inputs.new_ones(inputs.shape[:2], dtype=torch.bool) if mask is None else mask
                hidden, cell = zip(*states, strict=True)
                read = read_stack(packed, inputs, hidden, cell, mask, reverse, self.skip_connections)
            return read[0], [LSTMState(*state) for state in zip(*read[1:], strict=True)]
        outputs: list[Tensor] = []
        new_states: list[LSTMState] = []
        for index, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            layer_inputs = self.dropout(inputs)
            inputs, new_state = layer(layer_inputs, state, mask, reverse)
            if self.skip_connections and index > 0:
                inputs = inputs + layer_inputs
                if mask is not None:
                    inputs = torch.where(mask[..., None], inputs, torch.zeros_like(inputs))
            outputs.append(inputs)
            new_states.append(new_state)
        return outputs, new_states

    def _kernels(self, inputs: Tensor, states: list[LSTMState], mask: Tensor | None) -> Kernels:
        """Plain where gradients flow, units are dropped out or numbers are not float32; else what is chosen.

        Plain also where sizes or devices do not fit: it says so, while the compiled kernels would read on in memory.
        """
        tensors = [inputs, *self.parameters(), *(part for state in states for part in state)]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return "plain"
        if (self.training and self.dropout.p > 0) or any(tensor.dtype != torch.float32 for tensor in tensors):
            return "plain"
        if any(tensor.device != inputs.device for tensor in tensors) or not self._fit(inputs, states, mask):
            return "plain"
        return choose(inputs.device, asked())

    def _fit(self, inputs: Tensor, states: list[LSTMState], mask: Tensor | None) -> bool:
        rows = len(inputs)
        sizes = [(layer.input_dim, layer.hidden_dim, layer.projection_dim) for layer in self.layers]
        return (
            inputs.ndim == 3
            and all(input_dim == inputs.shape[2] for input_dim, _, _ in sizes)
            and (mask is None or mask.shape == inputs.shape[:2])
            and [(state.hidden.shape, state.cell.shape) for state in states]
            == [((rows, projection_dim), (rows, hidden_dim)) for _, hidden_dim, projection_dim in sizes]
        )
