"""The network in NumPy: plain formulas, against which the C functions are tested.

They are much slower than the C functions, and only need NumPy. One step of an LSTM layer from input ``x`` and state
``(m, c)``, as in bilm-tf (Sak et al. 2014, without peepholes)::

    i, g, f, o = weight @ [x, m] + bias
    c' = clip(sigmoid(f + 1) * c + sigmoid(i) * tanh(g), cell_clip)
    m' = clip(projection @ (sigmoid(o) * tanh(c')), projection_clip)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from elmokit.engine.architecture import FORGET_OFFSET, BiLMConfig, CharCNNConfig
from elmokit.engine.interface import Network, NetworkInput, check_batch, check_direction, read_weights, token_rows
from elmokit.engine.library import UNKNOWN_IDS, WRONG_SIZES
from elmokit.engine.precision import Backend, Computation
from elmokit.engine.state import Floats, Ids, State, overflow_is_checked_later

Array = NDArray[Any]  # float32 or float64

TOKENS_AT_ONCE = 64  # bounds the convolutions' memory: 180 kB per token in the original model


class ReferenceEngine(Network):
    """A biLM computed by NumPy, with the interface of :class:`~elmokit.engine.engine.Engine`.

    A sentence's vectors depend only on that sentence and its start state, except in the last bits: the summation order
    of NumPy's matrix products depends on the number of rows.

    Args:
        config: The architecture.
        arrays: The weights, named as in :func:`~elmokit.engine.architecture.tensor_shapes`. Arrays that already have
            the dtype are not copied.
        dtype: ``float32``, or ``float64`` for comparisons; token vectors and states must have the same dtype.

    Raises:
        ValueError: An array has the wrong shape.
    """

    def __init__(self, config: BiLMConfig, arrays: Mapping[str, Floats], dtype: Any = np.float32) -> None:
        self._config, self.dtype = config, np.dtype(dtype)
        self._token_layer = read_weights(config, arrays, "token_layer.", dtype)
        self._lstm_layers = [
            [
                _LSTMLayer(config, **read_weights(config, arrays, f"directions.{direction}.layers.{layer}.", dtype))
                for layer in range(config.n_layers)
            ]
            for direction in range(config.n_directions)
        ]

    @property
    def config(self) -> BiLMConfig:
        return self._config

    @property
    def token_layer_version(self) -> object:
        return self

    def computation(self) -> Computation:
        backends: list[Backend] = ["reference"] * (1 + self.config.n_directions * self.config.n_layers)
        return Computation("cpu", f"NumPy {np.__version__}", "float32", tuple(backends))

    @property
    def n_bytes(self) -> int:
        total = sum(array.nbytes for array in self._token_layer.values())
        for layers in self._lstm_layers:
            total += sum(layer.n_bytes for layer in layers)
        return total

    @overflow_is_checked_later
    def token_vectors(self, ids: Ids) -> Floats:
        rows = token_rows(self.config, ids)
        _check_ids(self.config, rows)
        vectors = np.empty((len(rows), self.config.projection_dim), self.dtype)
        for start in range(0, len(rows), TOKENS_AT_ONCE):
            chunk = slice(start, start + TOKENS_AT_ONCE)
            vectors[chunk] = _token_vectors(self.config, self._token_layer, rows[chunk])
        return vectors

    @overflow_is_checked_later
    def layers(
        self, inputs: NetworkInput, wanted: Sequence[int], *, n_edges: int = 0, returns_state: bool = False
    ) -> tuple[list[Floats], State | None]:
        check_batch(self.config, self.dtype, inputs, inputs.lengths.tolist(), wanted)
        runs = [self._run(number, inputs) for number in range(self.config.n_directions)]
        layers = np.concatenate([run.layers for run in runs], axis=2)
        sentences = _sentences(layers, inputs.lengths, wanted, n_edges)
        if not returns_state:
            return sentences, None
        hidden, cell = np.stack([run.hidden for run in runs]), np.stack([run.cell for run in runs])
        return sentences, State(hidden, cell)

    @overflow_is_checked_later
    def direction(self, number: int, inputs: NetworkInput, wanted: Sequence[int]) -> tuple[list[Floats], State]:
        check_direction(self.config, number)
        check_batch(self.config, self.dtype, inputs, inputs.lengths.tolist(), wanted)
        run = self._run(number, inputs)
        both = self.config.n_directions
        state = State(np.stack([run.hidden] * both), np.stack([run.cell] * both))
        return _sentences(run.layers, inputs.lengths, wanted, 0), state

    def _run(self, number: int, batch: NetworkInput) -> _Run:
        """Run all layers of one direction on the token vectors of a batch, all sentences concatenated."""
        vectors, words, lengths, start = batch
        config, n_rows, inputs = self.config, len(lengths), vectors[words]
        # Longest sentences first, so the sentences of each step are the first ones of the previous step.
        order = np.argsort(-lengths, kind="stable")
        steps = _positions_of_steps(lengths, order, config.read_backward[number])
        start_rows = order if start.n_rows == n_rows else np.zeros(n_rows, np.int64)
        layers, states = [inputs], []
        for index, layer in enumerate(self._lstm_layers[number]):
            hidden, cell = (part[number, index][start_rows] for part in start)
            outputs = np.empty_like(inputs)
            for positions in steps:
                n = len(positions)
                hidden[:n], cell[:n] = layer.step(inputs[positions], hidden[:n], cell[:n])
                outputs[positions] = hidden[:n]
            inputs = outputs + inputs if config.skip_connections and index > 0 else outputs
            layers.append(inputs)
            states.append((hidden, cell))
        in_order = np.argsort(order)
        after = (np.stack(parts)[:, in_order] for parts in zip(*states, strict=True))
        return _Run(np.stack(layers), *after)


class _Run(NamedTuple):
    """The results of one direction."""

    layers: Array  # (layers + 1, positions, projection_dim): all sentences concatenated
    hidden: Array  # (layers, rows, projection_dim)
    cell: Array  # (layers, rows, hidden_dim)


class _LSTMLayer:
    """One LSTM layer in one direction. The formulas are in this file's docstring."""

    def __init__(self, config: BiLMConfig, weight: Array, bias: Array, projection: Array | None = None) -> None:
        self.config, self.weight, self.bias, self.projection = config, weight, bias, projection

    @property
    def n_bytes(self) -> int:
        projection = 0 if self.projection is None else self.projection.nbytes
        return self.weight.nbytes + self.bias.nbytes + projection

    def step(self, inputs: Array, hidden: Array, cell: Array) -> tuple[Array, Array]:
        """Compute the outputs and cells of some rows after one step."""
        sums = np.concatenate([inputs, hidden], axis=1) @ self.weight.T + self.bias
        i, g, f, o = np.split(sums, 4, axis=1)
        kept = _sigmoid(f + FORGET_OFFSET) * cell
        cell = _clip(kept + _sigmoid(i) * np.tanh(g), self.config.cell_clip)
        output = _sigmoid(o) * np.tanh(cell)
        if self.projection is not None:
            output = _clip(output @ self.projection.T, self.config.projection_clip)
        return output, cell


