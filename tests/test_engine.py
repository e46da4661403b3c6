"""The engine equals the formulas of ``BiLM``, and gives a sentence the same bits in any batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.bilm import BiLM, BiLMState
from elmokit.engine import compiler
from elmokit.engine.config import BiLMConfig, CharCNNConfig, WordFeaturesConfig
from elmokit.engine.engine import LSTM, Engine, Ids, Matrix, TokenLayer, log_sum_exp
from elmokit.engine.library import Library
from elmokit.engine.state import Floats, State
from elmokit.nn.lstm import LSTMStack, ProjectedLSTM
from tests.helpers.engine_lstm import (
    LARGE_LAYERS,
    SHARED_LAYERS,
    lstm_config,
    random_arrays,
    random_lstm,
    random_state,
    same_bits,
)
from tests.helpers.memory import resident_bytes

CHARS = CharCNNConfig(((1, 5), (2, 16), (3, 30)), char_dim=6, max_chars=12, n_chars=40)
SIZES = {"projection_dim": 24, "hidden_dim": 40}
CONFIGS = {
    "characters": BiLMConfig(CHARS, **SIZES),
    "tanh": BiLMConfig(replace(CHARS, activation="tanh"), **SIZES),
    "no highways": BiLMConfig(replace(CHARS, n_highway=0), **SIZES),
    "as many features as outputs": BiLMConfig(replace(CHARS, filters=((1, 4), (3, 20))), **SIZES),
    "too many characters for a table of all": BiLMConfig(replace(CHARS, n_chars=260_000), **SIZES),
    "words": BiLMConfig(None, n_words=30, **SIZES),
    "words and characters": BiLMConfig(CHARS, word_features=WordFeaturesConfig(30, 7), **SIZES),
    "words and too many characters": BiLMConfig(
        replace(CHARS, n_chars=260_000), word_features=WordFeaturesConfig(30, 7), **SIZES
    ),
    "a projected word table": BiLMConfig(None, word_features=WordFeaturesConfig(30, 7), **SIZES),
    "forward only": BiLMConfig(CHARS, bidirectional=False, **SIZES),
    "backward only": BiLMConfig(CHARS, bidirectional=False, backward_only=True, **SIZES),
    "no projection": BiLMConfig(CHARS, projection_dim=24, hidden_dim=24),
    "a projection of equal size": BiLMConfig(CHARS, projection_dim=24, hidden_dim=24),
    "one layer": BiLMConfig(CHARS, n_layers=1, **SIZES),
    "three plain layers": BiLMConfig(
        CHARS, n_layers=3, cell_clip=None, projection_clip=None, skip_connections=False, **SIZES
    ),
}
WORDS = np.array([3, 0, 7, 7, 1, 4, 2, 9, 9, 0, 5, 8, 6, 3, 11, 10, 2, 1])
LENGTHS = np.array([5, 0, 1, 9, 3])


@pytest.fixture
def library() -> Library:
    found = compiler.load_library()
    if found is None:
        pytest.skip(compiler.why_unavailable())
    return found


def random_bilm(name: str) -> BiLM:
    bilm = BiLM(CONFIGS[name])
    bilm.reset_parameters(seed=0)
    generator = torch.Generator().manual_seed(0)
    for stack in bilm.directions:
        assert isinstance(stack, LSTMStack)
        for layer in stack.layers:
            assert isinstance(layer, ProjectedLSTM)
            if name == "a projection of equal size":
                layer.projection = torch.nn.Parameter(torch.randn(24, 24, generator=generator) / 5)
            torch.nn.init.normal_(layer.bias, generator=generator)
    return bilm.requires_grad_(False).eval()


def arrays_of(bilm: BiLM) -> dict[str, Floats]:
    return {name: tensor.numpy() for name, tensor in bilm.state_dict().items()}


def random_ids(config: BiLMConfig, n_tokens: int) -> Ids:
    """Return ids of tokens of all lengths, as ``TokenLayer`` takes them."""
    generator = np.random.default_rng(0)
    parts = []
    if config.n_words is not None or config.word_features is not None:
        parts.append(generator.integers(0, 31, (n_tokens, 1)))
    if config.char_cnn is not None:
        last, columns = config.char_cnn.n_chars, np.arange(config.char_cnn.max_chars)
        lengths = generator.integers(0, config.char_cnn.max_chars + 1, (n_tokens, 1))
        parts.append(np.where(columns < lengths, generator.integers(0, last, (n_tokens, len(columns))), last))
    ids = np.concatenate(parts, axis=1)
    return ids[:, 0] if config.n_words is not None else ids


def padded(lengths: Ids, words: Ids) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the words of a batch as ``(batch, time)``, and its mask."""
    mask = torch.arange(int(lengths.max())) < torch.from_numpy(lengths)[:, None]
    table = torch.zeros(mask.shape, dtype=torch.int64)
    table[mask] = torch.from_numpy(words)
    return table, mask


