"""The network against slow NumPy formulas, and what it promises about masks and state."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit import ElmoModule
from elmokit.engine.architecture import PRESETS, BiLMConfig, CharCNNConfig
from elmokit.engine.softmax import SoftmaxConfig
from elmokit.engine.state import State
from elmokit.errors import ConfigError
from elmokit.formats import bilm_tf
from elmokit.formats.bilm_tf import bilm_tf_rows
from elmokit.formats.tensor_rows import to_theirs
from elmokit.network.bilm import BiLM, BiLMState
from tests.conftest import random_model
from tests.reference import bilm_numpy


@st.composite
def configs(draw: st.DrawFn) -> BiLMConfig:
    projection_dim = draw(st.integers(1, 6))
    char_cnn = n_words = None
    if draw(st.booleans()):
        filters = tuple(draw(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=3)))
        if draw(st.booleans()):  # filters that sum to the projection: no projection layer
            projection_dim = sum(count for _, count in filters)
        char_cnn = CharCNNConfig(
            filters=filters,
            char_dim=draw(st.integers(1, 4)),
            n_highway=draw(st.integers(0, 3)),
            activation=draw(st.sampled_from(["relu", "tanh"])),
            max_chars=draw(st.integers(4, 9)),
            n_chars=draw(st.sampled_from([12, 261])),
        )
    else:
        n_words = draw(st.integers(1, 9))
    return BiLMConfig(
        char_cnn=char_cnn,
        n_words=n_words,
        projection_dim=projection_dim,
        hidden_dim=draw(st.sampled_from([projection_dim, projection_dim + 3])),
        n_layers=draw(st.integers(1, 3)),
        cell_clip=draw(st.sampled_from([None, 0.3])),
        projection_clip=draw(st.sampled_from([None, 0.2])),
        skip_connections=draw(st.booleans()),
        bidirectional=draw(st.booleans()),
    )


def random_bilm(config: BiLMConfig, seed: int) -> BiLM:
    """Weights large enough that gates and clips are at work."""
    generator = torch.Generator().manual_seed(seed)
    bilm = BiLM(config).double().eval()
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        first = next(bilm.token_layer.parameters())
        first[0] = 0.0
    return bilm


def random_state(config: BiLMConfig, n_rows: int, seed: int) -> BiLMState:
    generator = torch.Generator().manual_seed(seed)
    zero = BiLM(config).double().zero_state(n_rows)
    return BiLMState(*(0.1 * torch.randn(part.shape, generator=generator, dtype=torch.float64) for part in zero))


def random_ids(config: BiLMConfig, lengths: list[int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    if config.char_cnn is None:
        assert config.n_words is not None
        ids = torch.randint(1, config.n_words + 1, mask.shape, generator=generator)
        return ids * mask, mask
    ids = torch.randint(1, config.char_cnn.n_chars + 1, (*mask.shape, config.char_cnn.max_chars), generator=generator)
    return ids * mask[..., None], mask


@settings(max_examples=30)
@given(config=configs(), lengths=st.lists(st.integers(1, 5), min_size=1, max_size=3), seed=st.integers(0, 1000))
def test_network_equals_the_numpy_formulas(config: BiLMConfig, lengths: list[int], seed: int) -> None:
    bilm = random_bilm(config, seed)
    ids, mask = random_ids(config, lengths, seed)
    state = random_state(config, len(lengths), seed)
    with torch.no_grad():
        layers, after = bilm(ids, mask, state)
    arrays = {name: tensor.numpy() for name, tensor in bilm.state_dict().items()}
    weights = dict(to_theirs(arrays, bilm_tf_rows(config)))
    options = bilm_tf.options_from_config(config)
    for row, length in enumerate(lengths):
        states = [
            [(state.hidden[d, k, row].numpy(), state.cell[d, k, row].numpy()) for k in range(config.n_layers)]
            for d in range(config.n_directions)
        ]
        expected, new_states = bilm_numpy.layers_of_sentence(weights, options, ids[row, :length].tolist(), states)
        np.testing.assert_allclose(layers[:, row, :length].numpy(), expected, atol=1e-6, rtol=0)
        assert not layers[:, row, length:].any()
        for d, direction in enumerate(new_states):
            for k, (hidden, cell) in enumerate(direction):
                np.testing.assert_allclose(after.hidden[d, k, row].numpy(), hidden, atol=1e-6, rtol=0)
                np.testing.assert_allclose(after.cell[d, k, row].numpy(), cell, atol=1e-6, rtol=0)


def test_carried_state_equals_one_long_window() -> None:
    config = dataclasses.replace(PRESETS["tiny"], bidirectional=False)
    bilm = random_bilm(config, 1)
    ids, mask = random_ids(config, [9, 9], 1)
    state = bilm.zero_state(2)
    with torch.no_grad():
        whole = bilm(ids, mask, state)
        first = bilm(ids[:, :4], mask[:, :4], state)
        second = bilm(ids[:, 4:], mask[:, 4:], first.state)
    torch.testing.assert_close(torch.cat([first.layers, second.layers], dim=2), whole.layers, atol=1e-12, rtol=0)
    torch.testing.assert_close(second.state, whole.state, atol=1e-12, rtol=0)


def test_each_distinct_token_is_encoded_once() -> None:
    bilm = random_bilm(PRESETS["tiny"], 3)
    ids, _ = random_ids(bilm.config, [4], 3)
    repeated = ids.repeat(5, 3, 1)
    rows: list[int] = []
    bilm.token_layer.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    with torch.no_grad():
        vectors = bilm.token_vectors(repeated)
        plain = bilm.token_layer(repeated.flatten(0, 1)).view_as(vectors)
    assert rows == [4, 60]
    torch.testing.assert_close(vectors, plain)


def test_published_sizes_have_the_published_numbers_of_parameters() -> None:
    counts = {}
    for name in ("small", "medium", "original"):
        with torch.device("meta"):
            counts[name] = BiLM(PRESETS[name]).n_parameters
    assert counts["original"] == 93_600_848
    assert [round(counts[name] / 1e6, 1) for name in ("small", "medium")] == [13.6, 28.0]


def test_fresh_parameters_follow_from_the_seed() -> None:
    first, second, third = BiLM(PRESETS["tiny"]), BiLM(PRESETS["tiny"]), BiLM(PRESETS["tiny"])
    first.reset_parameters(5)
    second.reset_parameters(5)
    third.reset_parameters(6)
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert not torch.equal(next(first.parameters()), next(third.parameters()))


@pytest.mark.parametrize(
    ("config", "change", "mention"),
    [
        (PRESETS["tiny"], {"projection_dim": 65}, "projection_dim is 65"),
        (PRESETS["tiny"], {"n_layers": 0}, "n_layers is 0"),
        (PRESETS["tiny"], {"hidden_dim": 2.5}, "hidden_dim is 2.5"),
        (PRESETS["tiny"], {"cell_clip": -1.0}, "cell_clip is -1.0"),
        (PRESETS["tiny"], {"projection_clip": 0.0}, "projection_clip is 0.0"),
        (PRESETS["tiny"], {"dropout": 1.0}, "dropout is 1.0"),
        (PRESETS["tiny"], {"n_words": 5}, "n_words"),
        (PRESETS["tiny"], {"char_cnn": None}, "n_words"),
        (CharCNNConfig(), {"filters": ((7, 3),), "max_chars": 6}, "max_chars is 6"),
        (CharCNNConfig(), {"filters": ((1, 3),), "max_chars": 2}, "max_chars is 2"),
        (CharCNNConfig(), {"filters": ()}, "filters is []"),
        (CharCNNConfig(), {"filters": ((0, 3),)}, "filters is [(0, 3)]"),
        (CharCNNConfig(), {"activation": "gelu"}, "activation is 'gelu'"),
        (CharCNNConfig(), {"n_highway": -1}, "n_highway is -1"),
        (SoftmaxConfig(), {"kind": "half"}, "kind is 'half'"),
        (SoftmaxConfig(), {"inner_dim": -1}, "inner_dim is -1"),
    ],
)
def test_impossible_sizes_are_an_error(config: Any, change: dict[str, object], mention: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(mention)):
        dataclasses.replace(config, **change)


@torch.no_grad()
def test_everything_is_computed_where_the_network_is() -> None:
    # Without a GPU: meta tensors have a device, and no data.
    model = random_model()
    model = model.replace(start_state=State(*(part + 1 for part in State.zero(model.config, 1))))
    elmo = ElmoModule(model).to("meta")
    assert {part.device.type for part in elmo.start_state(2)} == {"meta"}
    vectors, mask = torch.zeros(2, 3, 32, device="meta"), torch.ones(2, 3, dtype=torch.bool, device="meta")
    output = elmo.bilm.contextualize(vectors, mask, elmo.bilm.zero_state(2))
    assert {part.device.type for part in (output.layers, *output.state)} == {"meta"}
    assert output.layers.shape == (3, 2, 3, 64)
