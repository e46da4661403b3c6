"""Give the weights of LSTM modules to the engine, which computes them without gradients on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from elmokit.engine.config import BiLMConfig
from elmokit.engine.library import Library
from elmokit.engine.lstm import LSTM
from elmokit.engine.precision import Precision
from elmokit.engine.state import State
from elmokit.engine.threads import n_threads


class PackableLayer(Protocol):
    """An LSTM layer, as the engine needs it: ``nn.lstm.ProjectedLSTM``."""

    hidden_dim: int
    projection_dim: int
    cell_clip: float | None
    projection_clip: float | None
    weight: Tensor
    bias: Tensor
    projection: Tensor | None


def pack_lstm(
    library: Library, precision: Precision, directions: Sequence[Sequence[PackableLayer]], skip_connections: bool
) -> LSTM:
    """Pack the layers of one or two directions, of which the second reads backward.

    Tensors are read where they are, without a copy, and packed.
    """
    first = directions[0][0]
    config = BiLMConfig(
        char_cnn=None,
        n_words=1,
        projection_dim=first.projection_dim,
        hidden_dim=first.hidden_dim,
        n_layers=len(directions[0]),
        cell_clip=first.cell_clip,
        projection_clip=first.projection_clip,
        skip_connections=skip_connections,
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


def run_lstm(
    lstm: LSTM,
    vectors: Tensor,
    state: tuple[Tensor, Tensor],
    mask: Tensor | None,
    directions: Sequence[int],
    reverse: Sequence[bool],
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run packed layers over a padded batch.

    Args:
        lstm: From ``pack_lstm``.
        vectors: ``(batch, time, dim)``.
        state: The state before the first step: hidden values ``(directions, layers, batch, dim)`` and cells
            ``(directions, layers, batch, hidden_dim)``.
        mask: ``(batch, time)`` bool; None if every position is real.
        directions: The directions of the LSTM to compute: one, or all.
        reverse: For each of them, whether to read from the last step to the first.

    Returns:
        All layers, the token vectors first, ``(layers + 1, batch, time, directions * dim)``, zero where the mask is
        False; and the new state, as it was given.
    """
    config = lstm.config
    n_rows, n_steps = vectors.shape[:2]
    # From NumPy: PyTorch would fill them in threads of its own, which then keep the engine's from their cores.
    layers = np.zeros((config.n_layers + 1, n_rows, n_steps, len(directions) * config.projection_dim), np.float32)
    real = vectors.new_ones(n_rows, n_steps, dtype=torch.bool) if mask is None else mask
    start = State.zero(config, n_rows)
    for number, own_hidden, own_cell in zip(directions, *state, strict=True):
        start.hidden[number], start.cell[number] = own_hidden.detach().numpy(), own_cell.detach().numpy()
    after = lstm.padded(
        vectors.detach().contiguous().numpy(),
        real.contiguous().numpy(),
        start,
        layers,
        directions,
        reverse,
        n_threads(),
    )
    hidden, cell = (torch.from_numpy(part[list(directions)]) for part in after)
    return torch.from_numpy(layers), (hidden, cell)
