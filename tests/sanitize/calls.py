"""Calls of every exported C function, with random sizes, precisions and thread counts.

A scenario makes the calls of one kind of object, such as a packed LSTM from its opening to its closing, in memory in
which mistakes are noticed (``buffers.py``). It also checks what the headers promise: every output is written, and its
bits depend on the number of threads only where a header says so.

``test_calls.py`` checks that the scenarios call every function that a header declares.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.engine.library import Library
from elmokit.engine.precision import NAMES
from tests.sanitize.buffers import Buffers, at, check_written

Array = NDArray[Any]
INT64 = np.int64


class CountedLibrary:
    """A library that counts the calls of its functions."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.calls: Counter[str] = Counter()
        self.structs, self.constants = library.structs, library.constants

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.library, name)

        def call(*arguments: Any) -> Any:
            self.calls[name] += 1
            return function(*arguments)

        return call


class Scenario:
    """What the scenarios share: a library, memory, and random choices that a seed repeats."""

    def __init__(self, library: CountedLibrary, buffers: Buffers, seed: int) -> None:
        self.library, self.buffers = library, buffers
        self.random, self.numbers = Random(seed), np.random.default_rng(seed)

    def size(self, most: int = 40) -> int:
        """Return a size: often near the sizes of vectors and tiles, where mistakes are."""
        near = [size for size in (1, 2, 4, 8, 16, 31, 32, 33, 64) if size <= most]
        return self.random.choice([self.random.choice(near), self.random.randint(1, most)])

    def threads(self) -> int:
        return self.random.choice([-1, 0, 1, 1, 2, 3, 3, 5, 8])

    def normal(self, *shape: int) -> Array:
        """Return random numbers, now and then with values that a program does not expect."""
        made = self.numbers.normal(size=shape).astype(np.float32)
        if made.size and self.random.random() < 0.2:
            odd = self.random.choice([0.0, -0.0, 1e-42, 1e30, -1e30, np.nan, np.inf, -np.inf])
            made.reshape(-1)[self.random.randrange(made.size)] = odd
        return made

    def weights(self, *shape: int) -> Array:
        """Return random numbers of a usual size. Weights are finite: models with others are not opened."""
        made = (self.numbers.normal(size=shape) / max(1, shape[-1]) ** 0.5).astype(np.float32)
        if self.random.random() < 0.1:
            made *= self.random.choice([0.0, 1e-38, 1e4])
        return made

    def floats(self, *shape: int) -> Array:
        return self.buffers.of(self.normal(*shape))

    def ids(self, most: int, *shape: int) -> Array:
        return self.buffers.of(self.numbers.integers(0, most, shape), INT64)

    def pointers(self, arrays: Sequence[Array]) -> Array:
        return self.buffers.of([at(array) for array in arrays], np.uint64)

    def precision(self) -> int:
        return self.random.randrange(len(NAMES))

    def same_bits(self, compute: Callable[[int], tuple[Array, ...]]) -> None:
        """Check that a function gives the same bits with one thread and with several."""
        alone, shared = compute(1), compute(self.threads())
        check_written(*alone, *shared)
        for one, other in zip(alone, shared, strict=True):
            assert np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()

    def fails(self, reason: str, result: int) -> None:
        assert result == self.library.constants[reason], f"{result} is not {reason}"


def questions(it: Scenario) -> None:
    """Call what only answers questions."""
    library = it.library
    for number, name in enumerate(NAMES):
        assert library.precision(name.encode()) == number
    assert library.precision(b"") == library.precision(b"float" * 99) == -1
    assert library.panel_width() in (8, 16, 32)
    assert library.has_bfloat16() in (0, 1)
    assert library.is_permitted() == 1
    kernels = library.structs["kernels"]()
    library.choose_kernels(it.precision(), it.random.choice([0, 1, 10**6, 10**9]), ctypes.byref(kernels))
    assert kernels.token_layer in range(len(NAMES))
    assert kernels.lstm in range(len(NAMES))
    n_bytes = it.random.choice([0, 1, 4095, 4096, 9000, 1 << 22])
    library.large_pages(it.buffers.scratch(n_bytes), n_bytes)


