"""Perplexity counts every token once, whatever the batches."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from elmokit.embedding.computer import Computer
from elmokit.embedding.start_state import boundary_state
from elmokit.engine.architecture import PRESETS
from elmokit.engine.state import State
from elmokit.lm.bilm_tf_perplexity import BilmTfPerplexity
from elmokit.lm.perplexity import Perplexity, exp_or_inf, perplexity
from elmokit.lm.spelling import NgramSpelling, spelling_of
from elmokit.lm.surprisal import Surprisal
from elmokit.pretrained.letter_model import N_SYMBOLS
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text import batching
from tests.conftest import random_model

TEXT = [["the", "cat", "sat"], ["the", "zebra", "ran", "."], ["dog"], [], ["the", "mat", "."]]
N_PREDICTIONS = sum(len(sentence) + 1 for sentence in TEXT)


def scored(model: PretrainedBiLM, **settings: object) -> Perplexity:
    texts = [TEXT] if settings.get("documents") else TEXT
    return perplexity(model, texts, **settings)


def plain_nats(model: PretrainedBiLM, direction: int, carried: bool) -> list[float]:
    """Token by token, one sentence after another: what the text's surprisal is by definition."""
    nats, (bilm, softmax) = [], model.build_modules()
    states = bilm.zero_state(1).of_direction(direction)
    for sentence in TEXT:
        tokens = ["<S>", *sentence, "</S>"]
        tokens = tokens if direction == 0 else tokens[::-1]
        if not carried:
            states = bilm.zero_state(1).of_direction(direction)
        for token, target in pairwise(tokens):
            vector = bilm.token_vectors(torch.from_numpy(model.encode([token])))
            outputs, states = bilm.run_direction(direction, vector[None], states)
            scores = F.linear(outputs[-1][0], softmax.weight, softmax.bias)
            nats.append(F.cross_entropy(scores, torch.from_numpy(model.vocabulary.word_ids([target]))).item())
    return nats


@pytest.mark.parametrize("carried", [False, True])
def test_perplexity_is_the_mean_surprisal_of_every_token(model: PretrainedBiLM, carried: bool) -> None:
    result = scored(model, start="zero", documents=carried)
    with torch.no_grad():
        for direction in range(2):
            nats = plain_nats(model, direction, carried)
            assert len(nats) == result.n_predictions == N_PREDICTIONS
            assert result.mean_nats[direction] == pytest.approx(sum(nats) / len(nats), abs=1e-5)
    assert result.unknown_ratio == pytest.approx(1 / 11)
    assert result.mean == pytest.approx(math.sqrt(result.per_direction[0] * result.per_direction[1]))
    assert result.arithmetic_mean == pytest.approx((result.per_direction[0] + result.per_direction[1]) / 2)
    assert (result.n_sentences, result.n_tokens) == (5, 11)


def test_batches_do_not_change_the_perplexity(model: PretrainedBiLM, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scored(model)
    monkeypatch.setattr(batching, "READ_AHEAD_BATCHES", 1)
    for batch_tokens in (1, 7, 1000):
        assert scored(model, batch_tokens=batch_tokens).mean_nats == pytest.approx(whole.mean_nats, abs=1e-6)


@pytest.mark.parametrize("documents", [False, True])
def test_each_sentence_is_passed_to_the_callback_once(model: PretrainedBiLM, documents: bool) -> None:
    found: list[Surprisal] = []
    result = scored(model, documents=documents, on_sentence=found.append)
    assert result.n_predictions == N_PREDICTIONS  # no tail is lost
    assert result.n_characters == len("".join(" ".join(sentence) + "\n" for sentence in TEXT))
    assert [sentence.tokens[1:-1] for sentence in found] == TEXT


def test_unknown_words_are_spelled_out(model: PretrainedBiLM) -> None:
    spelling = spelling_of(model)
    result = scored(model, spelling=spelling)
    bits = [nats * N_PREDICTIONS / math.log(2) for nats in result.mean_nats]
    n_characters = result.n_characters
    assert result.bits_per_character_unspelled == pytest.approx([value / n_characters for value in bits])
    assert "11, 9.09% unknown ('zebra')" in result.to_text()
    assert result.to_dict()["unknown_words"] == ["zebra"]
    paid = spelling.bits("zebra")
    assert paid > 5
    assert result.bits_per_character == pytest.approx([(value + paid) / n_characters for value in bits])


def test_a_model_of_one_direction_has_one_perplexity() -> None:
    model = random_model(dataclasses.replace(PRESETS["tiny"], bidirectional=False))
    result = scored(model)
    assert (result.mean,) == (result.arithmetic_mean,) == pytest.approx(result.per_direction)


def test_a_perplexity_beyond_a_float_is_infinite() -> None:
    assert exp_or_inf(1000.0) == math.inf
    assert exp_or_inf(1.0) == math.e
    result = Perplexity((2000.0, 1.0), 2, 0.0, 1, 4, 0.0)
    as_bilm_tf = BilmTfPerplexity((2000.0, 1.0), 2, 0, 1, 0.0)
    assert "forward             inf\n" in result.to_text()
    for facts in (result.to_dict(), as_bilm_tf.to_dict()):  # JSON has no infinity
        assert facts["perplexity"].pop("backward") == math.e
        assert set(facts["perplexity"].values()) == {None}


def test_a_sentence_starts_from_the_start_state_of_the_model(model: PretrainedBiLM) -> None:
    assert scored(model).mean_nats == scored(model, start=boundary_state(Computer(model))).mean_nats
    model = model.replace(start_state=State.zero(model.config, 1))
    assert scored(model).mean_nats == scored(model, start="zero").mean_nats


@settings(max_examples=30)
@given(st.lists(st.text(max_size=5), max_size=6), st.binary(max_size=4))
def test_the_probabilities_of_every_context_sum_to_one(words: list[str], context: bytes) -> None:
    spelling = NgramSpelling(words)
    total = sum(spelling.probability(symbol, tuple(context)) for symbol in range(N_SYMBOLS))
    assert total == pytest.approx(1.0)


def test_costs_equal_the_formula_by_hand() -> None:
    assert NgramSpelling([]).bits("Ä") == pytest.approx(3 * math.log2(257))  # without words, every byte costs the same
    spelling = NgramSpelling(["ab"])
    start = 1 / 257
    first = (1 + 3 * start) / (3 + 3)  # after nothing: a, b and the end, once each
    second = (1 + first) / 2  # after a: b, once
    end = (1 + (1 + first) / 2) / 2  # after b, then after ab: the end, once each
    assert spelling.bits("ab") == pytest.approx(-sum(map(math.log2, (first, second, end))))
