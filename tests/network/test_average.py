"""The moving average of weights: its formula, and that weights which two modules share stay shared."""

from __future__ import annotations

import torch
from torch import nn

from elmokit.network.average import moving_average
from elmokit.network.softmax_module import TiedSoftmax


def test_the_average_forgets_the_initial_weights_and_then_follows_slowly() -> None:
    module = nn.Linear(3, 2)
    average = moving_average(module, decay=0.5)
    expected = module.weight.detach().clone()
    for step in range(1, 20):
        with torch.no_grad():
            module.weight.add_(1.0)
        average.update_parameters(module)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * module.weight.detach()
        torch.testing.assert_close(next(average.module.parameters()), expected)


def test_the_average_of_a_tied_softmax_stays_tied() -> None:
    embedding = nn.Embedding(7, 4)
    softmax = TiedSoftmax(embedding)
    softmax.reset_parameters()
    copied, tied = moving_average(nn.ModuleList([embedding, softmax]), decay=0.9).module.children()
    assert isinstance(copied, nn.Embedding)
    assert isinstance(tied, TiedSoftmax)
    assert tied.weight.data_ptr() == copied.weight[1:].data_ptr() != softmax.weight.data_ptr()
