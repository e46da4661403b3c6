from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from elmokit.network.char_cnn import CharCNN, Highway, WordEmbedding
from tests.helpers import rounding
from tests.helpers.rounding import assert_rounded


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=6),
    seed=st.integers(0, 100),
    precision=st.sampled_from([torch.float64, torch.float32]),  # float32 runs in the native library
)
def test_skipping_padding_columns_changes_nothing(lengths: list[int], seed: int, precision: torch.dtype) -> None:
    torch.manual_seed(seed)
    cnn = CharCNN(30, 3, [(1, 2), (4, 5)], "tanh", 1, 4).to(precision)
    ids = torch.full((len(lengths), 20), 30)
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = torch.randint(1, 30, (length,))
    expected = rounding.char_cnn(cnn, ids)
    assert_rounded(cnn(ids), expected)
    with torch.no_grad():
        assert_rounded(cnn(ids), expected)


def test_padding_inside_a_word_takes_part_in_the_convolution() -> None:
    cnn = CharCNN(5, 2, [(2, 3)], "relu", 0, 3)
    cnn.reset_parameters(torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = cnn(torch.tensor([[1, 2, 5, 5, 5]]))
        cnn.char_embedding.weight[5] += 10
        assert not torch.equal(cnn(torch.tensor([[1, 2, 5, 5, 5]])), before)


def test_layers_that_share_their_weights_are_all_computed() -> None:
    cnn = CharCNN(30, 3, [(1, 2), (4, 5)], "tanh", 2, 4)
    cnn.highways[1] = cnn.highways[0]
    ids = torch.randint(1, 30, (6, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert_rounded(cnn(ids), rounding.char_cnn(cnn, ids))


def test_new_highway_is_close_to_the_identity() -> None:
    highway = Highway(400)
    highway.reset_parameters(torch.Generator().manual_seed(0))
    inputs = torch.randn(50, 400, generator=torch.Generator().manual_seed(1))
    kept = F.cosine_similarity(highway(inputs), inputs)
    assert kept.min() > 0.9
    assert torch.equal(highway.gate.bias, torch.full((400,), -2.0))


def test_fresh_char_cnn_follows_bilm_tf_initializers() -> None:
    cnn = CharCNN(261, 16, [(2, 500)], "tanh", 0, 100)
    cnn.reset_parameters(torch.Generator().manual_seed(0))
    assert not cnn.char_embedding.weight[0].any()
    assert 0.9 < cnn.char_embedding.weight.abs().max() <= 1
    convolution = cnn.convolutions[0]
    assert isinstance(convolution, torch.nn.Conv1d)
    assert abs(convolution.weight.std().item() - 32**-0.5) < 0.01
    assert abs(cnn.projection.weight.std().item() - 500**-0.5) < 0.002


def test_word_id_0_is_the_zero_vector() -> None:
    embedding = WordEmbedding(4, 3)
    embedding.reset_parameters(torch.Generator().manual_seed(0))
    assert not embedding(torch.tensor([0])).any()
    assert embedding(torch.tensor([4])).any()