def matrix(it: Scenario) -> None:
    """Pack a matrix, multiply with it, and close it."""
    library, handle = it.library, ctypes.c_void_p()
    n_outputs, n_inputs = it.size(130), it.size(130)
    weight = it.buffers.of(it.weights(n_outputs, n_inputs))
    bias = it.random.choice([None, at(it.buffers.of(it.weights(n_outputs)))])
    assert not library.open_matrix(it.precision(), n_outputs, n_inputs, at(weight), bias, ctypes.byref(handle))
    for _ in range(2):
        inputs = it.buffers.of(it.weights(it.random.choice([0, 1, 2, 3, it.size(300)]), n_inputs))

        def multiply(n_threads: int, inputs: Array = inputs) -> tuple[Array]:
            outputs = it.buffers.output(len(inputs), n_outputs)
            assert not library.multiply(handle, n_threads, len(inputs), at(inputs), at(outputs))
            return (outputs,)

        it.same_bits(multiply)
    library.close_matrix(handle)
    library.close_matrix(None)


def tokens(it: Scenario) -> None:
    """Pack a token layer of any kind, compute tokens, and close it."""
    library, random = it.library, it.random
    has_words = random.random() < 0.5
    has_characters = not has_words or random.random() < 0.7
    sizes: dict[str, Any] = {"uses_tanh": random.randrange(2)}
    n_features = n_columns = 0
    if has_words:
        sizes |= {"n_words": it.size(), "word_dim": it.size(70)}
        shape = sizes["n_words"], sizes["word_dim"]
        if random.random() < 0.5:
            sizes["words"] = at(it.buffers.of(it.weights(*shape)))
        else:
            sizes["word_integers"] = at(it.buffers.of(it.numbers.integers(-128, 128, shape), np.int8))
            sizes["word_scales"] = at(it.buffers.of(np.abs(it.weights(shape[0]))))
    if has_characters:
        # Of that many characters, no table is kept.
        many = random.random() < 0.15
        n_characters, dim = 70_000 if many else it.size(300), it.size(20)
        widths = [random.randint(1, 9) for _ in range(random.randint(1, 4))]
        filters = [it.random.randint(60, 70) if many else it.size(70) for _ in widths]
        if many:
            widths[0] = 7
        n_features = sum(filters)
        n_columns = max(widths) + random.randint(0, 20)
        weights = [it.buffers.of(it.weights(n, dim, width)) for n, width in zip(filters, widths, strict=True)]
        biases = [it.buffers.of(it.weights(n)) for n in filters]
        sizes |= {"n_characters": n_characters, "character_dim": dim, "n_convolutions": len(widths)}
        sizes |= {"widths": at(it.buffers.of(widths, INT64)), "n_filters": at(it.buffers.of(filters, INT64))}
        sizes |= {"filters": at(it.pointers(weights)), "filter_biases": at(it.pointers(biases))}
        sizes |= {"characters": at(it.buffers.of(it.weights(n_characters, dim))), "n_highways": random.randint(0, 2)}
    n_inputs = sizes.get("word_dim", 0) + n_features
    sizes["output_dim"] = n_inputs
    if random.random() < 0.6:
        sizes["output_dim"] = it.size(70)
        sizes["projection"] = at(it.buffers.of(it.weights(sizes["output_dim"], n_inputs)))
        sizes["projection_bias"] = at(it.buffers.of(it.weights(sizes["output_dim"])))
    given = library.structs["token_weights"](**sizes)
    handle = ctypes.c_void_p()
    assert not library.open_tokens(ctypes.byref(given), it.precision(), ctypes.byref(handle))
    n_ids = int(has_words) + n_columns
    for highway in random.sample(range(sizes.get("n_highways", 0)), sizes.get("n_highways", 0)):
        shapes = [(n_features, n_features), (n_features,)] * 2
        parts = [at(it.buffers.of(it.weights(*shape))) for shape in shapes]
        assert not library.pack_highway(handle, highway, *parts)
    assert library.tokens_bytes(handle) > 0

    def random_ids(n_tokens: int) -> Array:
        made = it.numbers.integers(0, sizes.get("n_words", 1), (n_tokens, n_ids))
        if has_characters:
            lengths = it.numbers.integers(0, n_columns + 1, (n_tokens, 1))
            own = it.numbers.integers(0, n_characters, (n_tokens, n_columns))
            made[:, int(has_words) :] = np.where(np.arange(n_columns) < lengths, own, own[:, -1:])
        return made

    for n_tokens in (0, it.size(9), it.size(500)):
        ids = it.buffers.of(random_ids(n_tokens), INT64)

        def compute(n_threads: int, ids: Array = ids) -> tuple[Array]:
            vectors = it.buffers.output(len(ids), sizes["output_dim"])
            assert not library.token_vectors(handle, n_threads, len(ids), n_ids, at(ids), at(vectors))
            return (vectors,)

        it.same_bits(compute)
    wrong_ids = random_ids(5)
    wrong_ids[random.randrange(5), random.randrange(n_ids)] = random.choice([-1, 70_000, 2**63 - 1, -(2**63)])
    vectors = it.buffers.output(5, sizes["output_dim"])
    wrong_ids = it.buffers.of(wrong_ids, INT64)
    it.fails("BAD_IDS", library.token_vectors(handle, 2, 5, n_ids, at(wrong_ids), at(vectors)))
    library.close_tokens(handle)
    library.close_tokens(None)


