"""Perplexity counts every token once, whatever the batches."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from elmokit.errors import ModelNotFoundError, TextError
from elmokit.train import perplexity as perplexity_module
from elmokit.train.perplexity import Perplexity, perplexity
from elmokit.weights.model import StoredModel
from elmokit.weights.warm import boundary_state

TEXT = [["the", "cat", "sat"], ["the", "zebra", "ran", "."], ["dog"], [], ["the", "mat", "."]]
N_PREDICTIONS = sum(len(sentence) + 1 for sentence in TEXT)


def scored(model: StoredModel, **settings: object) -> Perplexity:
    return perplexity(model, TEXT, **settings)  # type: ignore[arg-type]


def plain_nats(model: StoredModel, direction: int, carried: bool) -> list[float]:
    """Token by token, one sentence after another: what the text's surprisal is by definition."""
    assert model.softmax is not None
    assert model.vocabulary is not None
    nats = []
    states = model.bilm.zero_state(1).of_direction(direction)
    for sentence in TEXT:
        tokens = ["<S>", *sentence, "</S>"]
        tokens = tokens if direction == 0 else tokens[::-1]
        if not carried:
            states = model.bilm.zero_state(1).of_direction(direction)
        for token, target in pairwise(tokens):
            vector = model.bilm.token_vectors(torch.from_numpy(model.encode([token])))
            outputs, states = model.bilm.read(direction, vector[None], states)
            scores = F.linear(outputs[-1][0], model.softmax.weight, model.softmax.bias)
            nats.append(F.cross_entropy(scores, torch.from_numpy(model.vocabulary.word_ids([target]))).item())
    return nats


@pytest.mark.parametrize("carried", [False, True])
def test_it_is_the_mean_surprisal_of_every_token(model: StoredModel, carried: bool) -> None:
    result = scored(model, n_carried_rows=1 if carried else None)
    with torch.no_grad():
        for direction in range(2):
            nats = plain_nats(model, direction, carried)
            assert len(nats) == result.n_predictions == N_PREDICTIONS
            assert result.mean_nats[direction] == pytest.approx(sum(nats) / len(nats), abs=1e-5)
    assert result.unknown_share == pytest.approx(1 / 11)
    assert result.mean == pytest.approx(math.sqrt(result.per_direction[0] * result.per_direction[1]))


def test_batches_do_not_change_it(model: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scored(model)
    monkeypatch.setattr(perplexity_module, "BATCH_TOKENS", 7)
    monkeypatch.setattr(perplexity_module, "POOL_SENTENCES", 2)
    assert scored(model).mean_nats == pytest.approx(whole.mean_nats, abs=1e-6)


@pytest.mark.parametrize("n_rows", [1, 2, 3, 5])
def test_no_tail_is_lost_with_several_carried_rows(model: StoredModel, n_rows: int) -> None:
    assert scored(model, n_carried_rows=n_rows).n_predictions == N_PREDICTIONS


def test_a_start_state_changes_the_first_words_only_through_the_state(model: StoredModel) -> None:
    assert scored(model, start=boundary_state(model)).mean_nats != scored(model).mean_nats
    assert scored(model, start=model.bilm.zero_state(1)).mean_nats == scored(model).mean_nats


def test_an_empty_text_is_refused(model: StoredModel) -> None:
    with pytest.raises(TextError, match="No sentence to score"):
        perplexity(model, [])


def test_a_model_without_its_softmax_is_refused(model: StoredModel) -> None:
    model.softmax = None
    with pytest.raises(ModelNotFoundError, match="has no softmax"):
        perplexity(model, TEXT)