@pytest.mark.parametrize("name", CONFIGS)
def test_it_equals_the_formulas(name: str, library: Library) -> None:
    config, bilm = CONFIGS[name], random_bilm(name)
    engine = Engine(config, arrays_of(bilm), "float32", library, threads=2)
    ids, start = random_ids(config, 12), random_state(config, len(LENGTHS))
    wanted = [*range(config.n_layers, -1, -1)]
    vectors = engine.token_vectors(ids)
    layers, state = engine.layers(vectors, WORDS, LENGTHS, start, wanted, returns_state=True)
    bilm.double()
    exact_vectors = bilm.token_layer(torch.from_numpy(ids))
    table, mask = padded(LENGTHS, WORDS)
    exact = bilm.contextualize(
        exact_vectors[table], mask, BiLMState(*(torch.from_numpy(part).double() for part in start))
    )
    np.testing.assert_allclose(vectors, exact_vectors, atol=3e-6, rtol=0)
    for row, found in enumerate(layers):
        expected = exact.layers.flip(0)[:, row, : LENGTHS[row]]
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    assert state is not None
    for found, expected in zip(state, exact.state, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    # A row without a position keeps its state.
    assert all(np.array_equal(after[:, :, 1], before[:, :, 1]) for after, before in zip(state, start, strict=True))


def test_without_tokens_there_are_no_vectors(library: Library) -> None:
    for name in ("characters", "words", "words and too many characters"):
        config = CONFIGS[name]
        layer = TokenLayer(config, arrays_of(random_bilm(name)), "float32", library)
        for threads in (1, 3):
            assert layer(random_ids(config, 0), threads).shape == (0, 24)


def test_without_sentences_there_are_no_layers(library: Library) -> None:
    config = lstm_config(40, 24, bidirectional=True)
    lstm, none = random_lstm(library, "float32", config), np.zeros(0, np.int64)
    vectors = np.zeros((3, 24), np.float32)
    layers, state = lstm.layers(vectors, none, none, State.zero(config, 0), [0, 1], returns_state=True, threads=2)
    assert layers == []
    assert state is not None
    assert state.n_rows == 0
    start = random_state(config, 2)
    layers, state = lstm.layers(vectors, none, np.zeros(2, np.int64), start, [0, 1], returns_state=True, threads=2)
    assert [array.shape for array in layers] == [(2, 0, 48)] * 2
    assert state is not None
    assert same_bits(state, start)


@pytest.fixture(params=["small", "large"])
def lstm(request: pytest.FixtureRequest, library: Library) -> LSTM:
    """Two layers of two directions. Each thread has rows of its own in small layers, and units in large ones."""
    hidden, dim = SHARED_LAYERS if request.param == "small" else LARGE_LAYERS["float32"]
    return random_lstm(library, "float32", lstm_config(hidden, dim, 2, bidirectional=True))


def random_vectors(lstm: LSTM, n_words: int) -> Floats:
    return np.random.default_rng(1).normal(size=(n_words, lstm.config.projection_dim)).astype(np.float32)


def rows_of(state: State, rows: Sequence[int]) -> State:
    return State(*(part[:, :, list(rows)] for part in state))


def sentences(lengths: Ids) -> list[Ids]:
    """Return the words of each sentence."""
    return np.split(WORDS, np.cumsum(lengths)[:-1])


def test_a_sentence_has_the_same_bits_in_any_batch_in_any_order_with_any_threads(lstm: LSTM) -> None:
    vectors, start = random_vectors(lstm, 12), random_state(lstm.config, len(LENGTHS))
    alone = []
    for row, words in enumerate(sentences(LENGTHS)):
        layers, state = lstm.layers(
            vectors, words, LENGTHS[row : row + 1], rows_of(start, [row]), range(3), returns_state=True
        )
        assert state is not None
        alone.append((layers[0], state))
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [3, 1], [2, 0, 3, 3, 4, 1, 0]):
        words = np.concatenate([sentences(LENGTHS)[row] for row in order])
        for threads in (1, 2, 3, 8):
            layers, state = lstm.layers(
                vectors, words, LENGTHS[order], rows_of(start, order), range(3), returns_state=True, threads=threads
            )
            assert state is not None
            for place, row in enumerate(order):
                assert np.array_equal(layers[place], alone[row][0])
                assert same_bits(rows_of(state, [place]), alone[row][1])


