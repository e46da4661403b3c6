"""The LSTM layers in C: a batch of sentences is one call through all layers and directions."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.engine.architecture import BiLMConfig
from elmokit.engine.interface import NetworkInput, check_batch, check_direction, read_weights
from elmokit.engine.library import Library, address, check, open_packed, pointers
from elmokit.engine.precision import Precision
from elmokit.engine.state import Floats, Ids, State


class LSTM:
    """The packed LSTM layers of all directions. Each array is asked for once, when it is packed."""

    def __init__(
        self, config: BiLMConfig, arrays: Mapping[str, Floats], precision: Precision, library: Library
    ) -> None:
        self.config, self._library = config, library
        self._row = np.dtype(library.structs["row"])
        backward = np.array(config.read_backward, np.int64)
        sizes = library.structs["lstm_sizes"](
            n_directions=config.n_directions,
            reads_backward=address("backward", backward, np.int64),
            n_layers=config.n_layers,
            dim=config.projection_dim,
            hidden_dim=config.hidden_dim,
            cell_clip=np.inf if config.cell_clip is None else config.cell_clip,
            output_clip=np.inf if config.projection_clip is None else config.projection_clip,
            adds_inputs=config.skip_connections,
        )
        self._handle = open_packed(self, library, "lstm", sizes, precision)
        for direction in range(config.n_directions):
            for layer in range(config.n_layers):
                self._pack_layer(arrays, direction, layer)

    def _pack_layer(self, arrays: Mapping[str, Floats], direction: int, layer: int) -> None:
        prefix = f"directions.{direction}.layers.{layer}."
        weights = read_weights(self.config, arrays, prefix, np.float32)
        parts = pointers(weights, ("weight", "bias", "projection"))
        check(self._library, self._library.pack_layer(self._handle, direction, layer, *parts))

    @property
    def n_bytes(self) -> int:
        """The memory that the packed weights take."""
        return int(self._library.lstm_bytes(self._handle))

    def layers(
        self,
        inputs: NetworkInput,
        wanted: Sequence[int],
        *,
        n_edges: int = 0,
        returns_state: bool = False,
        threads: int = 1,
    ) -> tuple[list[Floats], State | None]:
        """Compute the layers of some sentences; see :meth:`~elmokit.engine.interface.Network.layers`."""
        dim = self.config.output_dim
        layers, rows = self._layers_of_sentences(np.maximum(inputs.lengths - 2 * n_edges, 0), wanted, dim)
        state = self._run(rows, inputs, wanted, n_edges, dim, (0, None), returns_state, threads)
        return layers, state

    def direction(
        self, number: int, inputs: NetworkInput, wanted: Sequence[int], *, threads: int = 1
    ) -> tuple[list[Floats], State]:
        """Compute one direction of some sentences; see :meth:`~elmokit.engine.interface.Network.direction`."""
        dim = self.config.projection_dim
        check_direction(self.config, number)
        layers, rows = self._layers_of_sentences(inputs.lengths, wanted, dim)
        # C writes each direction next to the others, so the arrays begin as many numbers before the first one.
        rows["layers"] -= 4 * number * dim
        state = self._run(rows, inputs, wanted, 0, dim, (number, number + 1), True, threads)
        assert state is not None
        return layers, state

    def _layers_of_sentences(self, sizes: Ids, wanted: Sequence[int], dim: int) -> tuple[list[Floats], NDArray[Any]]:
        """Return an array for the layers of each sentence, and the rows of a batch that C writes there."""
        # An array of its own for each sentence, so that keeping one does not keep its whole batch in memory.
        layers = [np.empty((len(wanted), max(0, size), dim), np.float32) for size in sizes.tolist()]
        rows = np.zeros(len(layers), self._row)
        rows["layers"] = [array.__array_interface__["data"][0] for array in layers]
        rows["layer_stride"] = sizes * dim
        return layers, rows

    def _run(
        self,
        rows: NDArray[Any],
        inputs: NetworkInput,
        wanted: Sequence[int],
        n_edges: int,
        place_stride: int,
        directions: tuple[int, int | None],
        returns_state: bool,
        threads: int,
    ) -> State | None:
        config, library = self.config, self._library
        check_batch(config, np.float32, inputs, wanted)
        vectors, words, lengths, start = inputs
        n_rows = len(lengths)
        n_directions = config.n_directions
        shape = (n_directions, config.n_layers)
        rows["length"] = lengths
        rows["words"] = _row_addresses("words", words, lengths)
        slots = np.full(config.n_layers + 1, -1)
        slots[list(wanted)] = range(len(wanted))
        hidden, cell = (np.ascontiguousarray(part) for part in start)
        end = (
            State(
                np.empty((*shape, n_rows, config.projection_dim), np.float32),
                np.empty((*shape, n_rows, config.hidden_dim), np.float32),
            )
            if returns_state
            else None
        )
        first, last = directions
        batch = library.structs["batch"](
            n_rows=n_rows,
            rows=rows.__array_interface__["data"][0],
            vectors=address("vectors", vectors, np.float32),
            slots=address("slots", slots, np.int64),
            place_stride=place_stride,
            n_edges=n_edges,
            first_direction=first,
            last_direction=n_directions if last is None else last,
            start_rows=start.n_rows,
            start_hidden=address("hidden", hidden, np.float32),
            start_cell=address("cell", cell, np.float32),
            end_hidden=None if end is None else address("hidden", end.hidden, np.float32),
            end_cell=None if end is None else address("cell", end.cell, np.float32),
        )
        check(library, library.layers(self._handle, threads, ctypes.byref(batch)))
        return end


def _row_addresses(name: str, numbers: Ids, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where the numbers of each row begin, in an array of rows of these lengths."""
    base = address(name, numbers, np.int64, (-1,))
    assert base is not None
    addresses: NDArray[np.int64] = base + 8 * (np.cumsum(lengths) - lengths)
    return addresses
