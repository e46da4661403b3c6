"""The C functions and their twin in NumPy equal the formulas of ``BiLM`` and refuse the same arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from elmokit.engine.architecture import BiLMConfig
from elmokit.engine.engine import Engine
from elmokit.engine.interface import Network, NetworkInput
from elmokit.engine.reference import ReferenceEngine
from elmokit.engine.state import Floats, State
from elmokit.network.bilm import BiLMState
from tests.helpers.engine_lstm import random_state, same_bits
from tests.helpers.engine_models import CONFIGS, LENGTHS, WORDS, arrays_of, random_bilm, random_ids
from tests.helpers.instruction_sets import machine_library

Open = Callable[[BiLMConfig, Mapping[str, Floats]], Network]


def open_with_c(config: BiLMConfig, arrays: Mapping[str, Floats]) -> Engine:
    library = machine_library()
    return Engine(config, arrays, "float32", library)


BOTH = pytest.mark.parametrize("open_network", [open_with_c, ReferenceEngine])


def tolerance(config: BiLMConfig, n_steps: int) -> float:
    """Return how far numbers may be from the exact ones after the token layer and so many steps of all LSTM layers.

    In a sum of n products of numbers of a size of about 1, each partial sum is rounded by up to 2^-24. These errors
    have random signs, so they add up to about 2^-24 sqrt(n). A gate, a clip and a tanh make no error larger, so n is
    counted along the longest path through the network. Eight times that is never exceeded by chance.
    """
    n_terms = 0
    cnn, words = config.char_cnn, config.word_features
    if cnn is not None:
        n_terms += cnn.char_dim * max(width for width, _ in cnn.filters) + (cnn.n_highway + 1) * cnn.n_features
    if words is not None:
        n_terms += words.word_dim
    n_terms += n_steps * config.n_layers * (2 * config.projection_dim + config.hidden_dim)
    return 8 * 2.0**-24 * math.sqrt(n_terms)


def assert_close(these: Any, those: Any, within: float) -> None:
    for this, that in zip(these, those, strict=True):
        np.testing.assert_allclose(this, that, atol=within, rtol=0)


def as_float64(state: State) -> State:
    return State(*(part.astype(np.float64) for part in state))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_reference_in_float64_equals_the_modules(name: str) -> None:
    config, bilm = CONFIGS[name], random_bilm(name)
    reference = ReferenceEngine(config, arrays_of(bilm), np.float64)
    ids, start = random_ids(config, 12), as_float64(random_state(config, len(LENGTHS)))
    vectors = reference.token_vectors(ids)
    wanted = range(config.n_layers + 1)
    layers, state = reference.layers(NetworkInput(vectors, WORDS, LENGTHS, start), wanted, returns_state=True)
    bilm.double()
    exact_vectors = bilm.token_layer(torch.from_numpy(ids))
    mask = torch.arange(int(LENGTHS.max())) < torch.from_numpy(LENGTHS)[:, None]
    table = torch.zeros(mask.shape, dtype=torch.int64)
    table[mask] = torch.from_numpy(WORDS)
    exact = bilm.contextualize(exact_vectors[table], mask, BiLMState(*map(torch.from_numpy, start)))
    assert vectors.dtype == layers[0].dtype == np.float64
    assert_close(vectors, exact_vectors, 1e-12)
    assert_close(layers, [exact.layers[:, row, :length] for row, length in enumerate(LENGTHS)], 1e-12)
    assert state is not None
    assert_close(state, exact.state, 1e-12)


@BOTH
@pytest.mark.parametrize("name", CONFIGS)
def test_a_network_in_float32_equals_the_exact_one(name: str, open_network: Open) -> None:
    config, arrays = CONFIGS[name], arrays_of(random_bilm(name))
    network, exact = open_network(config, arrays), ReferenceEngine(config, arrays, np.float64)
    ids, start, n_steps = random_ids(config, 12), random_state(config, len(LENGTHS)), int(LENGTHS.max())
    vectors, exact_vectors = network.token_vectors(ids), exact.token_vectors(ids)
    wanted = [*range(config.n_layers, -1, -1)]
    layers, state = network.layers(NetworkInput(vectors, WORDS, LENGTHS, start), wanted, returns_state=True)
    inputs = NetworkInput(exact_vectors, WORDS, LENGTHS, as_float64(start))
    exact_layers, exact_state = exact.layers(inputs, wanted, returns_state=True)
    assert {array.dtype for array in (vectors, *layers)} == {np.dtype(np.float32)}
    assert_close(vectors, exact_vectors, tolerance(config, 0))
    assert_close(layers, exact_layers, tolerance(config, n_steps))
    assert exact_state is not None
    assert_close(state, exact_state, tolerance(config, n_steps))
    # A row without a position keeps its state.
    assert all(np.array_equal(after[:, :, 1], before[:, :, 1]) for after, before in zip(state, start, strict=True))
    for number in range(config.n_directions):
        found, after = network.direction(number, NetworkInput(vectors, WORDS, LENGTHS, start), wanted)
        expected, _ = exact.direction(number, inputs, wanted)
        assert_close(found, expected, tolerance(config, n_steps))
        assert_close(
            [part[number] for part in after], [part[number] for part in exact_state], tolerance(config, n_steps)
        )


@BOTH
def test_parts_of_the_layers_are_parts_of_all_layers(open_network: Open) -> None:
    config = CONFIGS["characters"]
    network = open_network(config, arrays_of(random_bilm("characters")))
    vectors, start = network.token_vectors(random_ids(config, 12)), random_state(config, 1)
    dim = config.projection_dim
    every, state = network.layers(NetworkInput(vectors, WORDS, LENGTHS, start), range(3), returns_state=True)
    repeated = State(*(np.repeat(part, len(LENGTHS), axis=2) for part in start))
    again, state_again = network.layers(NetworkInput(vectors, WORDS, LENGTHS, repeated), range(3), returns_state=True)
    assert state is not None
    assert state_again is not None
    assert same_bits(again, every)
    assert same_bits(state_again, state)
    for wanted in ([0], [2, 0], [1, 2, 0], []):
        for n_edges in (0, 1, 5):
            some, none = network.layers(NetworkInput(vectors, WORDS, LENGTHS, start), wanted, n_edges=n_edges)
            assert none is None
            for part, whole in zip(some, every, strict=True):
                assert np.array_equal(part, whole[wanted, n_edges : max(n_edges, whole.shape[1] - n_edges)])
                assert part.base is None  # keeping it does not keep others
        for number in (0, 1):
            some, after = network.direction(number, NetworkInput(vectors, WORDS, LENGTHS, start), wanted)
            assert same_bits(some, [whole[wanted, :, number * dim : (number + 1) * dim] for whole in every])
            assert same_bits([part[number] for part in after], [part[number] for part in state])


@BOTH
def test_nothing_is_computed_of_nothing(open_network: Open) -> None:
    none = np.zeros(0, np.int64)
    for name in ("characters", "words", "words and characters"):
        config = CONFIGS[name]
        network = open_network(config, arrays_of(random_bilm(name)))
        vectors = network.token_vectors(random_ids(config, 0))
        assert vectors.shape == (0, 24)
        layers, state = network.layers(
            NetworkInput(vectors, none, none, State.zero(config, 0)), [0, 1], returns_state=True
        )
        assert layers == []
        assert state.n_rows == 0
        assert network.direction(0, NetworkInput(vectors, none, none, State.zero(config, 0)), [2])[0] == []
        start = random_state(config, 2)
        layers, state = network.layers(
            NetworkInput(vectors, none, np.zeros(2, np.int64), start), [0, 1], returns_state=True
        )
        assert [array.shape for array in layers] == [(2, 0, 48)] * 2
        assert state is not None
        assert same_bits(state, start)


def test_the_reference_uses_weights_where_they_are_and_converts_others() -> None:
    config = CONFIGS["characters"]
    arrays, ids = arrays_of(random_bilm("characters")), random_ids(config, 5)
    reference = ReferenceEngine(config, arrays)
    expected = reference.token_vectors(ids)
    others = {name: np.asfortranarray(array.astype(np.float64)) for name, array in arrays.items()}
    assert np.array_equal(ReferenceEngine(config, others).token_vectors(ids), expected)
    next(iter(arrays.values())).fill(0)
    assert not np.array_equal(reference.token_vectors(ids), expected)


@BOTH
def test_arrays_of_a_wrong_shape_are_an_error(open_network: Open) -> None:
    config = CONFIGS["words and characters"]
    arrays = arrays_of(random_bilm("words and characters"))
    for name, array in arrays.items():
        with pytest.raises(ValueError, match=f"{name} must be a contiguous array of float32"):
            open_network(config, {**arrays, name: array[..., :-1]})


@BOTH
@pytest.mark.parametrize(
    "name",
    ["characters", "too many characters for a table of all", "words and characters", "words", "a projected word table"],
)
def test_ids_outside_of_their_table_are_an_error(name: str, open_network: Open) -> None:
    config = CONFIGS[name]
    network, ids = open_network(config, arrays_of(random_bilm(name))), random_ids(config, 5).reshape(5, -1)
    n_words = 30 if name != "characters" and "too many" not in name else None
    n_chars = None if config.char_cnn is None else config.char_cnn.n_chars
    for place, last in (((0, 0), n_words or n_chars), ((4, -1), n_chars or n_words)):
        assert last is not None
        for wrong in (-1, last + 1, 2**62, -(2**62)):
            damaged = ids.copy()
            damaged[place] = wrong
            with pytest.raises(ValueError, match="without a character or word"):
                network.token_vectors(damaged)
        ids[place] = last
    network.token_vectors(ids)


@BOTH
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda batch: batch["words"].__setitem__(4, 12), "do not match"),
        (lambda batch: batch["lengths"].__setitem__(0, 6), "do not match"),
        (lambda batch: batch.update(lengths=np.array([-1, 19, 0, 0, 0])), "do not match"),
        (lambda batch: batch.update(vectors=batch["vectors"][:, :-1].copy()), r"vectors must be .* \(12, 23\)"),
        (lambda batch: batch.update(vectors=batch["vectors"].astype(np.float64)), "vectors must be .* float64"),
        (lambda batch: batch.update(words=batch["words"].astype(np.int32)), "words must be .* int32"),
        (lambda batch: batch.update(wanted=[3]), "do not match"),
    ],
)
def test_a_batch_that_would_read_foreign_memory_is_an_error(
    change: Callable[[dict[str, Any]], None], message: str, open_network: Open
) -> None:
    config = CONFIGS["words"]
    network = open_network(config, arrays_of(random_bilm("words")))
    batch: dict[str, Any] = {
        "vectors": network.token_vectors(random_ids(config, 12)),
        "words": WORDS.copy(),
        "lengths": LENGTHS.copy(),
        "start": random_state(config, 5),
        "wanted": [0, 1, 2],
    }

    def arguments() -> tuple[NetworkInput, list[int]]:
        return NetworkInput(*(batch[field] for field in NetworkInput._fields)), batch["wanted"]

    network.layers(*arguments())
    network.direction(1, *arguments())
    change(batch)
    with pytest.raises(ValueError, match=message):
        network.layers(*arguments())
    with pytest.raises(ValueError, match=message):
        network.direction(1, *arguments())