@pytest.mark.parametrize("threads", [-1, 0])
def test_less_than_one_thread_is_one(threads: int, lstm: LSTM, library: Library) -> None:
    vectors, start = random_vectors(lstm, 12), random_state(lstm.config, len(LENGTHS))
    expected, _ = lstm.layers(vectors, WORDS, LENGTHS, start, [2])
    found, _ = lstm.layers(vectors, WORDS, LENGTHS, start, [2], threads=threads)
    assert same_bits(found, expected)
    config = CONFIGS["characters"]
    tokens, ids = TokenLayer(config, arrays_of(random_bilm("characters")), "float32", library), random_ids(config, 40)
    assert np.array_equal(tokens(ids, threads), tokens(ids))
    scored = [log_sum_exp(library, vectors, vectors, vectors[:, 0].copy(), "float32", n) for n in (1, threads)]
    assert same_bits(*[[each] for each in scored])


def test_one_row_of_a_state_is_the_start_of_every_sentence(lstm: LSTM) -> None:
    vectors, start = random_vectors(lstm, 12), random_state(lstm.config, 1)
    repeated = rows_of(start, [0] * len(LENGTHS))
    expected, expected_state = lstm.layers(vectors, WORDS, LENGTHS, repeated, [1, 2], returns_state=True)
    for threads in (1, 2):
        found, state = lstm.layers(vectors, WORDS, LENGTHS, start, [1, 2], returns_state=True, threads=threads)
        assert state is not None
        assert expected_state is not None
        assert same_bits(found, expected)
        assert same_bits(state, expected_state)


def test_layers_that_are_not_wanted_and_positions_at_the_ends_are_left_out(lstm: LSTM) -> None:
    vectors, start = random_vectors(lstm, 12), random_state(lstm.config, 1)
    every, _ = lstm.layers(vectors, WORDS, LENGTHS, start, range(3))
    for wanted in ([0], [2], [2, 0], [1, 2, 0], []):
        for n_edges in (0, 1, 2, 5):
            some, state = lstm.layers(vectors, WORDS, LENGTHS, start, wanted, n_edges=n_edges, threads=2)
            assert state is None
            for part, whole in zip(some, every, strict=True):
                expected = whole[wanted, n_edges : max(n_edges, whole.shape[1] - n_edges)]
                assert np.array_equal(part, expected)


