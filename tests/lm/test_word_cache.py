"""The continuous cache of documents, against a slow and plain reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np
import pytest

from elmokit import LanguageModel
from elmokit.lm import word_cache as module
from elmokit.lm.spelling import spelling_of
from elmokit.lm.substitutes import Direction, Wanted, expected_words
from elmokit.lm.word_cache import CacheSettings, DocumentCache, WordCache
from elmokit.pretrained.model import PretrainedBiLM
from tests.helpers.shell import Shell

DOCUMENT = [["the", "cat", "sat", "."], ["zebra", "ran", "."], ["the", "zebra", "cat"], ["gnu", "zebra", "gnu", "."]]


@pytest.fixture(autouse=True)
def large_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and sizes that matter in a document of a few words."""
    monkeypatch.setattr(module, "SIZES", (3, 6, 9, 12))
    monkeypatch.setattr(module, "FORWARD_WEIGHTS", (0.1, 0.2, 0.3, 0.4, 0.5))
    monkeypatch.setattr(module, "BACKWARD_WEIGHTS", (0.5, 0.4, 0.3, 0.2, 0.1))


def plain_expectations(
    settings: CacheSettings, weights: Sequence[float], hidden: np.ndarray, words: Sequence[int]
) -> list[tuple[float, float]]:
    """Compute the cache's probability of each word and its weight, one word after the other."""
    found = []
    for position, word in enumerate(words):
        strengths: dict[int, float] = {}
        before = range(max(0, position - settings.size), position)
        for other in before:
            cosine = hidden[position] @ hidden[other]
            cosine /= np.linalg.norm(hidden[position]) * np.linalg.norm(hidden[other])
            strengths[words[other]] = strengths.get(words[other], 0.0) + math.exp(settings.theta * cosine)
        weight = weights[sum(len(before) >= size for size in module.SIZES)] if before else 0.0
        found.append((strengths.get(word, 0.0) / sum(strengths.values()) if before else 0.0, weight))
    return found


@pytest.mark.parametrize("size", [1, 5, 150, 1000])
def test_a_cache_equals_the_plain_reference_in_parts_of_any_length(size: int) -> None:
    rng = np.random.default_rng(1)
    hidden, words = rng.normal(size=(300, 8)).astype(np.float32), rng.integers(-5, 20, 300)
    settings = CacheSettings(theta=5.0, size=size)
    expected = plain_expectations(settings, module.FORWARD_WEIGHTS, hidden.astype(float), words.tolist())
    for n in (1, 7, 300):
        cache = WordCache(settings, module.FORWARD_WEIGHTS, 8)
        parts = [cache.expect(hidden[i : i + n], words[i : i + n]) for i in range(0, 300, n)]
        np.testing.assert_allclose(np.concatenate(parts, axis=1).T, expected, rtol=1e-4, atol=1e-7)
        assert len(cache.words) == min(size, 300)


@pytest.mark.parametrize("direction", [0, 1])
def test_probabilities_of_all_words_and_strings_add_up_to_one(model: PretrainedBiLM, direction: int) -> None:
    lm = LanguageModel(model)
    strings = ["zebra", "gnu"]
    unknown = model.vocabulary.words[model.vocabulary.unknown_id]
    known = [word for word in model.vocabulary.words if word != unknown]
    # The word that a direction reads last in its sentence: what it has read before is the same for all words.
    place, position = (4, 5) if direction == 0 else (0, 1)
    documents = []
    for word in [*known, *strings, "never"]:
        last = [*DOCUMENT[-1], "."]
        last[place] = word
        documents.append([*DOCUMENT, last])
    words = [document[-1] for document in lm.surprisal_documents(documents, cache=True)]
    total = [one.nats[direction, position] + one.spelling_nats[position] for one in words]
    # All other strings share what <UNK> has, less the letters of the strings of the cache.
    left = 1 - sum(math.exp(-spelling_of(model).nats(word)) for word in strings)
    others = math.exp(-words[-1].nats[direction, position]) * left
    assert [one.spelling_nats[position] for one in words[-3:-1]] == [0, 0]
    assert np.exp(-np.array(total[:-1], float)).sum() + others == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_substitutes_have_the_probabilities_of_surprisal(model: PretrainedBiLM, direction: Direction) -> None:
    lm = LanguageModel(model)
    place, number = (4, 0) if direction == "forward" else (0, 1)
    last = [*DOCUMENT[-1], "."]
    found = lm.substitutes(last, place, direction, n=1000, special_words=True, before=DOCUMENT, cache=True)
    probabilities = {one.word: one.probability for one in found if one.probability > 0}
    assert sum(probabilities.values()) == pytest.approx(1, abs=1e-5)
    assert probabilities.keys() >= {"zebra", "gnu"}
    for word in ("the", "cat", "zebra", "gnu"):
        last[place] = word
        *_, scored = lm.surprisal_documents([[*DOCUMENT, last]], cache=True)[0]
        assert probabilities[word] == pytest.approx(math.exp(-scored.nats[number, place + 1]), rel=1e-4)
    known = [one.word for one in lm.substitutes(last, place, direction, n=1000, before=DOCUMENT, cache=True)]
    assert "zebra" in known
    assert "<UNK>" not in known


