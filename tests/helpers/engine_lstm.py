"""Packed LSTM layers of random weights, and their run from PyTorch's tensors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from elmokit.engine.architecture import BiLMConfig, tensor_shapes
from elmokit.engine.interface import NetworkInput
from elmokit.engine.library import Library
from elmokit.engine.lstm import LSTM
from elmokit.engine.precision import Precision
from elmokit.engine.state import Floats, State

LARGE_LAYERS: dict[Precision, tuple[int, int]] = {
    "float32": (1030, 260),
    "bfloat16": (1030, 520),
    "int8": (1030, 1030),
    "int7": (1030, 1030),
}
"""Units and outputs of layers whose packed weights have more than ``SMALL_LAYER_BYTES`` of ``engine.c``: threads share
their units. In smaller layers, each thread has rows of its own."""
SHARED_LAYERS = (150, 70)
"""Units and outputs of small layers that are still shared among threads for a dozen tokens: see ``SMALL_WORK`` of
``threads.h``."""
WIDENED_LAYERS = ((1200, 84), (320, 320))
"""Units and outputs of layers with more than ``MIN_WIDENED`` weights of ``engine.c``: lower precisions are used for
them even where weights are widened as they are loaded. The second has no projection."""


def lstm_config(
    hidden_dim: int,
    dim: int,
    n_layers: int = 1,
    clips: tuple[float | None, float | None] = (3.0, 3.0),
    bidirectional: bool = False,
) -> BiLMConfig:
    """Return the sizes of LSTM layers without a token layer."""
    return BiLMConfig(
        char_cnn=None,
        n_words=1,
        projection_dim=dim,
        hidden_dim=hidden_dim,
        n_layers=n_layers,
        cell_clip=clips[0],
        projection_clip=clips[1],
        bidirectional=bidirectional,
    )


def random_arrays(config: BiLMConfig) -> dict[str, Floats]:
    """Return weights for LSTM layers: products have a standard deviation of about 1."""
    generator = np.random.default_rng(0)
    return {
        name: (generator.normal(size=shape) / (shape[-1] ** 0.5 if len(shape) > 1 else 1)).astype(np.float32)
        for name, shape in tensor_shapes(config).items()
        if name.startswith("directions.")
    }


def random_lstm(library: Library, precision: Precision, config: BiLMConfig) -> LSTM:
    """Pack layers of random weights."""
    return LSTM(config, random_arrays(config), precision, library)


@functools.lru_cache(maxsize=4)  # a few of them: large ones have tens of megabytes
def two_layers(library: Library, size: Literal["small", "large"]) -> LSTM:
    """Pack two layers of two directions, once for all tests.

    Each thread has rows of its own in small layers, and units, with barriers in every step, in large ones.
    """
    hidden, dim = SHARED_LAYERS if size == "small" else LARGE_LAYERS["float32"]
    return random_lstm(library, "float32", lstm_config(hidden, dim, 2, bidirectional=True))


def one_layer(
    library: Library,
    precision: Precision,
    weight: Tensor,
    bias: Tensor,
    projection: Tensor | None,
    clips: tuple[float | None, float | None] = (3.0, 3.0),
) -> LSTM:
    """Pack one layer of one direction."""
    config = lstm_config(len(bias) // 4, weight.shape[1] // 2, 1, clips)
    tensors = {"weight": weight, "bias": bias, "projection": projection}
    arrays = {f"directions.0.layers.0.{name}": part.numpy() for name, part in tensors.items() if part is not None}
    return LSTM(config, arrays, precision, library)


def random_state(config: BiLMConfig, n_rows: int, seed: int = 0) -> State:
    """Return a state of random numbers."""
    generator = np.random.default_rng(seed)
    return State(*(generator.normal(size=part.shape).astype(np.float32) for part in State.zero(config, n_rows)))


def run_rows(lstm: LSTM, inputs: Tensor, cell: Tensor, hidden: Tensor, threads: int = 1) -> tuple[Tensor, Tensor]:
    """Run one layer over ``(rows, steps, dim)`` and return its outputs, of the same shape, and its cells."""
    n_rows, n_steps, _ = inputs.shape
    layers, state = lstm.layers(
        NetworkInput(
            inputs.flatten(0, 1).contiguous().numpy(),
            np.arange(n_rows * n_steps),
            np.full(n_rows, n_steps),
            State(hidden.numpy()[None, None], cell.numpy()[None, None]),
        ),
        [1],
        returns_state=True,
        threads=threads,
    )
    assert state is not None
    return torch.from_numpy(np.concatenate(layers)), torch.from_numpy(state.cell[0, 0])


def same_bits(these: Sequence[Floats], those: Sequence[Floats]) -> bool:
    """Return whether arrays are equal, one by one."""
    return all(np.array_equal(this, that) for this, that in zip(these, those, strict=True))
