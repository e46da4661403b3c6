"""``Elmo``: NumPy vectors that depend on the sentence alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import elmokit
from elmokit.embedding import documents
from elmokit.embedding.elmo import Elmo
from elmokit.engine.architecture import PRESETS, BiLMConfig
from elmokit.engine.layer_selection import Layers
from elmokit.errors import FormatError
from elmokit.lm.language_model import LanguageModel
from elmokit.network.bilm import BiLM
from elmokit.pretrained.model import PretrainedBiLM, TokenTable
from elmokit.text import batching
from tests.conftest import WORDS, edited_model, random_model

ELMOS = {start: Elmo(random_model(), start=start) for start in ("warm", "zero", "stateful")}  # type: ignore[arg-type]
TOKENS = st.text(max_size=12)
SENTENCES = st.lists(st.lists(TOKENS, max_size=9), min_size=1, max_size=12)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    sentences=SENTENCES,
    start=st.sampled_from(["warm", "zero"]),
    batch_tokens=st.integers(1, 80),
    data=st.data(),
)
def test_vectors_do_not_depend_on_batch_order_or_neighbors(
    sentences: list[list[str]], start: str, batch_tokens: int, data: st.DataObject
) -> None:
    elmo = ELMOS[start]
    order = data.draw(st.permutations(range(len(sentences))))
    together = elmo.embed(sentences)
    shuffled = elmo.embed([sentences[number] for number in order], batch_tokens=batch_tokens)
    for number, vectors in zip(order, shuffled, strict=True):
        np.testing.assert_allclose(vectors, together[number], atol=1e-5, rtol=0)
    chosen = data.draw(st.integers(0, len(sentences) - 1))
    np.testing.assert_allclose(elmo.embed([sentences[chosen]])[0], together[chosen], atol=1e-5, rtol=0)


def test_stateful_embedding_continues_each_row_from_the_previous_batch() -> None:
    elmo = ELMOS["stateful"]
    sentence = ["the", "cat", "sat"]
    first, second = elmo.embed([sentence, sentence], batch_size=1)
    assert np.abs(first - second).max() > 1e-3
    two_rows = elmo.embed([sentence, ["dog"], sentence, ["dog"]], batch_size=2)
    np.testing.assert_allclose(two_rows[0], first, atol=1e-5)
    np.testing.assert_allclose(two_rows[2], second, atol=1e-5)


def test_carried_rows_grow_and_unused_rows_keep_their_state() -> None:
    elmo = ELMOS["stateful"]
    a, b = ["the", "cat"], ["a", "dog", "ran"]
    one, state = elmo.embed_batch([a, b], elmo.zero_state(2))
    _, after_a = elmo.embed_batch([a], state.first_rows(1))
    merged = state.with_first_rows(after_a)
    np.testing.assert_array_equal(merged.hidden[:, :, 1], state.hidden[:, :, 1])
    assert len(one) == 2


def test_arrays_come_in_the_order_given_without_boundaries() -> None:
    sentences = [["a"] * n for n in (5, 0, 30, 1)]
    vectors = ELMOS["warm"].embed(sentences, batch_tokens=16)
    assert [array.shape for array in vectors] == [(3, 5, 64), (3, 0, 64), (3, 30, 64), (3, 1, 64)]
    assert all(array.dtype == np.float32 and array.base is None for array in vectors)


def test_layers_are_chosen_by_name_and_number() -> None:
    elmo, sentence = ELMOS["warm"], ["the", "cat"]
    (full,) = elmo.embed([sentence])

    def layers(which: object) -> np.ndarray:
        return elmo.embed([sentence], layers=which)[0]  # type: ignore[call-overload, no-any-return]

    np.testing.assert_array_equal(layers("top"), full[2])
    np.testing.assert_array_equal(layers(1), full[1])
    np.testing.assert_array_equal(layers([2, 0]), full[[2, 0]])
    np.testing.assert_allclose(layers("average"), full.mean(axis=0), atol=1e-6)


def test_an_iterator_is_read_only_a_little_ahead() -> None:
    n_read = itertools.count()

    def endless() -> Iterator[list[str]]:
        while True:
            next(n_read)
            yield ["the", "cat"]

    vectors = ELMOS["warm"].embed(endless(), batch_tokens=40)
    assert next(vectors).shape == (3, 2, 64)
    assert list(ELMOS["warm"].embed(iter([]))) == ELMOS["warm"].embed([]) == []
    assert next(n_read) <= 8 * 40 // 4 + 1


@pytest.mark.parametrize(
    "sentence",
    [
        [],
        [""],
        ["the"] * 10_000,
        ["x" * 1000],
        ["🙂", "👩‍👩‍👧", "Ā", "\u200b", "\x00", "漢字"],
        ["\ud800", "a\udfffb"],
        ["<S>", "</S>", "<UNK>"],
        [" ", "a b", "\n"],
    ],
    ids=["empty", "empty token", "10,000 tokens", "1,000 characters", "unicode", "surrogates", "specials", "spaces"],
)
def test_any_text_gives_finite_vectors(sentence: list[str]) -> None:
    for elmo in ELMOS.values():
        (vectors,) = elmo.embed([sentence])
        assert vectors.shape == (3, len(sentence), 64)
        assert np.isfinite(vectors).all()


def test_a_word_input_model_embeds_unknown_words_as_unk() -> None:
    config = BiLMConfig(char_cnn=None, n_words=11, projection_dim=4, hidden_dim=6)
    elmo = Elmo(random_model(config))
    known, unknown, listed = elmo.embed([["the", "<UNK>"], ["the", "zebra"], ["the", "cat"]])
    np.testing.assert_allclose(known, unknown, atol=1e-5)
    assert np.abs(known - listed).max() > 1e-4


def test_layer_0_alone_is_computed_without_the_lstm_and_is_the_same(
    model: PretrainedBiLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    elmo = Elmo(model)
    sentences = [["the", "cat", "sat"], [], ["on"]]
    expected = [vectors[0] for vectors in elmo.embed(sentences)]
    monkeypatch.setattr(BiLM, "contextualize", None)  # any call of it would fail
    for vectors, again, listed in zip(
        expected, elmo.embed(sentences, layers=0), elmo.embed(sentences, layers=[0]), strict=True
    ):
        np.testing.assert_array_equal(again, vectors)
        np.testing.assert_array_equal(listed, vectors[None])


def test_repr_has_the_model_the_start_and_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ELMOKIT_BACKEND", raising=False)
    assert repr(Elmo.from_pretrained()) == "Elmo(model='en-mini', start='warm', precision='int8')"
    exact = Elmo.from_pretrained(start="zero", precision="float32")
    assert repr(exact) == "Elmo(model='en-mini', start='zero', precision='float32')"


@pytest.mark.parametrize(("part", "factor"), [("token_layer", 1e30), ("directions", 1e38)])
@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.filterwarnings("error")
def test_overflow_is_an_error_and_no_warning(
    part: str, factor: float, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELMOKIT_BACKEND", backend)
    model = random_model()
    model = edited_model(model, lambda bilm: [value.mul_(factor) for value in bilm.get_submodule(part).parameters()])
    assert all(np.isfinite(array).all() for array in model.arrays.values())
    elmo = Elmo(model, start="zero")
    expected = "The model computes NaN or infinity: its weights are finite, but so large that sums overflow"
    with pytest.raises(FormatError, match=expected):
        elmo.embed([["the", "cat"]])
    with pytest.raises(FormatError, match=expected):
        elmo.embed_batch([["the", "cat"]], elmo.start_state)
    monkeypatch.setattr(batching, "LONG_SENTENCE_TOKENS", 10)
    with pytest.raises(FormatError, match=expected):
        elmo.embed([["the"] * 20])
    with pytest.raises(FormatError, match=expected):
        LanguageModel(model, start="zero").surprisal([["the", "cat"]])


def test_raw_texts_are_split_on_request(model: PretrainedBiLM) -> None:
    elmo = Elmo(model)
    texts = ["The cat sat. It's on the mat.", "", "A dog ran"]
    found = elmo.embed(texts, tokenize=True)
    for array, text in zip(found, texts, strict=True):
        split = elmokit.tokenize(text) or [[]]
        np.testing.assert_array_equal(array, np.concatenate(elmo.embed(split), axis=1))
    (alone,) = elmo.embed(texts[0], tokenize="en", layers="top")
    np.testing.assert_array_equal(alone, found[0][-1])
    streamed = elmo.embed(iter(texts), tokenize=True, batch_tokens=4)
    assert isinstance(streamed, Iterator)
    for array, expected in zip(streamed, found, strict=True):
        np.testing.assert_array_equal(array, expected)


@settings(max_examples=12)
@given(n_tokens=st.integers(0, 40), window=st.integers(1, 45), bidirectional=st.booleans(), seed=st.integers(0, 99))
@pytest.mark.parametrize("layers", ["all", "top", "average", (0, 2)])
def test_a_sentence_in_windows_has_the_vectors_of_the_whole(
    layers: Layers, n_tokens: int, window: int, bidirectional: bool, seed: int
) -> None:
    elmo = Elmo(random_model(replace(PRESETS["tiny"], bidirectional=bidirectional), seed))
    sentence = np.random.default_rng(seed).choice(WORDS[3:], n_tokens).tolist()
    document = [["the", "cat"], sentence, ["sat"]]
    whole = [*elmo.embed([sentence], layers=layers), *elmo.embed_documents([document], layers=layers)[0]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "LONG_SENTENCE_TOKENS", 5)
        patch.setattr(documents, "WINDOW_TOKENS", window)
        in_windows = [*elmo.embed([sentence], layers=layers), *elmo.embed_documents([document], layers=layers)[0]]
    for array, expected in zip(in_windows, whole, strict=True):
        np.testing.assert_allclose(array, expected, atol=1e-5)


def test_a_table_of_token_vectors_is_read_whatever_holds_the_other_weights() -> None:
    model = random_model()
    vectors = np.random.default_rng(0).normal(size=(2, model.config.projection_dim)).astype(np.float32)
    table, other = TokenTable({"the": 0, "cat": 1}, vectors), TokenTable({"the": 0}, 2 * vectors[:1])
    sentences = [["the", "cat", "sat"]]
    expected = {
        None: Elmo(model).embed(sentences)[0],
        table: Elmo(model.replace(token_table=table)).embed(sentences)[0],
        other: Elmo(model.replace(token_table=other)).embed(sentences)[0],
    }
    plain = random_model().build_bilm()  # of a module without a table
    with_table = model.replace(token_table=table).build_bilm()
    for module in (plain, with_table):
        for chosen, found in expected.items():
            replaced = model.replace(weights=module, token_table=chosen)
            np.testing.assert_allclose(Elmo(replaced).embed(sentences)[0], found, atol=1e-5)
    made = PretrainedBiLM.from_modules(plain, family="allennlp", token_table=table)
    np.testing.assert_allclose(Elmo(made).embed(sentences)[0], expected[table], atol=1e-5)
