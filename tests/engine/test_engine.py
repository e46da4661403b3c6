"""The engine equals the formulas of ``BiLM``, and gives a sentence the same bits in any batch."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.engine import compiler
from elmokit.engine.architecture import BiLMConfig
from elmokit.engine.engine import Engine
from elmokit.engine.interface import NetworkInput
from elmokit.engine.library import Library
from elmokit.engine.lstm import LSTM
from elmokit.engine.state import Floats, Ids, State
from elmokit.network.bilm import BiLM
from tests.helpers.arrays_on_demand import ArraysOnDemand
from tests.helpers.engine_lstm import (
    lstm_config,
    random_arrays,
    random_lstm,
    random_state,
    same_bits,
    two_layers,
)
from tests.helpers.engine_models import CHARS, CONFIGS, LENGTHS, WORDS, arrays_of, random_bilm, random_ids
from tests.helpers.instruction_sets import machine_library
from tests.helpers.memory import resident_bytes


@pytest.fixture
def library() -> Library:
    return machine_library()


@pytest.fixture(params=["small", "large"])
def lstm(request: pytest.FixtureRequest, library: Library) -> LSTM:
    return two_layers(library, request.param)


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
            NetworkInput(vectors, words, LENGTHS[row : row + 1], rows_of(start, [row])), range(3), returns_state=True
        )
        assert state is not None
        alone.append((layers[0], state))
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [3, 1], [2, 0, 3, 3, 4, 1, 0]):
        words = np.concatenate([sentences(LENGTHS)[row] for row in order])
        for threads in (1, 2, 3, 8):
            layers, state = lstm.layers(
                NetworkInput(vectors, words, LENGTHS[order], rows_of(start, order)),
                range(3),
                returns_state=True,
                threads=threads,
            )
            assert state is not None
            for place, row in enumerate(order):
                assert np.array_equal(layers[place], alone[row][0])
                assert same_bits(rows_of(state, [place]), alone[row][1])


@pytest.mark.parametrize("n_start_rows", [1, len(LENGTHS)])
def test_a_direction_alone_has_the_bits_of_both(n_start_rows: int, lstm: LSTM) -> None:
    vectors, start = random_vectors(lstm, 12), random_state(lstm.config, n_start_rows)
    dim = lstm.config.projection_dim
    both, state = lstm.layers(NetworkInput(vectors, WORDS, LENGTHS, start), range(3), returns_state=True)
    assert state is not None
    for number in (0, 1):
        for wanted in ([0, 1, 2], [2], [1, 0], []):
            for threads in (1, 2, 3):
                layers, own = lstm.direction(
                    number, NetworkInput(vectors, WORDS, LENGTHS, start), wanted, threads=threads
                )
                assert same_bits(layers, [rows[wanted, :, number * dim : (number + 1) * dim] for rows in both])
                assert all(
                    np.array_equal(ours[number], theirs[number]) for ours, theirs in zip(own, state, strict=True)
                )
                assert not any(np.shares_memory(layers[0], other) for other in layers[1:])
    none, start = np.zeros(0, np.int64), State.zero(lstm.config, 0)
    assert lstm.direction(0, NetworkInput(vectors, none, none, start), [2])[0] == []


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
    whole, after = lstm.layers(
        NetworkInput(vectors, words, np.array([len(words)]), start), range(3), returns_state=True
    )
    parts = []
    for chunk in np.split(words, np.cumsum(lengths)[:-1]):
        (part,), state = lstm.layers(
            NetworkInput(vectors, chunk, np.array([len(chunk)]), start), range(3), returns_state=True, threads=threads
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
    n_words = np.array([len(words)])
    (whole,), after = lstm.direction(0, NetworkInput(vectors, words, n_words, State.zero(lstm.config, 1)), range(2))
    half, state = len(words) // 2, State.zero(lstm.config, 1)
    parts = []
    for chunk in (words[:half], words[half:]):
        (part,), state = lstm.direction(0, NetworkInput(vectors, chunk, n_words // 2, state), range(2))
        parts.append(part)
    assert np.array_equal(np.concatenate(parts, axis=1), whole)
    assert same_bits(state, after)


def test_weights_may_be_changed_and_freed_after_they_were_packed(library: Library) -> None:
    config = CONFIGS["words and characters"]
    arrays = {name: array.copy() for name, array in arrays_of(random_bilm("words and characters")).items()}
    engine, ids = Engine(config, arrays, "float32", library), random_ids(config, 12)

    def compute() -> Floats:
        layers, _ = engine.layers(NetworkInput(engine.token_vectors(ids), WORDS, LENGTHS, State.zero(config, 1)), [2])
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
        return lstm.layers(NetworkInput(vectors, one, one + 1, State.zero(config, 1)), [2])[0][0]

    expected = compute(arrays)
    assert np.array_equal(compute({name: np.asfortranarray(array) for name, array in arrays.items()}), expected)
    assert np.array_equal(compute({name: array.astype(np.float64) for name, array in arrays.items()}), expected)


def test_layers_are_packed_one_at_a_time(library: Library) -> None:
    config = CONFIGS["three plain layers"]
    arrays = ArraysOnDemand(config)
    engine = Engine(config, arrays, "float32", library)
    assert sorted(arrays.asked) == sorted(arrays.shapes)  # each once
    sizes: dict[str, int] = defaultdict(int)
    for name, shape in arrays.shapes.items():
        (layer,) = re.findall(r"^(?:directions\.\d\.layers\.\d|token_layer(?:\.highways\.\d)?)", name)
        sizes[layer] += 4 * math.prod(shape)
    assert arrays.most == max(sizes.values()) < engine.n_bytes / 3


@pytest.mark.slow
def test_opening_and_embedding_take_little_more_memory_than_the_packed_weights(library: Library) -> None:
    code = """
import re
from pathlib import Path

import numpy as np

from elmokit.engine import compiler
from elmokit.engine.architecture import PRESETS
from elmokit.engine.engine import Engine
from elmokit.engine.interface import NetworkInput
from elmokit.engine.state import State
from tests.helpers.arrays_on_demand import ArraysOnDemand

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

config = PRESETS["original"]
engine = Engine(config, ArraysOnDemand(config), "float32", compiler.load_library())
vectors = engine.token_vectors(np.random.default_rng(0).integers(1, 262, (320, 50)))
lengths = np.full(16, 20)
inputs = NetworkInput(vectors, np.arange(320), lengths, State.zero(config, 1))
engine.layers(inputs, [0, 1, 2], returns_state=True)
print(peak() / engine.n_bytes)
"""
    # A process of its own has a peak of its own.
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert 1 < float(ran.stdout) < 1.3


def test_a_deleted_engine_frees_its_memory(library: Library) -> None:
    config = BiLMConfig(replace(CHARS, filters=((1, 32), (3, 256))), projection_dim=64, hidden_dim=512)
    bilm = BiLM(config)
    bilm.reset_parameters(seed=0)
    arrays, ids = arrays_of(bilm.requires_grad_(False)), random_ids(config, 12)
    used = []
    for _ in range(60):
        engine = Engine(config, arrays, "bfloat16", library)
        engine.layers(NetworkInput(engine.token_vectors(ids), WORDS, LENGTHS, State.zero(config, 1)), [2])
        n_bytes = engine.n_bytes
        del engine
        used.append(resident_bytes())
    assert n_bytes > 1_000_000
    assert used[-1] - used[20] < 8_000_000