def lstm(it: Scenario) -> None:
    """Pack LSTM layers, compute batches, also several at the same time, and close them."""
    library, random = it.library, it.random
    # Now and then a layer whose units are shared among threads (SMALL_LAYER_BYTES and SMALL_WORK), or one that is
    # computed from bfloat16 weights (MIN_WIDENED).
    kind = random.random()
    hidden, dim = (1030, 260) if kind < 0.02 else (320, 320) if kind < 0.06 else (it.size(70), it.size(40))
    n_layers, n_directions = random.randint(1, 2 if kind < 0.06 else 3), random.randint(1, 2)
    has_projection = hidden != dim or random.random() < 0.5
    backward = it.buffers.of([random.randrange(2) for _ in range(n_directions)], INT64)
    sizes = library.structs["lstm_sizes"](
        n_directions=n_directions,
        reads_backward=at(backward),
        n_layers=n_layers,
        dim=dim,
        hidden_dim=hidden,
        cell_clip=random.choice([np.inf, 3.0, 0.1]),
        output_clip=random.choice([np.inf, 3.0, 0.1]),
        adds_inputs=random.randrange(2),
    )
    handle = ctypes.c_void_p()
    assert not library.open_lstm(ctypes.byref(sizes), it.precision(), ctypes.byref(handle))
    places = [(direction, layer) for direction in range(n_directions) for layer in range(n_layers)]
    random.shuffle(places)
    for direction, layer in places:
        weight = at(it.buffers.of(it.weights(4 * hidden, 2 * dim)))
        bias = at(it.buffers.of(it.weights(4 * hidden)))
        projection = at(it.buffers.of(it.weights(dim, hidden))) if has_projection else None
        assert not library.pack_layer(handle, direction, layer, weight, bias, projection)
    assert library.lstm_bytes(handle) > 0
    for n_rows in (0, it.size(3), it.size(20)):
        compute = _batch(it, handle, (n_directions, n_layers, dim, hidden), n_rows, 4 if kind < 0.06 else 12)
        it.same_bits(compute)
        if random.random() < 0.3:
            # One model, several calls at the same time.
            expected = compute(1)
            with ThreadPoolExecutor(3) as pool:
                for found in pool.map(compute, [1, 2, 3]):
                    assert [part.tobytes() for part in found] == [part.tobytes() for part in expected]
    library.close_lstm(handle)
    library.close_lstm(None)