def _positions_of_steps(lengths: Ids, order: Ids, backward: bool) -> list[Ids]:
    """Return the positions that each step computes, in a batch of concatenated sentences."""
    first = np.cumsum(lengths) - lengths
    last = first + lengths - 1
    steps = []
    for step in range(int(lengths.max(initial=0))):
        rows = order[: np.count_nonzero(lengths > step)]
        steps.append(last[rows] - step if backward else first[rows] + step)
    return steps


def _sentences(layers: Array, lengths: Ids, wanted: Sequence[int], n_edges: int) -> list[Array]:
    """Return a separate array with the wanted layers of each sentence."""
    numbers = np.array(wanted, np.int64)
    sentences = []
    start = 0
    for length in lengths:
        positions = np.arange(start + n_edges, start + length - n_edges)
        sentences.append(layers[np.ix_(numbers, positions)])
        start += length
    return sentences


def _token_vectors(config: BiLMConfig, weights: Mapping[str, Array], ids: Ids) -> Array:
    """Compute context-free token vectors from ids ``(tokens, ids per token)``."""
    if config.n_words is not None:
        return weights["embedding.weight"][ids[:, 0]]
    if config.word_features is None:
        assert config.char_cnn is not None
        return _projected(_char_features(config.char_cnn, weights, ids, ""), weights)
    features = weights["word_embedding.weight"][ids[:, 0]]
    if config.char_cnn is not None:
        features = np.concatenate([features, _char_features(config.char_cnn, weights, ids[:, 1:], "chars.")], axis=1)
    return _projected(features, weights)


def _char_features(cnn: CharCNNConfig, weights: Mapping[str, Array], ids: Ids, prefix: str) -> Array:
    """Compute the char CNN's features of tokens: convolutions, max pooling, highways."""
    characters = weights[f"{prefix}char_embedding.weight"][ids]  # (tokens, chars, char_dim)
    parts = []
    for number, (width, _) in enumerate(cnn.filters):
        filters = weights[f"{prefix}convolutions.{number}.weight"]  # (filters, char_dim, width)
        windows = sliding_window_view(characters, width, axis=1)  # (tokens, windows, char_dim, width)
        responses = np.tensordot(windows, filters, axes=([2, 3], [1, 2]))  # (tokens, windows, filters)
        parts.append(responses.max(axis=1) + weights[f"{prefix}convolutions.{number}.bias"])
    features: Array = np.concatenate(parts, axis=1)
    features = np.tanh(features) if cnn.activation == "tanh" else np.maximum(features, 0)
    for number in range(cnn.n_highway):
        layer = f"{prefix}highways.{number}."
        transformed, gate = (
            features @ weights[f"{layer}{part}.weight"].T + weights[f"{layer}{part}.bias"]
            for part in ("transform", "gate")
        )
        gate = _sigmoid(gate)
        features = gate * np.maximum(transformed, 0) + (1 - gate) * features
    return features


def _projected(features: Array, weights: Mapping[str, Array]) -> Array:
    """Project features, unless they already have the size of the outputs."""
    if "projection.weight" not in weights:
        return features
    return features @ weights["projection.weight"].T + weights["projection.bias"]


def _check_ids(config: BiLMConfig, ids: Ids) -> None:
    """Check token ids, as the C functions do."""
    table_sizes = []
    if config.n_words is not None:
        table_sizes.append(config.n_words)
    if config.word_features is not None:
        table_sizes.append(config.word_features.n_words)
    n_chars = ids.shape[1] - len(table_sizes)
    if config.char_cnn is None:
        fits = n_chars == 0
    else:
        fits = n_chars >= max(width for width, _ in config.char_cnn.filters)
        table_sizes += [config.char_cnn.n_chars] * n_chars
    if not fits:
        raise ValueError(WRONG_SIZES)
    # Table sizes do not count row 0, which means "no token".
    if bool(((ids < 0) | (ids > np.array(table_sizes))).any()):
        raise ValueError(UNKNOWN_IDS)


def _sigmoid(values: Array) -> Array:
    with np.errstate(over="ignore"):  # 1 / infinity is 0, which is correct
        return 1 / (1 + np.exp(-values))


def _clip(values: Array, bound: float | None) -> Array:
    return values if bound is None else values.clip(-bound, bound)