@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_special_words_are_no_substitutes_however_many_are_asked_for(
    model: PretrainedBiLM, direction: Direction
) -> None:
    lm = LanguageModel(model)
    # One of the unknown words comes after the position, so that the cache of one direction does not have it.
    last = [*DOCUMENT[-1][:2], "yak", "."]
    found = lm.substitutes(last, 1, direction, n=1000, before=DOCUMENT, cache=True)
    assert not {one.word for one in found} & {"<S>", "</S>", "<UNK>"}
    assert sum(one.probability for one in found) == pytest.approx(1, abs=1e-5)


def test_strings_that_take_all_of_the_unknown_words_leave_nothing_for_others(model: PretrainedBiLM) -> None:
    cache = DocumentCache(model, CacheSettings(), lambda word: 0.0)  # as of a letter model that is sure of each word
    wanted = Wanted(["forward"], n=1000, special_words=True)
    ((found,),) = expected_words(model, [[(["zebra", "gnu", "."], [2])]], wanted, documents=True, cache=cache)
    probabilities = {one.word: one.probability for one in found["forward"]}
    assert probabilities["<UNK>"] == 0
    assert min(probabilities["zebra"], probabilities["gnu"]) > 0


def test_both_directions_expect_a_word_of_the_document_again(model: PretrainedBiLM) -> None:
    lm = LanguageModel(model)
    for word in ("zebra", "cat"):
        found = [
            {
                one.word: one.probability
                for one in lm.substitutes(["the", word, "."], 1, n=1000, before=before, cache=True)
            }
            for before in ([], DOCUMENT * 4)
        ]
        assert found[1][word] > found[0].get(word, 0)


def test_substitutes_without_cache_do_not_need_an_unknown_word(model: PretrainedBiLM) -> None:
    sentences = [["the", "zebra"], ["the", "cat", "."]]
    plain = [LanguageModel(model).substitutes(sentence, before=sentences) for sentence in sentences]
    assert [len(positions) for positions in plain] == [2, 3]


def test_backward_reads_the_words_after_and_the_sentences_before(model: PretrainedBiLM) -> None:
    lm = LanguageModel(model)
    ((once,),) = lm.surprisal_documents([[["zebra", "the", "zebra"]]], cache=True)
    ((plain,),) = lm.surprisal_documents([[["zebra", "the", "zebra"]]])
    assert plain.spelling_nats[1] > 0
    assert once.spelling_nats.tolist() == [0] * 5  # either has the other in one of the directions
    # Nothing is expected from itself: forward the first word has nothing before it, backward the last has </S> alone.
    spelled = plain.nats[:, 1:4] + plain.spelling_nats[1:4]
    np.testing.assert_allclose(once.nats[0, 1], spelled[0, 0], rtol=1e-5)
    np.testing.assert_allclose(once.nats[1, 3], spelled[1, 2], rtol=1e-5)
    assert once.nats[0, 3] < spelled[0, 2]
    assert once.nats[1, 1] < spelled[1, 0]


def test_the_results_do_not_depend_on_batches_or_other_documents(model: PretrainedBiLM) -> None:
    lm = LanguageModel(model)
    documents = [DOCUMENT, [], DOCUMENT[:1], DOCUMENT * 9]
    one = lm.surprisal_documents(documents, cache=True)
    for other in (
        lm.surprisal_documents(documents, cache=True, batch_tokens=1),
        [lm.surprisal_documents([document], cache=CacheSettings())[0] for document in documents],
    ):
        assert list(map(len, other)) == list(map(len, one))
        for left, right in zip(chain(*one), chain(*other), strict=True):
            np.testing.assert_allclose(left.nats, right.nats, rtol=1e-5)
            np.testing.assert_array_equal(left.spelling_nats, right.spelling_nats)


def test_perplexity_and_words_have_the_nats_of_documents(model: PretrainedBiLM) -> None:
    lm = LanguageModel(model)
    (scored,) = lm.surprisal_documents([DOCUMENT], cache=True)
    nats = np.sum([one.total_nats for one in scored], axis=0)
    spelling = sum(one.spelling_nats.sum() for one in scored if one.spelling_nats is not None)
    found = lm.perplexity([DOCUMENT], documents=True, cache=True)
    assert np.array(found.mean_nats) * found.n_predictions == pytest.approx(nats)
    assert found.spelling_bits == pytest.approx(spelling / math.log(2))
    text = "the cat sat. The zebra ran. The zebra sat."
    with_cache, without = (lm.word_surprisal([text], documents=True, cache=cache) for cache in (True, False))
    assert [row.word for row in with_cache] == [row.word for row in without]
    assert with_cache != without


def test_the_commands_need_documents(shell: Shell) -> None:
    for command in (("surprisal",), ("evaluate", "perplexity")):
        result = shell(*command, "text.txt", "--cache")
        assert (result.code, "--cache needs --documents." in result.err) == (2, True)
