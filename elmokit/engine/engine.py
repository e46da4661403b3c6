"""The network without gradients on a CPU: packed weights and C calls.

One :class:`Engine` owns the packed weights of a whole biLM. It chooses its kernels once, when it packs. A batch is one
C call through all layers and directions.

The same sentence gets the same bits in any batch, in any order and with any number of threads. This is the price of it:
sums run over their inputs in one order whatever the number of rows, so a product cannot be divided among threads by its
inputs, and tiles of all shapes keep that order (``packed_product.h``).
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.engine.config import BiLMConfig, CharCNNConfig, tensor_shapes
from elmokit.engine.library import Library, address
from elmokit.engine.precision import NAMES, Precision
from elmokit.engine.state import Floats, State

Ids = NDArray[np.int64]


class Kernels(NamedTuple):
    """What computes a model without gradients.

    Equal kernels compute equal bits.
    """

    token_layer: Precision
    """The precision of the token layer; it may be more precise than the requested one, where that is faster."""
    lstm: Precision
    """The precision of the LSTM layers, likewise."""
    instructions: str
    """The instruction set of the C functions."""


class TokenLayer:
    """A packed token layer: from the characters of a token, its word id or both to a context-free vector.

    Args:
        config: The architecture of the biLM that it belongs to.
        arrays: The weights in float32, by the names of :func:`~elmokit.engine.config.tensor_shapes`. They are packed,
            and no reference to them is kept.
        precision: The lowest precision in which weights may be computed.
        library: The C functions.

    Raises:
        MemoryError: There is too little memory for the packed weights.
        ValueError: An array has the wrong shape.
    """

    def __init__(
        self, config: BiLMConfig, arrays: Mapping[str, Floats], precision: Precision, library: Library
    ) -> None:
        self.config, self._library = config, library
        given, pointers = _pointers(config, arrays, "token_layer.")
        weights = _TokenWeights(config, pointers)
        self._handle = _opened(self, library, "tokens", weights.struct(library), precision)
        del given  # alive until here: C has read its memory

    @property
    def n_bytes(self) -> int:
        """The memory that the packed weights take."""
        return int(self._library.tokens_bytes(self._handle))

    def __call__(self, ids: Ids, threads: int = 1) -> Floats:
        """Compute the context-free vectors of tokens.

        Args:
            ids: Char ids ``(tokens, chars)``; a word id and char ids ``(tokens, 1 + chars)`` for a model with word
                features; or word ids ``(tokens,)`` for a word-input model. 0 means "no token".
            threads: The number of threads.

        Returns:
            ``(tokens, projection_dim)``

        Raises:
            ValueError: An id is not a row of its table.
        """
        config = self.config
        ids = np.ascontiguousarray(ids, np.int64)
        ids = ids[:, None] if ids.ndim == 1 else ids
        vectors = np.empty((len(ids), config.projection_dim), np.float32)
        _check(
            self._library,
            self._library.token_vectors(
                self._handle,
                threads,
                *ids.shape,
                address("ids", ids, np.int64, (-1, -1)),
                address("vectors", vectors, np.float32),
            ),
        )
        return vectors


class LSTM:
    """The packed LSTM layers of all directions.

    Arguments and errors as in :class:`TokenLayer`.
    """

    def __init__(
        self, config: BiLMConfig, arrays: Mapping[str, Floats], precision: Precision, library: Library
    ) -> None:
        self.config, self._library = config, library
        self._row = np.dtype(library.structs["row"])
        given, pointers = _pointers(config, arrays, "directions.")
        weights = _LSTMWeights(config, pointers)
        self._handle = _opened(self, library, "lstm", weights.struct(library), precision)
        del given  # alive until here: C has read its memory

    @property
    def n_bytes(self) -> int:
        """The memory that the packed weights take."""
        return int(self._library.lstm_bytes(self._handle))

    def layers(
        self,
        vectors: Floats,
        words: Ids,
        lengths: Ids,
        start: State,
        wanted: Sequence[int],
        *,
        n_edges: int = 0,
        returns_state: bool = False,
        threads: int = 1,
    ) -> tuple[list[Floats], State | None]:
        """Compute the layers of some sentences.

        Args:
            vectors: The token vectors of the batch, ``(words, projection_dim)``.
            words: For each position of each sentence, a row of ``vectors``: all sentences one after the other.
            lengths: The number of positions of each sentence, boundaries included.
            start: The state before the first position, of one row for each sentence or of one row for all.
            wanted: The layers to return.
            n_edges: Positions at both ends of each sentence that are not returned.
            returns_state: Return the state after each sentence.
            threads: The number of threads.

        Returns:
            For each sentence ``(wanted layers, positions, output_dim)``; and the state, or None.
        """
        dim = self.config.output_dim
        sizes = np.maximum(lengths - 2 * n_edges, 0)
        # An array of its own for each sentence, so that keeping one does not keep its whole batch in memory.
        layers = [np.empty((len(wanted), size, dim), np.float32) for size in sizes.tolist()]
        rows = np.zeros(len(lengths), self._row)
        rows["layers"] = [array.__array_interface__["data"][0] for array in layers]
        rows["layer_stride"] = sizes * dim
        state = self._run(rows, vectors, words, lengths, start, wanted, n_edges, dim, (0, None), returns_state, threads)
        return layers, state

    def direction(
        self, number: int, vectors: Floats, words: Ids, start: State, *, returns_layers: bool, threads: int = 1
    ) -> tuple[Floats, State]:
        """Compute the layers of one sentence in one direction, for texts that are read in chunks.

        Args:
            number: The direction.
            vectors, words, start: As in :meth:`layers`.
            returns_layers: Return all layers; else the result has none, and only the state is computed.

        Returns:
            ``(layers, positions, projection_dim)``, and the state, whose other direction is arbitrary.
        """
        config = self.config
        n_layers, dim = (config.n_layers + 1 if returns_layers else 0), config.projection_dim
        # C writes each direction next to the others, so the array begins as many numbers before the first one.
        layers = np.empty((n_layers, len(words), dim), np.float32)
        rows = np.zeros(1, self._row)
        rows["layers"] = layers.__array_interface__["data"][0] - 4 * number * dim
        rows["layer_stride"] = len(words) * dim
        lengths, wanted = np.array([len(words)]), range(n_layers)
        state = self._run(rows, vectors, words, lengths, start, wanted, 0, dim, (number, number + 1), True, threads)
        assert state is not None
        return layers, state

    def padded(
        self,
        vectors: Floats,
        mask: NDArray[np.bool_],
        start: State,
        layers: Floats,
        directions: Sequence[int],
        reverse: Sequence[bool],
        threads: int = 1,
    ) -> State:
        """Compute the layers of a padded batch, for the PyTorch modules.

        Args:
            vectors: The token vectors, ``(batch, time, projection_dim)``.
            mask: ``(batch, time)``, True on a real token, with holes anywhere.
            start: The state before the first position, of one row for each row of the batch.
            layers: Where to write the layers: ``(layers + 1, batch, time, directions * projection_dim)`` in zeros.
            directions: The directions to compute, one or all.
            reverse: For each of them, whether to read from the last position to the first.
            threads: The number of threads.

        Returns:
            The state after each row. That of a direction that was not computed is arbitrary.
        """
        config, dim = self.config, self.config.projection_dim
        n_rows, n_steps = mask.shape
        positions = np.flatnonzero(mask)
        lengths = mask.sum(axis=1)
        rows = np.zeros(n_rows, self._row)
        stride = len(directions) * dim
        rows["layer_stride"] = n_rows * n_steps * stride
        state: State | None = None
        # One call for both directions if each reads as it was packed to; else C gets the positions in reverse.
        as_packed = [config.read_backward[number] for number in directions] == list(reverse)
        for calls in [list(directions)] if as_packed else [[number] for number in directions]:
            first = calls[0]
            flips = config.read_backward[first] != reverse[list(directions).index(first)]
            read = positions[_flipped(lengths)] if flips else positions
            # Each direction is written next to the ones before, so the array begins as many numbers earlier.
            base = address("layers", layers, np.float32, (config.n_layers + 1, n_rows, n_steps, stride))
            assert base is not None
            rows["layers"] = base - 4 * dim * directions[0]
            rows["places"] = _row_addresses("places", read, lengths)
            after = self._run(
                rows,
                vectors.reshape(-1, dim),
                read,
                lengths,
                start,
                range(config.n_layers + 1),
                0,
                stride,
                (first, calls[-1] + 1),
                True,
                threads,
            )
            assert after is not None
            if state is None:
                state = after
            else:
                state.hidden[first], state.cell[first] = after.hidden[first], after.cell[first]
        assert state is not None
        return state

    def _run(
        self,
        rows: NDArray[Any],
        vectors: Floats,
        words: Ids,
        lengths: Ids,
        start: State,
        wanted: Sequence[int],
        n_edges: int,
        place_stride: int,
        directions: tuple[int, int | None],
        returns_state: bool,
        threads: int,
    ) -> State | None:
        config, library = self.config, self._library
        n_rows = len(lengths)
        # Repeated pointers of a broadcast state would be copies: C reads one row for all.
        if start.n_rows not in (1, n_rows):
            raise ValueError(f"The state has {start.n_rows} rows, and the batch has {n_rows}.")
        if len(words) and not 0 <= words.min() <= words.max() < len(vectors):
            raise ValueError(f"words has numbers outside of the {len(vectors)} rows of vectors.")
        if n_rows and lengths.min() < 0:
            raise ValueError("lengths has a number below 0.")
        if lengths.sum() != len(words):
            raise ValueError(f"The lengths add up to {lengths.sum()}, and there are {len(words)} words.")
        if len(set(wanted)) < len(wanted) or not set(wanted) <= set(range(config.n_layers + 1)):
            raise ValueError(f"wanted must be distinct layers from 0 to {config.n_layers}, but is {list(wanted)}.")
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
            vectors=address("vectors", vectors, np.float32, (-1, config.projection_dim)),
            slots=address("slots", slots, np.int64),
            place_stride=place_stride,
            n_edges=n_edges,
            first_direction=first,
            last_direction=n_directions if last is None else last,
            start_rows=start.n_rows,
            start_hidden=address("hidden", hidden, np.float32, (*shape, start.n_rows, config.projection_dim)),
            start_cell=address("cell", cell, np.float32, (*shape, start.n_rows, config.hidden_dim)),
            end_hidden=None if end is None else address("hidden", end.hidden, np.float32),
            end_cell=None if end is None else address("cell", end.cell, np.float32),
        )
        _check(library, library.layers(self._handle, threads, ctypes.byref(batch)))
        return end


class Engine:
    """A biLM that is ready to compute: its token layer and its LSTM layers, packed, and the threads that compute them.

    Args:
        config: The architecture.
        arrays: As in :class:`TokenLayer`.
        precision: The lowest precision in which weights may be computed.
        library: The C functions.
        threads: The number of threads that compute a batch.

    Raises:
        MemoryError: There is too little memory for the packed weights.
        ValueError: An array has the wrong shape.

    Attributes:
        kernels: What computes.
    """

    def __init__(
        self, config: BiLMConfig, arrays: Mapping[str, Floats], precision: Precision, library: Library, threads: int = 1
    ) -> None:
        self.config, self.precision, self.threads = config, precision, threads
        self.kernels = choose_kernels(library, precision, 8 * config.hidden_dim * config.projection_dim)
        self._tokens = TokenLayer(config, arrays, precision, library)
        self._lstm = LSTM(config, arrays, precision, library)

    @property
    def n_bytes(self) -> int:
        """The memory that the packed weights take."""
        return self._tokens.n_bytes + self._lstm.n_bytes

    def token_vectors(self, ids: Ids) -> Floats:
        """Compute the context-free vectors of tokens; see :class:`TokenLayer`."""
        return self._tokens(ids, self.threads)

    def layers(
        self,
        vectors: Floats,
        words: Ids,
        lengths: Ids,
        start: State,
        wanted: Sequence[int],
        *,
        n_edges: int = 0,
        returns_state: bool = False,
    ) -> tuple[list[Floats], State | None]:
        """Compute the layers of some sentences; see :meth:`LSTM.layers`."""
        return self._lstm.layers(
            vectors, words, lengths, start, wanted, n_edges=n_edges, returns_state=returns_state, threads=self.threads
        )

    def direction(
        self, number: int, vectors: Floats, words: Ids, start: State, *, returns_layers: bool
    ) -> tuple[Floats, State]:
        """Compute the layers of one sentence in one direction; see :meth:`LSTM.direction`."""
        return self._lstm.direction(number, vectors, words, start, returns_layers=returns_layers, threads=self.threads)


def _pointers(
    config: BiLMConfig, arrays: Mapping[str, Floats], prefix: str
) -> tuple[list[Floats], dict[str, int | None]]:
    """Return the arrays of a part of the model, and where each begins."""
    shapes = {name: shape for name, shape in tensor_shapes(config).items() if name.startswith(prefix)}
    # AllenNLP's modules have a projection even where the sizes are equal.
    extra = (config.projection_dim, config.hidden_dim)
    shapes |= {name: extra for name in arrays if name.startswith(prefix) and name.endswith(".projection")}
    given = {name: np.ascontiguousarray(arrays[name], np.float32) for name in shapes}
    return list(given.values()), {name: address(name, given[name], np.float32, shapes[name]) for name in shapes}


def _opened(owner: object, library: Library, kind: str, weights: Any, precision: Precision) -> int | None:
    """Pack weights in C, and free them with their owner."""
    handle = ctypes.c_void_p()
    _check(library, getattr(library, f"open_{kind}")(weights, NAMES.index(precision), ctypes.byref(handle)))
    weakref.finalize(owner, getattr(library, f"close_{kind}"), handle.value)
    return handle.value


def _check(library: Library, reason: int) -> None:
    if reason == library.constants["NO_MEMORY"]:
        raise MemoryError("There is too little memory for the model or the batch.")
    if reason == library.constants["BAD_IDS"]:
        raise ValueError("ids contains numbers that the model has no character or word for.")
    if reason:
        raise ValueError("The sizes of the model do not fit together.")


def _row_addresses(name: str, numbers: Ids, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where the numbers of each row begin, in an array of rows of these lengths."""
    base = address(name, numbers, np.int64, (-1,))
    assert base is not None
    addresses: NDArray[np.int64] = base + 8 * (np.cumsum(lengths) - lengths)
    return addresses


