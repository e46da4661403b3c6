"""The LSTM layers in C: one call computes all layers and directions of a batch."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.engine.architecture import BiLMConfig
from elmokit.engine.interface import NetworkInput, check_batch, check_direction, read_weights
from elmokit.engine.library import Library, address, check, open_packed, pointers, start_of
from elmokit.engine.precision import Precision
from elmokit.engine.state import Floats, State


class LSTM:
    """The packed LSTM layers of all directions. Each array is accessed once, when it is packed."""

    def __init__(
        self, config: BiLMConfig, arrays: Mapping[str, Floats], precision: Precision, library: Library
    ) -> None:
        self.config, self._library = config, library
        self._row = np.dtype(library.structs["row"])
        self._slots = ctypes.c_int64 * (config.n_layers + 1)
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
        """The size of the packed weights, in bytes."""
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
        """Compute the layers of a batch; see :meth:`~elmokit.engine.interface.Network.layers`."""
        dim = self.config.output_dim
        lengths: list[int] = inputs.lengths.tolist()
        # A separate array for each sentence, so that keeping one does not keep the whole batch in memory.
        layers = [np.empty((len(wanted), max(0, n - 2 * n_edges), dim), np.float32) for n in lengths]
        call = _Call((0, self.config.n_directions), n_edges, dim, [start_of(array) for array in layers])
        return layers, self._run(call, inputs, lengths, wanted, returns_state, threads)

    def direction(
        self, number: int, inputs: NetworkInput, wanted: Sequence[int], *, threads: int = 1
    ) -> tuple[list[Floats], State]:
        """Compute one direction of a batch; see :meth:`~elmokit.engine.interface.Network.direction`."""
        dim = self.config.projection_dim
        check_direction(self.config, number)
        lengths: list[int] = inputs.lengths.tolist()
        layers = [np.empty((len(wanted), max(0, n), dim), np.float32) for n in lengths]
        # C writes each direction at its own offset, so pass addresses that begin that much earlier.
        before = 4 * number * dim
        call = _Call((number, number + 1), 0, dim, [start_of(array) - before for array in layers])
        state = self._run(call, inputs, lengths, wanted, True, threads)
        assert state is not None
        return layers, state

    def _run(
        self,
        call: _Call,
        inputs: NetworkInput,
        lengths: list[int],
        wanted: Sequence[int],
        returns_state: bool,
        threads: int,
    ) -> State | None:
        config, library = self.config, self._library
        check_batch(config, np.float32, inputs, lengths, wanted)
        n_rows, start = len(lengths), inputs.start
        shape = (config.n_directions, config.n_layers)
        slots = self._slots(*[-1] * (config.n_layers + 1))
        for slot, layer in enumerate(wanted):
            slots[layer] = slot
        rows = self._rows(call, start_of(inputs.words), lengths)
        hidden, cell = (np.ascontiguousarray(part) for part in start)
        end = (
            State(
                np.empty((*shape, n_rows, config.projection_dim), np.float32),
                np.empty((*shape, n_rows, config.hidden_dim), np.float32),
            )
            if returns_state
            else None
        )
        first, last = call.directions
        batch = library.structs["batch"](
            n_rows=n_rows,
            rows=start_of(rows),
            vectors=start_of(inputs.vectors),
            slots=ctypes.addressof(slots),
            place_stride=call.place_stride,
            n_edges=call.n_edges,
            first_direction=first,
            last_direction=last,
            start_rows=start.n_rows,
            start_hidden=start_of(hidden),
            start_cell=start_of(cell),
            end_hidden=None if end is None else start_of(end.hidden),
            end_cell=None if end is None else start_of(end.cell),
        )
        check(library, library.layers(self._handle, threads, ctypes.byref(batch)))
        return end

    def _rows(self, call: _Call, words: int, lengths: list[int]) -> NDArray[Any]:
        """Return C's structs for the sentences of a batch, whose word indices begin at the address ``words``."""
        rows = []
        for length, layers in zip(lengths, call.layers, strict=True):
            n_places = max(0, length - 2 * call.n_edges)
            rows.append((length, words, 0, layers, n_places * call.place_stride))
            words += 8 * length
        return np.array(rows, self._row)


class _Call(NamedTuple):
    """What C should compute for a batch, and where to write it."""

    directions: tuple[int, int]
    """The first direction, and one past the last."""
    n_edges: int
    place_stride: int
    layers: list[int]
    """For each sentence, the address of position 0 in its first wanted layer."""