@pytest.mark.parametrize("reverse", [(False, True), (True, False), (True, True), (False, False)])
def test_padding_changes_no_bit_wherever_it_is_and_each_direction_can_read_either_way(
    reverse: tuple[bool, bool], lstm: LSTM
) -> None:
    config = lstm.config
    dim = config.projection_dim
    generator = np.random.default_rng(2)
    mask = generator.random((5, 9)) < 0.6
    mask[1], mask[3] = False, True
    vectors, start = generator.normal(size=(5, 9, dim)).astype(np.float32), random_state(config, 5)
    for directions in ([0, 1], [0], [1]):
        for threads in (1, 2, 3):
            layers = np.zeros((3, 5, 9, len(directions) * dim), np.float32)
            after = lstm.padded(vectors, mask, start, layers, directions, [reverse[d] for d in directions], threads)
            assert not layers[:, ~mask].any()
            for row in range(5):
                places = np.flatnonzero(mask[row])
                for number, direction in enumerate(directions):
                    flips = reverse[direction] != config.read_backward[direction]
                    words = places[::-1].copy() if flips else places
                    expected, state = lstm.direction(
                        direction, vectors[row], words, rows_of(start, [row]), returns_layers=True
                    )
                    found = layers[:, row, words, number * dim : (number + 1) * dim]
                    assert np.array_equal(found, expected)
                    for ours, theirs in zip(after, state, strict=True):
                        assert np.array_equal(ours[direction, :, row], theirs[direction, :, 0])


def test_a_direction_alone_has_the_bits_of_both(lstm: LSTM) -> None:
    vectors, start, dim = random_vectors(lstm, 12), random_state(lstm.config, 1), lstm.config.projection_dim
    (both,), state = lstm.layers(vectors, WORDS, np.array([len(WORDS)]), start, range(3), returns_state=True)
    assert state is not None
    for number in (0, 1):
        for returns_layers in (True, False):
            layers, own = lstm.direction(number, vectors, WORDS, start, returns_layers=returns_layers, threads=2)
            expected = both[:, :, number * dim : (number + 1) * dim] if returns_layers else both[:0, :, :dim]
            assert np.array_equal(layers, expected)
            assert all(np.array_equal(ours[number], theirs[number]) for ours, theirs in zip(own, state, strict=True))


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=12), threads=st.integers(1, 5), seed=st.integers(0, 99)
)
def test_chunks_of_a_text_equal_the_text(lengths: list[int], threads: int, seed: int) -> None:
    library = compiler.load_library()
    if library is None:
        pytest.skip(compiler.why_unavailable())
    lstm = random_lstm(library, "float32", lstm_config(20, 9, 2))
    words, start = np.random.default_rng(seed).integers(0, 12, sum(lengths)), random_state(lstm.config, 1, seed)
    vectors = random_vectors(lstm, 12)
    whole, after = lstm.layers(vectors, words, np.array([len(words)]), start, range(3), returns_state=True)
    parts = []
    for chunk in np.split(words, np.cumsum(lengths)[:-1]):
        (part,), state = lstm.layers(
            vectors, chunk, np.array([len(chunk)]), start, range(3), returns_state=True, threads=threads
        )
        assert state is not None
        start = state
        parts.append(part)
    assert np.array_equal(np.concatenate(parts, axis=1), whole[0])
    assert after is not None
    assert same_bits(start, after)


