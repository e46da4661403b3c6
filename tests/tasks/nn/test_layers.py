"""Small layers equal their plain forms on the real tokens alone; features of characters are a word's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from elmokit.tasks.allennlp.char_layers import AllenNLPCharCNN
from elmokit.tasks.nn.layers import (
    Maxout,
    TokenCharCNN,
    attend,
    init_glorot_orthogonal,
    masked_max,
    masked_mean,
    masked_min,
    masked_softmax,
    run_packed,
)

VALUES = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)) - 5  # all maxima below zero
MASK = torch.tensor([[True, True, True, False], [False] * 4])


def test_softmax_ignores_padding() -> None:
    scores = torch.randn(2, 4)
    found = masked_softmax(scores, MASK)
    torch.testing.assert_close(found[0, :3], scores[0, :3].softmax(0))
    assert found[0, 3] == 0
    assert not found[1].any()


def test_attention_ignores_padding() -> None:
    scores = torch.randn(2, 5, 4)
    found = attend(scores, VALUES, MASK)
    torch.testing.assert_close(found[0], scores[0, :, :3].softmax(-1) @ VALUES[0, :3])
    assert not found[1].any()


def test_pooling_ignores_padding() -> None:
    for pool, plain in ((masked_max, torch.amax), (masked_min, torch.amin), (masked_mean, torch.mean)):
        found = pool(VALUES, MASK)
        torch.testing.assert_close(found[0], plain(VALUES[0, :3], dim=0))
        assert not found[1].any()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_padded_row_is_read_as_if_it_were_alone(kind: type[nn.LSTM] | type[nn.GRU]) -> None:
    torch.manual_seed(0)
    rnn = kind(3, 4, num_layers=2, batch_first=True, bidirectional=True)
    inputs, lengths = torch.randn(4, 5, 3), [2, 5, 1, 0]
    mask = torch.arange(5)[None, :] < torch.tensor(lengths)[:, None]
    outputs = run_packed(rnn, inputs, mask)
    for row, length in enumerate(lengths):
        assert not outputs[row, length:].any()
        if length:
            torch.testing.assert_close(outputs[row, :length], rnn(inputs[row : row + 1, :length])[0][0])


def test_glorot_and_orthogonal_start() -> None:
    torch.manual_seed(0)
    part = nn.ModuleList([nn.Linear(5, 7), nn.LSTM(3, 4, bidirectional=True)])
    init_glorot_orthogonal(part)
    linear, lstm = part
    assert not linear.bias.any()
    assert linear.weight.abs().max() <= (6 / 12) ** 0.5
    for name, weight in lstm.named_parameters():
        if name.startswith("weight_hh"):
            torch.testing.assert_close(weight.T @ weight, torch.eye(4), atol=1e-5, rtol=0)
        if name.startswith("bias"):
            assert weight.tolist() == [0.0] * 4 + [float("ih" in name)] * 4 + [0.0] * 8


def test_features_do_not_depend_on_longer_words_of_the_batch() -> None:
    torch.manual_seed(0)
    cnn = TokenCharCNN(20, 4, [(2, 5), (4, 3)], activation="none")
    word, short = [3, 4, 5, 6, 7], [8]
    alone = cnn(torch.tensor([word]))
    together = cnn(torch.tensor([word + [0] * 6, short + [0] * 10, list(range(1, 12))]))
    torch.testing.assert_close(together[0], alone[0])
    torch.testing.assert_close(together[1], cnn(torch.tensor([short]))[0])


def test_the_maximum_runs_over_windows_inside_the_word() -> None:
    cnn = TokenCharCNN(20, 2, [(2, 1)], activation="none")
    ids = torch.tensor([[3, 4, 5, 0, 0]])
    vectors = cnn.embedding(ids)[0]
    weight, bias = cnn.convolutions[0].weight[0], cnn.convolutions[0].bias
    windows = [(weight * vectors[start : start + 2].T).sum() + bias[0] for start in (0, 1)]
    torch.testing.assert_close(cnn(ids)[0, 0], max(windows))


@pytest.mark.parametrize(("activation", "bound"), [("relu", (0.0, 1e9)), ("tanh", (-1.0, 1.0))])
def test_activations(activation: str, bound: tuple[float, float]) -> None:
    features = TokenCharCNN(9, 4, [(3, 50)], activation=activation)(torch.randint(1, 9, (30, 6)))
    assert bound[0] <= features.min()
    assert features.max() <= bound[1]


def test_other_windows_are_those_of_allennlp() -> None:
    """Since 1.3 a word shorter than the filter has zeros; before, windows of padding counted too."""
    torch.manual_seed(0)
    complete = AllenNLPCharCNN(9, 4, [(3, 5)], "relu", 0.0, every_window=False, min_chars=None)
    batch = AllenNLPCharCNN(9, 4, [(3, 5)], "relu", 0.0, every_window=True, min_chars=5)
    batch.load_state_dict(complete.state_dict())
    ids = torch.tensor([[2, 3, 0, 0, 0, 0, 0], [2, 3, 4, 5, 6, 7, 8]])
    assert not complete(ids)[0].any()
    assert torch.equal(complete(ids)[1], batch(ids)[1])
    responses = batch.convolutions[0](batch.embedding(ids[:1]).transpose(1, 2))
    torch.testing.assert_close(batch(ids)[0], responses.amax(dim=-1)[0].relu())
    assert torch.equal(batch(ids[:1, :2])[0], batch(ids[:1, :5])[0])  # at least five characters


def test_maxout_takes_each_unit_s_largest_map() -> None:
    layer = Maxout(3, 2, pool=4)
    inputs = torch.randn(5, 3)
    maps = inputs @ layer.linear.weight.T + layer.linear.bias  # (5, 8)
    expected = torch.stack([maps[:, :4].amax(1), maps[:, 4:].amax(1)], dim=1)
    torch.testing.assert_close(layer(inputs), expected)
