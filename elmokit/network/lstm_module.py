"""LSTM layers with a projected and clipped recurrent state, in one direction.

The formulas are those of TensorFlow 1's ``LSTMCell`` as bilm-tf used it (Sak et al. 2014, without peepholes). One step
from input ``x`` and state ``(m, c)``::

    i, g, f, o = weight @ [x, m] + bias
    c' = clip(sigmoid(f + 1) * c + sigmoid(i) * tanh(g), cell_clip)
    m' = clip(projection @ (sigmoid(o) * tanh(c')), projection_clip)

The blocks of ``weight`` have the order i, g, f, o, and the 1 is not part of the stored bias, as in every published
file. If ``hidden_dim`` equals ``projection_dim``, there is neither a projection nor its clip.

This file holds the reference formulas and decides which code runs them (``LSTMStack.forward``): ``lstm_training.py``
for a window or a padded batch in training, the engine for a batch without gradients on a CPU, and the reference for the
rest, such as a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.engine.architecture import FORGET_OFFSET, BiLMConfig
from elmokit.engine.lstm import LSTM
from elmokit.engine.precision import LayerKernel, Precision, requested_backend
from elmokit.engine.state import State
from elmokit.engine.threads import n_threads
from elmokit.network.backends import (
    ParameterCache,
    are_plain,
    has_memory,
    layer_kernel,
    native_library,
    native_precision,
    never_compiled,
    weights_in,
)
from elmokit.network.tile_layers import Dropout

STEPS_AT_ONCE = 64  # steps whose input products are computed together; the bound keeps memory bounded on a long text


class LSTMState(NamedTuple):
    """The state of one layer after a step."""

    hidden: Tensor  # (batch, projection_dim): projected and clipped, without the residual
    cell: Tensor  # (batch, hidden_dim)


class ProjectedLSTM(nn.Module):
    """One LSTM layer in one direction. The module's docstring has the formulas."""

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
        # One matrix for inputs and state, as in TensorFlow's kernel (transposed), so that published files are copied in
        # whole.
        self.weight = nn.Parameter(torch.empty(4 * hidden_dim, input_dim + projection_dim))
        self.bias = nn.Parameter(torch.empty(4 * hidden_dim))
        projected = hidden_dim != projection_dim
        self.projection = nn.Parameter(torch.empty(projection_dim, hidden_dim)) if projected else None

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights as bilm-tf does: Glorot uniform; biases 0."""
        nn.init.xavier_uniform_(self.weight, generator=generator)
        nn.init.zeros_(self.bias)
        if self.projection is not None:
            nn.init.xavier_uniform_(self.projection, generator=generator)

    @never_compiled
    def forward(
        self,
        inputs: Tensor,  # (batch, time, input_dim)
        state: LSTMState,  # before the first step
        mask: Tensor | None = None,  # (batch, time): False gives 0 and keeps the state
        reverse: bool = False,  # read from the last step to the first
    ) -> tuple[Tensor, LSTMState]:
        """Run the layer over a batch: outputs ``(batch, time, projection_dim)``, and the state after the last step."""
        # Training windows have no padding, and the stream delivers the backward direction's text already reversed
        # (`text/windows.py`), so the hand-written gradient supports neither a mask nor `reverse`. `LSTMStack` reorders
        # padded batches for it.
        is_window = torch.is_grad_enabled() and mask is None and not reverse and inputs.shape[1] > 0
        has_gradient = state.hidden.requires_grad or state.cell.requires_grad
        if is_window and not has_gradient and all(map(has_memory, (inputs, *state, *self.parameters()))):
            return self.run_window(inputs, state)
        return self._run_reference(inputs, self._bias_with_offset(), state, mask, reverse)

    def run_window(
        self,
        inputs: Tensor,  # (batch, time, input_dim), at least one step
        state: LSTMState,
        lengths: Tensor | None = None,  # (batch,), the number of steps of each padded row
    ) -> tuple[Tensor, LSTMState]:
        """Run the layer from the first step to the last, with the hand-written gradient (``lstm_training.py``).

        No gradient flows into or out of the states. Outputs are arbitrary on padding.
        """
        # Imported here, because only training needs it.
        from elmokit.network.lstm_training import run_window

        outputs, hidden, cell = run_window(
            inputs,
            self.weight,
            self._bias_with_offset(),
            self.projection,
            *state,
            self.cell_clip,
            self.projection_clip,
            lengths,
        )
        return outputs, LSTMState(hidden, cell)

    def _bias_with_offset(self) -> Tensor:
        # A new tensor, not an in-place addition: the parameter keeps the value of the file, and its gradient is
        # unchanged.
        offset = torch.zeros_like(self.bias)
        offset[2 * self.hidden_dim : 3 * self.hidden_dim] = FORGET_OFFSET
        return self.bias + offset

    def _run_reference(
        self, inputs: Tensor, bias: Tensor, state: LSTMState, mask: Tensor | None, reverse: bool
    ) -> tuple[Tensor, LSTMState]:
        """Compute the formulas step by step. Every other implementation is tested against this one."""
        n_steps = inputs.shape[1]
        input_weight, recurrent_weight = self.weight[:, : self.input_dim], self.weight[:, self.input_dim :]
        hidden, cell = state
        outputs: list[Tensor] = []
        starts = range(0, n_steps, STEPS_AT_ONCE)
        for start in reversed(starts) if reverse else starts:
            stop = min(start + STEPS_AT_ONCE, n_steps)
            # Inputs do not depend on the state, so their products need no loop: one large product instead of many small
            # ones.
            from_input = F.linear(inputs[:, start:stop], input_weight, bias).unbind(1)
            for step in reversed(range(start, stop)) if reverse else range(start, stop):
                gates = from_input[step - start] + F.linear(hidden, recurrent_weight)
                new_hidden, new_cell = self._step(gates, cell)
                if mask is None:
                    hidden, cell = new_hidden, new_cell
                    outputs.append(hidden)
                else:
                    # A padded position keeps the state. So in either reading direction, a row's state after the last
                    # step is the one after its last real token, however long the others are.
                    real = mask[:, step, None]
                    hidden = torch.where(real, new_hidden, hidden)
                    cell = torch.where(real, new_cell, cell)
                    outputs.append(torch.where(real, new_hidden, torch.zeros_like(new_hidden)))
        if reverse:
            outputs.reverse()
        stacked = torch.stack(outputs, dim=1) if outputs else inputs.new_zeros(len(inputs), 0, self.projection_dim)
        return stacked, LSTMState(hidden, cell)

    def _step(self, gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new hidden state and cell for gate sums ``(batch, 4 * hidden_dim)`` and the old cell."""
        i, g, f, o = gates.chunk(4, dim=-1)
        # Clipping comes before the output gate reads the cell, as in TensorFlow's `LSTMCell`; the clipped value is also
        # the one that is passed to the next step.
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
    """The LSTM layers of one direction, with a skip connection around every layer but the first.

    Dropout acts on the input of every layer, with a new mask at every step. The skip connection adds the input after
    dropout, as in bilm-tf.
    """

    precision: Precision | None = None  # the lowest that is accepted without gradients; None means float32

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
            # Input and output size are equal in every layer, which skip connections need.
            for _ in range(n_layers)
        )
        self.skip_connections = skip_connections
        self.dropout = Dropout(dropout)
        self._packed: ParameterCache[LSTM] = ParameterCache()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights of every layer."""
        for layer in self.layers:
            assert isinstance(layer, ProjectedLSTM)
            layer.reset_parameters(generator)

    @never_compiled
    def forward(
        self,
        inputs: Tensor,  # (batch, time, projection_dim)
        states: list[LSTMState],  # of each layer before the first step
        mask: Tensor | None = None,  # (batch, time), bool; None if every position is real
        reverse: bool = False,  # read from the last step to the first
    ) -> tuple[list[Tensor], list[LSTMState]]:
        """Run all layers over a batch. Return the outputs ``(batch, time, projection_dim)`` and new state of each."""
        if (precision := engine_precision([self], inputs, [states], mask)) is not None:
            return run_in_engine(
                [self], self._packed, precision, inputs, [states], mask, [0], [reverse]
            ).of_one_direction()
        if mask is not None and self._fits_windows(inputs, states, mask):
            return self._run_padded_windows(inputs, states, mask, reverse)
        outputs: list[Tensor] = []
        new_states = []
        for index, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            # bilm-tf wraps the cell in ResidualWrapper first and in DropoutWrapper after it, so the residual is the
            # dropped input.
            layer_inputs = self.dropout(inputs)
            inputs, new_state = layer(layer_inputs, state, mask, reverse)
            # Not around the first layer: bilm-tf adds the wrapper for layers after the first only.
            if self.skip_connections and index > 0:
                inputs = inputs + layer_inputs
                if mask is not None:
                    inputs = torch.where(mask[..., None], inputs, torch.zeros_like(inputs))
            outputs.append(inputs)
            new_states.append(new_state)
        return outputs, new_states

    def is_plain(self) -> bool:
        """Check whether kernels may compute in place of the layers, and of the dropout before them."""
        return are_plain([self.dropout], Dropout) and are_plain(self.layers, ProjectedLSTM)

    def kernels(self) -> list[LayerKernel]:
        """Describe what computes each layer when no gradient is needed and dropout is off."""
        precision = None
        weights = [layer.weight for layer in self.layers if isinstance(layer, ProjectedLSTM)]
        if self.is_plain() and all(weight.dtype == torch.float32 for weight in weights):
            precision = native_precision(weights[0].device, self.precision)
        return [layer_kernel(precision, "lstm", weight.numel()) for weight in weights]

    @property
    def drops_units(self) -> bool:
        """Whether a forward pass draws dropout masks, which only the reference does."""
        return self.training and self.dropout.p > 0

    def _fits_windows(self, inputs: Tensor, states: list[LSTMState], mask: Tensor) -> bool:
        """Check whether the hand-written gradient can read this padded batch; the reference computes the others."""
        needs_gradient = torch.is_grad_enabled() and (
            inputs.requires_grad or any(weight.requires_grad for weight in self.parameters())
        )
        return (
            needs_gradient
            and self.is_plain()
            and all(map(has_memory, (inputs, *(part for state in states for part in state))))
            and requested_backend(self.precision) != "reference"
            and not self.drops_units
            and not any(part.requires_grad for state in states for part in state)
            and inputs.shape[1] > 0
            and self._sizes_match(inputs, states, mask)
            and not has_gaps(mask)
        )

    def _run_padded_windows(
        self, inputs: Tensor, states: list[LSTMState], mask: Tensor, reverse: bool
    ) -> tuple[list[Tensor], list[LSTMState]]:
        """Run all layers over a batch that is padded on the right, with the hand-written gradient.

        Every row is read from its first step on: forward as it is, backward reversed at its own length. Padding then
        comes after all real tokens, so it can change neither their outputs nor, since its own outputs are zeroed below,
        any gradient.
        """
        # Imported here, because only training needs it.
        from elmokit.network.lstm_training import reorder, reversed_positions

        positions = reversed_positions(mask) if reverse else None
        lengths = mask.sum(dim=1)
        inputs = inputs if positions is None else reorder(inputs, positions)
        outputs: list[Tensor] = []
        new_states = []
        for index, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            assert isinstance(layer, ProjectedLSTM)
            layer_outputs, new_state = layer.run_window(inputs, state, lengths)
            inputs = layer_outputs + inputs if self.skip_connections and index > 0 else layer_outputs
            in_order = inputs if positions is None else reorder(inputs, positions)
            outputs.append(torch.where(mask[..., None], in_order, torch.zeros_like(in_order)))
            new_states.append(new_state)
        return outputs, new_states

    def _sizes_match(self, inputs: Tensor, states: list[LSTMState], mask: Tensor | None) -> bool:
        batch_size = len(inputs)
        sizes = [(layer.input_dim, layer.hidden_dim, layer.projection_dim) for layer in self.layers]
        return (
            inputs.ndim == 3
            and all(input_dim == inputs.shape[2] for input_dim, _, _ in sizes)
            and (mask is None or mask.shape == inputs.shape[:2])
            and [(state.hidden.shape, state.cell.shape) for state in states]
            == [((batch_size, projection_dim), (batch_size, hidden_dim)) for _, hidden_dim, projection_dim in sizes]
        )


def engine_precision(
    stacks: Sequence[LSTMStack], inputs: Tensor, states: Sequence[list[LSTMState]], mask: Tensor | None
) -> Precision | None:
    """Return the precision in which the engine computes a call of some stacks together; None if it cannot.

    The engine computes plain layers in float32 on a CPU, without gradients and without dropout; everything else is left
    to the reference. So are tensors of wrong sizes or on different devices: it raises PyTorch's usual error for them,
    while C code would read foreign memory.
    """
    given = [inputs, *(part for of_stack in states for state in of_stack for part in state)]
    if not all(stack.is_plain() for stack in stacks) or not all(map(has_memory, given)):
        return None
    tensors = [*given, *weights_in(stacks)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return None
    if any(stack.drops_units for stack in stacks) or any(tensor.dtype != torch.float32 for tensor in tensors):
        return None
    fits = all(stack._sizes_match(inputs, of_stack, mask) for stack, of_stack in zip(stacks, states, strict=True))
    if not fits or any(tensor.device != inputs.device for tensor in tensors) or not are_packable(stacks):
        return None
    return native_precision(inputs.device, stacks[0].precision)


def are_packable(stacks: Sequence[LSTMStack]) -> bool:
    """Check whether the engine can compute these plain stacks together: its layers are all alike."""
    layers = [layer for stack in stacks for layer in stack.layers]
    bounds = {(layer.cell_clip, layer.projection_clip) for layer in layers}
    # Only AllenNLP's first layer may read another size than the others.
    has_one_size = all(layer.input_dim == layer.projection_dim for layer in layers)
    return has_one_size and len(bounds) == len({stack.skip_connections for stack in stacks}) == 1


class EngineResults(NamedTuple):
    """What the engine computes of a padded batch."""

    layers: Tensor  # (layers + 1, batch, time, directions * dim): the token vectors first; zero where there is no token
    hidden: Tensor  # (directions, layers, batch, dim), after each row's last token
    cell: Tensor  # (directions, layers, batch, hidden_dim)

    def of_one_direction(self) -> tuple[list[Tensor], list[LSTMState]]:
        """Return the results as :meth:`LSTMStack.forward` does, of a single direction that was computed."""
        return list(self.layers[1:]), [LSTMState(*state) for state in zip(self.hidden[0], self.cell[0], strict=True)]


def run_in_engine(
    stacks: Sequence[LSTMStack],  # all that are packed together: the forward direction, then the backward one
    packed: ParameterCache[LSTM],  # keeps them until a weight changes
    precision: Precision,  # from `engine_precision`
    inputs: Tensor,  # (batch, time, projection_dim)
    states: Sequence[Sequence[LSTMState]],  # of the layers of each direction to compute
    mask: Tensor | None,  # (batch, time), bool
    directions: Sequence[int],  # to compute: one, or all
    reverse: Sequence[bool],  # for each of them, whether to read from the last step to the first
) -> EngineResults:
    """Run some of the directions that are packed together."""
    first = stacks[0].layers[0]
    key = precision, first.cell_clip, first.projection_clip, stacks[0].skip_connections
    lstm = packed.get(key, weights_in(stacks), lambda: _pack(stacks, precision))
    config, (n_rows, n_steps) = lstm.config, inputs.shape[:2]
    # From NumPy: PyTorch would fill them in threads of its own, which then keep the engine's from their cores.
    layers = np.zeros((config.n_layers + 1, n_rows, n_steps, len(directions) * config.projection_dim), np.float32)
    real = inputs.new_ones(n_rows, n_steps, dtype=torch.bool) if mask is None else mask
    start = State.zero(config, n_rows)
    for direction, of_layers in zip(directions, states, strict=True):
        for layer, state in enumerate(of_layers):
            start.hidden[direction, layer] = state.hidden.detach().numpy()
            start.cell[direction, layer] = state.cell.detach().numpy()
    vectors = inputs.detach().contiguous().numpy()
    after = lstm.padded(vectors, real.contiguous().numpy(), start, layers, directions, reverse, n_threads())
    computed = list(directions)
    return EngineResults(*map(torch.from_numpy, (layers, after.hidden[computed], after.cell[computed])))


def _pack(stacks: Sequence[LSTMStack], precision: Precision) -> LSTM:
    """Pack the layers of one or two directions, of which the second reads backward, without copying their tensors."""
    library = native_library()
    assert library is not None
    directions: list[list[ProjectedLSTM]] = [list(stack.layers) for stack in stacks]  # type: ignore[arg-type]
    first = directions[0][0]
    config = BiLMConfig(
        char_cnn=None,
        n_words=1,
        projection_dim=first.projection_dim,
        hidden_dim=first.hidden_dim,
        n_layers=len(directions[0]),
        cell_clip=first.cell_clip,
        projection_clip=first.projection_clip,
        skip_connections=stacks[0].skip_connections,
        bidirectional=len(directions) == 2,
    )
    tensors = {
        f"directions.{direction}.layers.{number}.{name}": tensor
        for direction, layers in enumerate(directions)
        for number, layer in enumerate(layers)
        for name, tensor in (("weight", layer.weight), ("bias", layer.bias), ("projection", layer.projection))
        if tensor is not None
    }
    return LSTM(config, {name: tensor.detach().numpy() for name, tensor in tensors.items()}, precision, library)


@never_compiled
def check_no_gaps(mask: Tensor) -> None:
    """Refuse a mask with padding before or between tokens, with a ``ValueError``."""
    if has_gaps(mask):
        raise ValueError("There is padding before or between tokens; pad on the right only.")


def has_gaps(mask: Tensor) -> bool:
    """Say whether a row of a mask ``(batch, time)`` has padding before or between its tokens."""
    return bool((mask[:, 1:] & ~mask[:, :-1]).any())