@pytest.mark.slow
def test_a_text_of_a_million_tokens_is_computed(library: Library) -> None:
    lstm = random_lstm(library, "float32", lstm_config(2, 1, 1))
    words = np.tile(np.arange(8), (2**20 + 64) // 8)
    vectors = random_vectors(lstm, 8)
    whole, after = lstm.direction(0, vectors, words, State.zero(lstm.config, 1), returns_layers=True)
    half, state = len(words) // 2, State.zero(lstm.config, 1)
    parts = []
    for chunk in (words[:half], words[half:]):
        part, state = lstm.direction(0, vectors, chunk, state, returns_layers=True)
        parts.append(part)
    assert np.array_equal(np.concatenate(parts, axis=1), whole)
    assert same_bits(state, after)


def test_weights_may_be_changed_and_freed_after_they_were_packed(library: Library) -> None:
    config = CONFIGS["words and characters"]
    arrays = {name: array.copy() for name, array in arrays_of(random_bilm("words and characters")).items()}
    engine, ids = Engine(config, arrays, "float32", library), random_ids(config, 12)

    def compute() -> Floats:
        layers, _ = engine.layers(engine.token_vectors(ids), WORDS, LENGTHS, State.zero(config, 1), [2])
        return np.concatenate(layers, axis=1)

    before = compute()
    for array in arrays.values():
        array.fill(np.nan)
    arrays.clear()
    assert np.array_equal(compute(), before)


def test_weights_in_another_order_or_dtype_are_converted(library: Library) -> None:
    config, vectors = lstm_config(40, 24, 2), np.ones((1, 24), np.float32)
    arrays = random_arrays(config)
    one = np.zeros(1, np.int64)

    def compute(arrays: dict[str, Floats]) -> Floats:
        lstm = LSTM(config, arrays, "float32", library)
        return lstm.layers(vectors, one, one + 1, State.zero(config, 1), [2])[0][0]

    expected = compute(arrays)
    assert np.array_equal(compute({name: np.asfortranarray(array) for name, array in arrays.items()}), expected)
    assert np.array_equal(compute({name: array.astype(np.float64) for name, array in arrays.items()}), expected)


def test_arrays_of_a_wrong_shape_are_an_error(library: Library) -> None:
    config = CONFIGS["words and characters"]
    arrays = arrays_of(random_bilm("words and characters"))
    for name, array in arrays.items():
        with pytest.raises(ValueError, match="must be a contiguous array of float32"):
            Engine(config, {**arrays, name: array[..., :-1]}, "float32", library)


@pytest.mark.parametrize("name", ["characters", "too many characters for a table of all", "words and characters"])
def test_ids_outside_of_their_table_are_an_error(name: str, library: Library) -> None:
    config = CONFIGS[name]
    layer, ids = TokenLayer(config, arrays_of(random_bilm(name)), "float32", library), random_ids(config, 5)
    assert config.char_cnn is not None
    for wrong in (-1, config.char_cnn.n_chars + 1, 2**62, -(2**62)):
        for place in ((0, 0), (4, -1)):
            damaged = ids.copy()
            damaged[place] = wrong
            with pytest.raises(ValueError, match="no character or word for"):
                layer(damaged)


def test_word_ids_outside_of_the_table_are_an_error(library: Library) -> None:
    for name in ("words", "words and characters", "a projected word table"):
        config = CONFIGS[name]
        layer, ids = TokenLayer(config, arrays_of(random_bilm(name)), "float32", library), random_ids(config, 5)
        for wrong in (-1, 31):
            damaged = ids.copy()
            damaged.reshape(5, -1)[2, 0] = wrong
            with pytest.raises(ValueError, match="no character or word for"):
                layer(damaged)


def test_tokens_with_too_few_or_too_many_ids_are_an_error(library: Library) -> None:
    characters = TokenLayer(CONFIGS["characters"], arrays_of(random_bilm("characters")), "float32", library)
    assert characters(np.ones((2, 3), np.int64)).shape == (2, 24)  # as many as the widest filter has
    words = TokenLayer(CONFIGS["words"], arrays_of(random_bilm("words")), "float32", library)
    for layer, n_ids in ((characters, 2), (words, 2)):
        with pytest.raises(ValueError, match="do not fit together"):
            layer(np.ones((2, n_ids), np.int64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda batch: batch["words"].__setitem__(4, 12), "words has numbers outside of the 12 rows"),
        (lambda batch: batch["words"].__setitem__(4, -1), "words has numbers outside of the 12 rows"),
        (lambda batch: batch["lengths"].__setitem__(0, 6), "The lengths add up to 19, and there are 18 words"),
        (lambda batch: batch.update(lengths=np.array([-1, 19, 0, 0, 0])), "lengths has a number below 0"),
        (lambda batch: batch.update(start=batch["start"].first_rows(3)), "The state has 3 rows, and the batch has 5"),
        (lambda batch: batch.update(vectors=batch["vectors"][:, :-1].copy()), r"vectors must be .* \(12, 23\)"),
        (lambda batch: batch.update(vectors=batch["vectors"].astype(np.float64)), "vectors must be .* float64"),
        (lambda batch: batch.update(vectors=np.asfortranarray(batch["vectors"])), "vectors must be .* not contiguous"),
        (lambda batch: batch.update(words=batch["words"].astype(np.int32)), "words must be .* int32"),
        (lambda batch: batch.update(start=batch["start"]._replace(cell=batch["start"].hidden)), "cell must be"),
        (lambda batch: batch.update(wanted=[3]), r"wanted must be distinct layers from 0 to 2, but is \[3\]"),
        (lambda batch: batch.update(wanted=[1, 1]), r"wanted must be distinct layers from 0 to 2, but is \[1, 1\]"),
    ],
)
def test_a_batch_that_would_read_foreign_memory_is_an_error(
    change: Callable[[dict[str, object]], None], message: str, library: Library
) -> None:
    config = lstm_config(40, 24, 2, bidirectional=True)
    lstm = random_lstm(library, "float32", config)
    batch = {
        "vectors": random_vectors(lstm, 12),
        "words": WORDS.copy(),
        "lengths": LENGTHS.copy(),
        "start": random_state(config, 5),
        "wanted": [0, 1, 2],
    }
    lstm.layers(**batch)  # type: ignore[arg-type]
    change(batch)
    with pytest.raises(ValueError, match=message):
        lstm.layers(**batch)  # type: ignore[arg-type]


