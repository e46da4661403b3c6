"""Character features of task models: a word's own, whatever else is in its batch."""

from __future__ import annotations

import pytest
import torch

from elmokit.tasks.allennlp.word_characters import AllenNLPCharCNN
from elmokit.tasks.nn.layers import TokenCharCNN


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
    features = TokenCharCNN(9, 4, [(3, 50)], activation=activation)(torch.randint(1, 9, (30, 6)))  # type: ignore[arg-type]
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