def _flipped(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for rows that follow each other in memory, the index that reverses each of them."""
    starts = np.cumsum(lengths) - lengths
    inside = np.arange(lengths.sum()) - np.repeat(starts, lengths)
    flipped: NDArray[np.int64] = np.repeat(starts + lengths - 1, lengths) - inside
    return flipped


class Matrix:
    """A packed matrix, to measure products with: ``rows @ weight.T``.

    Args:
        weight: ``(outputs, inputs)``.
        precision: The precision of the packed weights.
        library: The C functions.
    """

    def __init__(self, weight: Floats, precision: Precision, library: Library) -> None:
        self._library, self._shape = library, weight.shape
        handle = ctypes.c_void_p()
        weight = np.ascontiguousarray(weight, np.float32)
        _check(
            library,
            library.open_matrix(
                NAMES.index(precision), *weight.shape, address("weight", weight, np.float32), None, ctypes.byref(handle)
            ),
        )
        weakref.finalize(self, library.close_matrix, handle.value)
        self._handle = handle.value

    def __call__(self, rows: Floats, threads: int = 1) -> Floats:
        """Return ``(rows, outputs)`` for ``(rows, inputs)``."""
        outputs = np.empty((len(rows), self._shape[0]), np.float32)
        given = address("rows", rows, np.float32, (-1, self._shape[1]))
        to = address("outputs", outputs, np.float32)
        _check(self._library, self._library.multiply(self._handle, threads, len(rows), given, to))
        return outputs


def log_sum_exp(
    library: Library, rows: Floats, weight: Floats, bias: Floats, precision: Precision, threads: int
) -> NDArray[np.float64]:
    """Return the logarithm of the sum of the exponentials of each row's scores, ``rows @ weight.T + bias``.

    The scores are never stored, and the weight is not packed.

    Args:
        library: The C functions.
        rows: ``(rows, dim)``.
        weight: ``(words, dim)``.
        bias: ``(words,)``.
        precision: The lowest precision: bfloat16 is used below float32 if the processor multiplies such numbers.
        threads: The number of threads.
    """
    result = np.empty(len(rows), np.float64)
    n_words, dim = weight.shape
    reason = library.log_sum_exp(
        *(threads, NAMES.index(precision), len(rows), address("rows", rows, np.float32, (-1, dim)), dim),
        *(address("weight", weight, np.float32), address("bias", bias, np.float32, (n_words,)), n_words),
        address("result", result, np.float64),
    )
    _check(library, reason)
    return result


def word_scores(library: Library, rows: Floats, weight: Floats, bias: Floats, words: Ids) -> NDArray[np.float64]:
    """Return the score of one word for each row; arguments as in :func:`log_sum_exp`, and ``(rows,)`` words."""
    scores = np.empty(len(rows), np.float64)
    n_words, dim = weight.shape
    if len(words) and not 0 <= words.min() <= words.max() < n_words:
        raise IndexError(f"Expected word ids from 0 to {n_words - 1}.")
    library.word_scores(
        *(len(rows), address("rows", rows, np.float32, (-1, dim)), dim, address("weight", weight, np.float32)),
        *(address("bias", bias, np.float32, (n_words,)), address("words", words, np.int64, (len(rows),))),
        address("scores", scores, np.float64),
    )
    return scores


def choose_kernels(library: Library, precision: Precision, n_weights: int) -> Kernels:
    """Return what computes a model where a precision was requested.

    Args:
        library: The C functions.
        precision: The lowest precision that is accepted.
        n_weights: Weights of an LSTM layer, without its projection.
    """
    chosen = library.structs["kernels"]()
    library.choose_kernels(NAMES.index(precision), n_weights, ctypes.byref(chosen))
    return Kernels(NAMES[chosen.token_layer], NAMES[chosen.lstm], library.instructions)


class _TokenWeights:
    """The token layer of ``elmokit.h``, and the arrays of pointers that it leads to."""

    def __init__(self, config: BiLMConfig, pointers: Mapping[str, int | None]) -> None:
        self.fields: dict[str, Any] = {"output_dim": config.projection_dim}
        self._pointers = pointers
        words, cnn = config.word_features, config.char_cnn
        if config.n_words is not None:
            self._add_words("embedding.weight", config.n_words, config.projection_dim)
        if words is not None:
            self._add_words("word_embedding.weight", words.n_words, words.word_dim)
        if cnn is not None:
            self._add_characters(cnn, "" if words is None else "chars.")
        self.fields["projection"] = self._pointer("projection.weight")
        self.fields["projection_bias"] = self._pointer("projection.bias")

    def struct(self, library: Library) -> Any:
        return ctypes.byref(library.structs["token_weights"](**self.fields))

    def _pointer(self, name: str) -> int | None:
        return self._pointers.get(f"token_layer.{name}")

    def _add_words(self, name: str, n_words: int, dim: int) -> None:
        self.fields |= {"n_words": n_words + 1, "word_dim": dim, "words": self._pointer(name)}

    def _add_characters(self, cnn: CharCNNConfig, prefix: str) -> None:
        convolutions = [f"{prefix}convolutions.{number}." for number in range(len(cnn.filters))]
        highways = [
            f"{prefix}highways.{number}.{part}.{name}"
            for number in range(cnn.n_highway)
            for part in ("transform", "gate")
            for name in ("weight", "bias")
        ]
        self.widths, self.n_filters = np.array(cnn.filters).T.copy()
        self.arrays = [
            _pointer_array(self._pointer(name) for name in names)
            for names in (
                [f"{name}weight" for name in convolutions],
                [f"{name}bias" for name in convolutions],
                highways,
            )
        ]
        self.fields |= {
            "n_characters": cnn.n_chars + 1,
            "character_dim": cnn.char_dim,
            "characters": self._pointer(f"{prefix}char_embedding.weight"),
            "n_convolutions": len(convolutions),
            "widths": address("widths", self.widths, np.int64),
            "n_filters": address("n_filters", self.n_filters, np.int64),
            "filters": ctypes.addressof(self.arrays[0]),
            "filter_biases": ctypes.addressof(self.arrays[1]),
            "uses_tanh": cnn.activation == "tanh",
            "n_highways": cnn.n_highway,
            "highways": ctypes.addressof(self.arrays[2]),
        }


class _LSTMWeights:
    """The LSTM layers of ``elmokit.h``, and the arrays of pointers that they lead to."""

    def __init__(self, config: BiLMConfig, pointers: Mapping[str, int | None]) -> None:
        layers = [
            f"directions.{direction}.layers.{layer}."
            for direction in range(config.n_directions)
            for layer in range(config.n_layers)
        ]
        self.arrays = {
            field: _pointer_array(pointers.get(layer + name) for layer in layers)
            for field, name in (("weights", "weight"), ("biases", "bias"), ("projections", "projection"))
        }
        self.backward = np.array(config.read_backward, np.int64)
        self.fields = {
            "n_directions": config.n_directions,
            "reads_backward": address("backward", self.backward, np.int64),
            "n_layers": config.n_layers,
            "dim": config.projection_dim,
            "hidden_dim": config.hidden_dim,
            "cell_clip": np.inf if config.cell_clip is None else config.cell_clip,
            "output_clip": np.inf if config.projection_clip is None else config.projection_clip,
            "adds_inputs": config.skip_connections,
            **{field: ctypes.addressof(array) for field, array in self.arrays.items()},
        }
        if not any(name.endswith(".projection") for name in pointers):
            self.fields["projections"] = None

    def struct(self, library: Library) -> Any:
        return ctypes.byref(library.structs["lstm_weights"](**self.fields))


def _pointer_array(pointers: Any) -> ctypes.Array[Any]:
    listed = list(pointers)
    return (ctypes.c_void_p * max(1, len(listed)))(*listed)