def test_rows_of_another_size_than_the_matrix_are_an_error(library: Library) -> None:
    matrix = Matrix(np.ones((3, 4), np.float32), "float32", library)
    assert matrix(np.ones((2, 4), np.float32), 3).tolist() == [[4, 4, 4]] * 2
    assert matrix(np.ones((0, 4), np.float32)).shape == (0, 3)
    with pytest.raises(ValueError, match=r"rows must be .* \(2, 5\)"):
        matrix(np.ones((2, 5), np.float32))
    with pytest.raises(ValueError, match="do not fit together"):
        Matrix(np.ones((0, 4), np.float32), "float32", library)


def test_a_deleted_engine_frees_its_memory(library: Library) -> None:
    config = BiLMConfig(replace(CHARS, filters=((1, 32), (3, 256))), projection_dim=64, hidden_dim=512)
    bilm = BiLM(config)
    bilm.reset_parameters(seed=0)
    arrays, ids = arrays_of(bilm.requires_grad_(False)), random_ids(config, 12)
    used = []
    for _ in range(200):
        engine = Engine(config, arrays, "bfloat16", library, threads=2)
        engine.layers(engine.token_vectors(ids), WORDS, LENGTHS, State.zero(config, 1), [2])
        n_bytes = engine.n_bytes
        del engine
        used.append(resident_bytes())
    assert n_bytes > 1_000_000
    assert used[-1] - used[20] < 8_000_000


def test_an_engine_reports_the_memory_of_its_weights(library: Library) -> None:
    name = "words and characters"
    arrays = arrays_of(random_bilm(name))
    engine = Engine(CONFIGS[name], arrays, "float32", library)
    # Panels are padded, and the filters are kept as tables.
    assert sum(array.nbytes for array in arrays.values()) < engine.n_bytes < 2_000_000