def _batch(
    it: Scenario, handle: ctypes.c_void_p, sizes: tuple[int, int, int, int], n_rows: int, longest: int
) -> Callable[[int], tuple[Array, ...]]:
    """Return a function that computes a random batch with some threads, and returns all that C wrote."""
    library, random, buffers = it.library, it.random, it.buffers
    n_directions, n_layers, dim, hidden = sizes
    lengths = [random.choice([0, 1, random.randint(1, longest)]) for _ in range(n_rows)]
    n_words = it.size(30)
    words = [it.ids(n_words, length) for length in lengths]
    vectors = it.floats(n_words, dim)
    wanted = random.sample(range(n_layers + 1), random.randint(0, n_layers + 1))
    slots = np.full(n_layers + 1, -1)
    slots[wanted] = range(len(wanted))
    slots = buffers.of(slots, INT64)
    start_rows = random.choice([1, max(1, n_rows)])
    start = [it.floats(n_directions, n_layers, start_rows, part) for part in (dim, hidden)]
    first = random.randrange(n_directions)
    last = random.randint(first + 1, n_directions)
    stride = n_directions * dim + random.choice([0, 0, 3])
    n_edges = random.choice([0, 0, 1, 2])
    with_places, with_state = random.random() < 0.3, random.random() < 0.7
    # Where the layers of each position go, if the caller says it: anywhere. Those of the ends are not looked at.
    orders = [buffers.of(it.numbers.permutation(length), INT64) for length in lengths]
    kept = [range(n_edges, max(n_edges, length - n_edges)) for length in lengths]

    def compute(n_threads: int) -> tuple[Array, ...]:
        outputs = []
        rows = np.zeros(n_rows, np.dtype(library.structs["row"]))
        for row, length in enumerate(lengths):
            n_places = length if with_places else len(kept[row])
            layers = buffers.output(max(0, len(wanted) * n_places * stride))
            outputs.append((layers.reshape(len(wanted), n_places, stride), row))
            rows[row]["length"], rows[row]["words"], rows[row]["layers"] = length, at(words[row]), at(layers)
            rows[row]["layer_stride"] = n_places * stride
            rows[row]["places"] = at(orders[row]) if with_places else 0
        rows = buffers.of(rows, rows.dtype)
        ends = [buffers.output(n_directions, n_layers, n_rows, part) if with_state else None for part in (dim, hidden)]
        batch = library.structs["batch"](
            n_rows=n_rows,
            rows=at(rows),
            vectors=at(vectors),
            slots=at(slots),
            place_stride=stride,
            n_edges=n_edges,
            first_direction=first,
            last_direction=last,
            start_rows=start_rows,
            start_hidden=at(start[0]),
            start_cell=at(start[1]),
            end_hidden=None if ends[0] is None else at(ends[0]),
            end_cell=None if ends[1] is None else at(ends[1]),
        )
        assert not library.layers(handle, n_threads, ctypes.byref(batch))
        written = [
            layers[:, orders[row][kept[row]] if with_places else slice(None), first * dim : last * dim]
            for layers, row in outputs
        ]
        return (*written, *[end[first:last] for end in ends if end is not None])

    return compute


