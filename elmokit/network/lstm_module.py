"""Unidirectional LSTM layers with a projected and clipped recurrent state.

The formulas follow TensorFlow 1's ``LSTMCell`` as bilm-tf uses it (Sak et al. 2014, without peepholes). One step from
input ``x`` and state ``(m, c)``::

    i, g, f, o = weight @ [x, m] + bias
    c' = clip(sigmoid(f + 1) * c + sigmoid(i) * tanh(g), cell_clip)
    m' = clip(projection @ (sigmoid(o) * tanh(c')), projection_clip)

The blocks of ``weight`` are in the order i, g, f, o, and the 1 is not part of the stored bias, as in every published
file. If ``hidden_dim`` equals ``projection_dim``, there is no projection and no projection clip.

``operators.py`` computes a layer: in C on a CPU, with PyTorch operations elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from elmokit.engine.precision import LayerKernel
from elmokit.network.operators import LSTMWeights, is_traced, kernel_for, run_lstm
from elmokit.network.tile_layers import Dropout


class LSTMState(NamedTuple):
    """The state of one layer after a step."""

    hidden: Tensor  # (batch, projection_dim): projected and clipped, without the residual
    cell: Tensor  # (batch, hidden_dim)


class ProjectedLSTM(nn.Module):
    """One LSTM layer in one direction. The formulas are in this file's docstring."""

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
        # One matrix for inputs and state, like TensorFlow's kernel (transposed), so published files can be copied as a
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

    @property
    def weights(self) -> LSTMWeights:
        """The layer's tensors and clipping bounds."""
        return LSTMWeights(self.weight, self.bias, self.projection, self.cell_clip, self.projection_clip)

    def forward(
        self,
        inputs: Tensor,  # (batch, time, input_dim)
        state: LSTMState,  # before the first step
        mask: Tensor | None = None,  # (batch, time): False gives 0 and keeps the state
        reverse: bool = False,  # read from the last step to the first
        adds_inputs: bool = False,  # the skip connection: add the inputs to the outputs, not to the state
    ) -> tuple[Tensor, LSTMState]:
        """Run the layer on a batch. Return outputs ``(batch, time, projection_dim)`` and the final state."""
        outputs, hidden, cell = run_lstm(inputs, *state, self.weights, mask, reverse, adds_inputs)
        return outputs, LSTMState(hidden, cell)


class LSTMStack(nn.Module):
    """The LSTM layers of one direction, with a skip connection around every layer but the first.

    Dropout is applied to every layer's input, with a new mask at every step. As in bilm-tf, the skip connection adds
    the input after dropout.
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
            # Skip connections need equal input and output sizes in every layer.
            for _ in range(n_layers)
        )
        self.skip_connections = skip_connections
        self.dropout = Dropout(dropout)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights of every layer."""
        for layer in self.layers:
            assert isinstance(layer, ProjectedLSTM)
            layer.reset_parameters(generator)

    def forward(
        self,
        inputs: Tensor,  # (batch, time, projection_dim)
        states: list[LSTMState],  # each layer's state before the first step
        mask: Tensor | None = None,  # (batch, time), bool; None if every position is real
        reverse: bool = False,  # read from the last step to the first
    ) -> tuple[list[Tensor], list[LSTMState]]:
        """Run all layers on a batch. Return each layer's outputs ``(batch, time, projection_dim)`` and new state."""
        outputs: list[Tensor] = []
        new_states = []
        for index, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            layer_inputs = self.dropout(inputs)
            # bilm-tf wraps the cell in ResidualWrapper and then in DropoutWrapper, so the residual is the input after
            # dropout. It adds the residual only to layers after the first.
            if self.skip_connections and index > 0:
                inputs, new_state = layer(layer_inputs, state, mask, reverse, adds_inputs=True)
            else:
                inputs, new_state = layer(layer_inputs, state, mask, reverse)
            outputs.append(inputs)
            new_states.append(new_state)
        return outputs, new_states

    def kernels(self) -> list[LayerKernel]:
        """Describe how each layer is computed when no gradient is needed."""
        return [kernel_for(layer.weight) for layer in self.layers if isinstance(layer, ProjectedLSTM)]


def check_no_gaps(mask: Tensor) -> None:
    """Raise a ``ValueError`` if a mask has padding before or between tokens, unless the computation is traced."""
    if not is_traced() and has_gaps(mask):
        raise ValueError("There is padding before or between tokens; pad on the right only.")


def has_gaps(mask: Tensor) -> bool:
    """Check whether a row of a mask ``(batch, time)`` has padding before or between its tokens."""
    return bool((mask[:, 1:] & ~mask[:, :-1]).any())
