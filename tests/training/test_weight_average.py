"""The moving average of the weights: its formula, and that it is what a training evaluates and keeps."""

from __future__ import annotations

import dataclasses

import torch

from elmokit.engine.config import PRESETS
from elmokit.formats.model import PretrainedBiLM
from elmokit.network.char_cnn import WordEmbedding
from elmokit.network.softmax import TiedSoftmax
from elmokit.training.weight_average import WeightAverage
from tests.conftest import random_model


def first_weight(model: PretrainedBiLM) -> torch.Tensor:
    return next(iter(model.bilm.parameters()))


def test_the_average_forgets_the_initial_weights_and_then_follows_slowly(model: PretrainedBiLM) -> None:
    average = WeightAverage(model, decay=0.5)
    expected = first_weight(model).detach().clone()
    for step in range(1, 20):
        with torch.no_grad():
            for parameter in model.bilm.parameters():
                parameter.add_(1.0)
        average.update(model, step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * first_weight(model).detach()
        torch.testing.assert_close(first_weight(average.model), expected)
    assert not first_weight(average.model).requires_grad


def test_the_average_of_a_tied_softmax_stays_tied() -> None:
    model = random_model(dataclasses.replace(PRESETS["tiny"], char_cnn=None, n_words=7))
    assert isinstance(model.bilm.token_layer, WordEmbedding)
    model.softmax = TiedSoftmax(model.bilm.token_layer.embedding)
    model.softmax_module.reset_parameters()
    average = WeightAverage(model, decay=0.9).model
    assert isinstance(average.softmax_module, TiedSoftmax)
    assert isinstance(average.bilm.token_layer, WordEmbedding)
    assert average.softmax_module.weight.data_ptr() == average.bilm.token_layer.embedding.weight[1:].data_ptr()
    assert average.softmax_module.weight.data_ptr() != model.softmax_module.weight.data_ptr()