def scoring(it: Scenario) -> None:
    """Score words with a softmax."""
    library = it.library
    n_rows, dim, n_words = it.random.choice([0, 1, it.size(70)]), it.size(70), it.size(it.random.choice([40, 3000]))
    rows = it.floats(n_rows, dim)
    weight, bias = it.buffers.of(it.weights(n_words, dim)), it.buffers.of(it.weights(n_words))
    precision = it.precision()

    def compute(n_threads: int) -> tuple[Array]:
        result = it.buffers.output(n_rows, dtype=np.float64)
        arguments = (at(rows), dim, at(weight), at(bias), n_words, at(result))
        assert not library.log_sum_exp(n_threads, precision, n_rows, *arguments)
        return (result,)

    it.same_bits(compute)
    words, scores = it.ids(n_words, n_rows), it.buffers.output(n_rows, dtype=np.float64)
    library.word_scores(n_rows, at(rows), dim, at(weight), at(bias), at(words), at(scores))
    check_written(scores)


def training_steps(it: Scenario) -> None:
    """Compute the elementwise part of an LSTM step, forward and backward."""
    library, buffers = it.library, it.buffers
    n_rows, hidden, clip = it.random.choice([0, it.size(70)]), it.size(90), it.random.choice([np.inf, 3.0, 0.1])
    sums, before, gradient, later = (it.normal(n_rows, size) for size in (4 * hidden, hidden, hidden, hidden))
    read = buffers.of(before)

    def compute(n_threads: int) -> tuple[Array, ...]:
        gates = buffers.writable(sums)
        after, tanh, outputs = (buffers.output(n_rows, hidden) for _ in range(3))
        sizes = (n_threads, n_rows, hidden)
        library.training_step(*sizes, at(gates), at(read), at(after), at(tanh), at(outputs), clip)
        upstream, cell_gradient = buffers.of(gradient), buffers.writable(later)
        gate_gradient = buffers.output(n_rows, 4 * hidden)
        library.training_step_backward(
            *(*sizes, at(upstream), at(gates), at(read), at(after), at(tanh), at(cell_gradient), at(gate_gradient)),
            clip,
        )
        return gates, after, tanh, outputs, cell_gradient, gate_gradient

    it.same_bits(compute)


def convolutions(it: Scenario) -> None:
    """Compute convolutions over characters, by products and by table, and their gradients."""
    library, buffers, random = it.library, it.buffers, it.random
    wide = library.panel_width()
    n_tokens, n_columns, dim, n_filters = random.choice([0, 1, it.size(150)]), it.size(50), it.size(20), it.size(70)
    width = random.randint(1, min(8, n_columns))
    n_inputs, n_panels = width * dim, -(-n_filters // wide)
    n_windows = buffers.of(it.numbers.integers(1, n_columns - width + 2, n_tokens), INT64)
    characters = it.floats(n_tokens, n_columns, dim)
    weight, given_bias = it.floats(n_filters, dim, width), it.floats(n_filters)
    panels, bias = buffers.output(n_panels, n_inputs, wide), buffers.output(n_panels * wide)
    library.pack_filters(n_filters, dim, width, at(weight), at(given_bias), at(panels), at(bias))
    check_written(panels, bias)
    sizes, strides = (n_inputs, n_filters), (n_columns * dim, dim)

    def compute(n_threads: int) -> tuple[Array, ...]:
        pooled, positions = buffers.output(n_tokens, n_filters), buffers.output(n_tokens, n_filters, dtype=np.int32)
        arguments = (at(characters), *strides, at(n_windows), at(panels), at(bias), *sizes, at(pooled), at(positions))
        library.convolve(n_threads, n_tokens, *arguments)
        return pooled, positions

    it.same_bits(compute)
    _, positions = compute(it.threads())
    assert (positions >= 0).all()
    assert (positions < np.asarray(n_windows)[:, None]).all()
    # Here the number of threads is the number of copies of the gradient, which sum differently.
    n_copies = random.randint(1, 4)
    weights, gradient, found = (
        it.floats(n_filters, n_inputs),
        it.floats(n_tokens, n_filters),
        buffers.of(positions, np.int32),
    )
    for _ in range(2):
        to_characters = buffers.writable(np.zeros((n_tokens, n_columns, dim)))
        to_weights = buffers.writable(np.zeros((n_copies, n_filters, n_inputs)))
        library.convolve_backward(
            *(n_copies, n_tokens, at(characters), *strides, at(weights), *sizes),
            *(at(found), at(gradient), at(to_characters), at(to_weights)),
        )
    n_rows, before = it.size(100), random.choice([0, 3])
    char_ids = it.ids(n_rows, n_tokens, n_columns)
    table, table_bias = it.floats(n_panels, n_rows, width, wide), it.floats(n_filters)
    # These features are some columns of a matrix; the last token's end with it.
    n_features = before + n_filters

    def by_table(n_threads: int) -> tuple[Array, ...]:
        pooled, winners = buffers.output(n_tokens, n_features), buffers.output(n_tokens, n_features, dtype=np.int32)
        library.table_convolve(
            *(n_threads, n_tokens, at(char_ids), n_columns, at(n_windows), width, at(table), n_rows, at(table_bias)),
            *(n_filters, n_features, at(pooled) + 4 * before, at(winners) + 4 * before),
        )
        upstream, to_table = it_gradient, buffers.writable(np.zeros((n_panels, n_rows, width, wide)))
        library.table_convolve_backward(
            *(n_threads, n_tokens, at(char_ids), n_columns, width, n_rows, n_filters, n_features),
            *(at(winners) + 4 * before, at(upstream) + 4 * before, at(to_table)),
        )
        return pooled[:, before:], winners[:, before:], to_table

    it_gradient = it.floats(n_tokens, n_features)
    it.same_bits(by_table)
    rows, filters = it.floats(n_rows, dim), it.floats(n_filters, dim, width)

    def without_gradients(n_threads: int) -> tuple[Array]:
        maxima = buffers.output(n_tokens, n_filters)
        call = library.structs["convolution_call"](
            *(n_tokens, n_columns, n_rows, dim, n_filters, width),
            *(at(char_ids), at(rows), at(filters), at(table_bias), at(maxima)),
        )
        memory = buffers.scratch(library.convolution_bytes(n_threads, ctypes.byref(call)))
        assert library.run_convolution(n_threads, ctypes.byref(call), memory)
        return (maxima,)

    it.same_bits(without_gradients)


def window(it: Scenario) -> None:
    """Run an LSTM layer over a training window, forward and backward."""
    library, buffers = it.library, it.buffers
    n_rows, n_steps, dim, hidden, projected = (
        it.size(40),
        it.random.randint(1, 4),
        it.size(70),
        it.size(70),
        it.size(70),
    )
    sizes, clips = (
        (n_rows, n_steps, dim, hidden, projected),
        it.random.choice([(np.inf, np.inf), (3.0, 3.0), (0.1, 0.2)]),
    )
    inputs, upstream = it.floats(n_rows, n_steps, dim), it.floats(n_rows, n_steps, projected)
    weight, bias = it.buffers.of(it.weights(4 * hidden, dim + projected)), it.buffers.of(it.weights(4 * hidden))
    projection, state, cells = (
        it.buffers.of(it.weights(projected, hidden)),
        it.floats(n_rows, projected),
        it.normal(n_rows, hidden),
    )

    def compute(n_threads: int) -> tuple[Array, ...]:
        n_threads = max(1, n_threads)  # memory is needed for each
        n_bytes = buffers.output(3, dtype=INT64)
        library.window_bytes(n_threads, *sizes, at(n_bytes))
        if not library.has_bfloat16():
            return ()
        check_written(n_bytes)
        kept, forward, backward = (buffers.scratch(int(n)) for n in n_bytes)
        cell, outputs = buffers.writable(cells), buffers.output(n_rows, n_steps, projected)
        library.window_forward(
            *(n_threads, *sizes, at(inputs), at(weight), at(bias), at(projection), at(state), at(cell), *clips),
            *(kept, forward, at(outputs)),
        )
        shapes = [(n_rows, n_steps, dim), (4 * hidden, dim + projected), (4 * hidden,), (projected, hidden)]
        gradients = [buffers.output(*shape) for shape in shapes]
        library.window_backward(
            *(n_threads, *sizes, at(inputs), at(state), at(outputs), at(upstream), *clips, kept, backward),
            *map(at, gradients),
        )
        return (outputs, cell, *gradients)

    if library.has_bfloat16():
        it.same_bits(compute)
    else:
        # They compute nothing, whatever they are given.
        compute(2)
        library.window_forward(2, *sizes, *[None] * 6, *clips, None, None, None)
        library.window_backward(2, *sizes, *[None] * 4, *clips, *[None] * 6)


def layer(it: Scenario) -> None:
    """Run an LSTM layer with the weights that it is given, which are packed in its scratch memory."""
    library, buffers = it.library, it.buffers
    n_rows, n_steps, hidden_dim = it.size(), it.random.randint(0, 5), it.size(70)
    has_projection, adds_inputs = it.random.random() < 0.7, it.random.random() < 0.5
    dim = it.size(70) if has_projection else hidden_dim
    input_dim = dim if adds_inputs else it.size(70)
    cell_clip, output_clip = it.random.choice([(np.inf, np.inf), (3.0, 3.0), (0.1, 0.2)])
    inputs, hidden = it.floats(n_rows, n_steps, input_dim), it.floats(n_rows, dim)
    cell = it.floats(n_rows, hidden_dim)
    weight, bias = buffers.of(it.weights(4 * hidden_dim, input_dim + dim)), buffers.of(it.weights(4 * hidden_dim))
    halves, strides = (at(weight), at(weight) + 4 * input_dim), (input_dim + dim, input_dim + dim)
    if it.random.random() < 0.5:
        apart = [buffers.of(it.weights(4 * hidden_dim, size)) for size in (input_dim, dim)]
        halves, strides = (at(apart[0]), at(apart[1])), (input_dim, dim)
    projection = buffers.of(it.weights(dim, hidden_dim))
    mask = buffers.of(it.numbers.integers(0, 2, (n_rows, n_steps)), np.int8)
    reads = (
        at(inputs),
        it.random.choice([None, at(mask)]),
        *(at(hidden), at(cell), *halves, at(bias)),
        at(projection) if has_projection else None,
    )
    reverse, swaps_gates = it.random.choice([0, 1]), it.random.choice([0, 1])

    def compute(n_threads: int) -> tuple[Array, ...]:
        outputs, after = buffers.output(n_rows, n_steps, dim), buffers.output(n_rows, dim)
        cell_after = buffers.output(n_rows, hidden_dim)
        sizes = n_rows, n_steps, input_dim, hidden_dim, dim
        written = at(outputs), at(after), at(cell_after)
        call = library.structs["layer_call"](
            *(*sizes, reverse, int(adds_inputs), *strides, swaps_gates),
            *(cell_clip, output_clip if has_projection else np.inf, *reads, *written),
        )
        memory = buffers.scratch(library.layer_bytes(ctypes.byref(call)))
        library.run_layer(n_threads, ctypes.byref(call), memory)
        return outputs, after, cell_after

    it.same_bits(compute)


def linear(it: Scenario) -> None:
    """Compute a linear layer without gradients, the same and a highway in training, and dropout."""
    library, buffers = it.library, it.buffers
    sizes = n_rows, n_inputs, n_outputs = it.size(130), it.size(130), it.size(130)
    inputs, weight, bias = it.floats(n_rows, n_inputs), it.floats(n_outputs, n_inputs), it.floats(n_outputs)
    upstream, adds = it.floats(n_rows, n_outputs), it.random.choice([None, 0, 1])
    n = it.random.choice([0, 1, it.size(3000)])
    before, sums, gates, gradient = (it.normal(n) for _ in range(4))
    read = [buffers.of(part) for part in (before, sums, gradient)]
    seed, probability = it.random.choice([0, -1, 2**63 - 1, -(2**63), 12345]), it.random.choice([0.0, 0.5, 0.999])

    def compute(n_threads: int) -> tuple[Array, ...]:
        memory = buffers.scratch(library.linear_bytes(*sizes))
        outputs = buffers.output(n_rows, n_outputs)
        library.linear_forward(n_threads, *sizes, at(inputs), at(weight), at(bias), memory, at(outputs))
        to_inputs = buffers.writable(np.zeros((n_rows, n_inputs)))
        to_weight, to_bias = buffers.output(n_outputs, n_inputs), buffers.output(n_outputs)
        library.linear_backward(
            *(n_threads, *sizes, at(inputs), at(weight), at(upstream), memory, adds or 0),
            *(None if adds is None else at(to_inputs), at(to_weight), at(to_bias)),
        )
        return outputs, to_inputs, to_weight, to_bias

    if library.has_bfloat16():
        it.same_bits(compute)
    else:
        compute(2)

    def pass_highway(n_threads: int) -> tuple[Array, ...]:
        gate, highway = buffers.writable(gates), buffers.output(n)
        library.highway_forward(n_threads, n, at(read[0]), at(read[1]), at(gate), at(highway))
        parts = [buffers.output(n) for _ in range(3)]
        library.highway_backward(n_threads, n, at(read[2]), at(read[0]), at(read[1]), at(gate), *map(at, parts))
        return gate, highway, *parts

    it.same_bits(pass_highway)
    given_bias = it.random.choice([None, at(bias)])

    def multiply(n_threads: int) -> tuple[Array]:
        outputs = buffers.output(n_rows, n_outputs)
        memory = buffers.scratch(library.linear_rows_bytes(n_threads, n_inputs))
        library.linear_rows(n_threads, *sizes, at(inputs), at(weight), given_bias, memory, at(outputs))
        return (outputs,)

    it.same_bits(multiply)

    def drop(n_threads: int) -> tuple[Array]:
        outputs = buffers.output(n)
        library.dropout(n_threads, n, seed, probability, at(read[0]), at(outputs))
        return (outputs,)

    it.same_bits(drop)


def softmax(it: Scenario) -> None:
    """Compute the loss of a softmax in training."""
    library, buffers = it.library, it.buffers
    sizes = n_rows, dim, n_words = it.size(70), it.size(70), it.size(it.random.choice([40, 300]))
    hidden, weight, offsets = it.floats(n_rows, dim), it.floats(n_words, dim), it.floats(n_words)
    own, skipped = it.floats(n_rows), buffers.of(it.numbers.integers(-1, n_words, n_rows), INT64)
    for _ in range(2):
        n_threads = it.random.randint(1, 4)  # the order of sums depends on it
        memory = buffers.scratch(library.softmax_bytes(n_threads, *sizes))
        outputs = [
            buffers.output(*shape) for shape in [(n_rows,), (n_rows, dim), (n_words, dim), (n_words,), (n_rows,)]
        ]
        library.softmax_loss(
            *(n_threads, *sizes, at(hidden), at(weight), at(offsets), at(own), at(skipped), memory),
            *map(at, outputs),
        )
        if library.has_bfloat16():
            check_written(*outputs)


SCENARIOS: dict[str, Callable[[Scenario], None]] = {
    scenario.__name__: scenario
    for scenario in (
        questions,
        matrix,
        tokens,
        lstm,
        scoring,
        training_steps,
        convolutions,
        window,
        layer,
        linear,
        softmax,
    )
}


def run(library: CountedLibrary, name: str, seed: int, make_buffers: Callable[[], Buffers]) -> None:
    """Run one scenario with the choices of a seed."""
    with make_buffers() as buffers:
        SCENARIOS[name](Scenario(library, buffers, seed))
