"""Sentence vectors: weights, whitening, storage with the model."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from elmokit import (
    Elmo,
    SentenceEmbedder,
    SentencePooling,
    embed_file,
    open_model,
    save_model,
    tokenize,
)
from elmokit.embedding.sentence_vectors import fit_whitening, fold_tokens, word_probability
from elmokit.evaluation.similarity import ScoredPair, evaluate_similarity
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.pretrained.pooling_names import POOLING_NAMES, WEIGHTINGS, WeightingName
from elmokit.text.vocabulary import Vocabulary

SENTENCES = [["the", "cat", "sat"], ["the", "dog"], [], ["zebra", "on", "the", "mat", "."]]


@pytest.fixture
def elmo(model: PretrainedBiLM) -> Elmo:
    return Elmo(model)


def random_sentences(n: int, seed: int = 0) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    words = ["the", ".", "cat", "sat", "on", "mat", "dog", "ran", "zebra", "Quartz"]
    return [list(rng.choice(words, size=rng.integers(1, 9))) for _ in range(n)]


def covariance(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    centered = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    return centered.T @ centered / len(vectors)


def test_the_mean_is_the_mean_of_the_token_vectors(elmo: Elmo) -> None:
    embedder = SentenceEmbedder(elmo, SentencePooling("mean", layers="top"))
    expected = [np.mean(v, axis=0) if len(v) else np.zeros(embedder.dim) for v in elmo.embed(SENTENCES, layers="top")]
    np.testing.assert_allclose(embedder.embed(SENTENCES), expected, atol=1e-6)


def test_sif_weights_are_those_of_arora_et_al(elmo: Elmo) -> None:
    counts = {"the": 90, "cat": 9, "sat": 1}
    embedder = SentenceEmbedder(elmo, SentencePooling(smoothing=0.01), word_counts=counts)
    (vectors,) = elmo.embed([["the", "cat", "sat"]], layers=0)
    weights = np.array([0.01 / (0.01 + p) for p in (0.9, 0.09, 0.01)])
    expected = (weights[:, None] * vectors).sum(axis=0) / weights.sum()
    np.testing.assert_allclose(embedder.embed([["the", "cat", "sat"]])[0], expected, rtol=1e-5, atol=1e-7)


def test_without_counts_a_word_has_the_probability_of_its_rank(model: PretrainedBiLM) -> None:
    probability = word_probability(model)
    # The vocabulary: the three special words, then "the", ".", "cat", ...
    assert probability("the") == pytest.approx(2 * probability("."))
    assert probability("the") == pytest.approx(3 * probability("cat"))
    assert sum(map(probability, ["the", ".", "cat", "sat", "on", "mat", "dog", "ran"])) == pytest.approx(1)


def test_a_capitalized_word_is_weighted_like_its_lower_case_form(model: PretrainedBiLM) -> None:
    probability = word_probability(model)
    assert probability("The") == probability("the")
    assert probability("Zebra") == probability("ran") == min(map(probability, model.vocabulary.words[3:]))  # type: ignore[union-attr]


def test_an_iterator_gives_the_same_vectors_one_by_one(elmo: Elmo) -> None:
    embedder = SentenceEmbedder(elmo)
    vectors = embedder.embed(iter(SENTENCES))
    assert not isinstance(vectors, np.ndarray)
    np.testing.assert_array_equal(list(vectors), embedder.embed(SENTENCES))
    assert embedder.embed([]).shape == (0, elmo.output_dim)


@pytest.mark.slow
def test_whitened_vectors_have_mean_zero_and_unit_covariance(elmo: Elmo) -> None:
    sentences, pooling = random_sentences(3000), SentencePooling(layers=1)  # more than are in memory at a time
    whitening = SentenceEmbedder(elmo, pooling).fit(sentences).linear_map
    vectors = (SentenceEmbedder(elmo, pooling).embed(sentences) - whitening.mean) @ whitening.projection
    np.testing.assert_allclose(vectors.mean(axis=0), 0, atol=1e-2)
    np.testing.assert_allclose(covariance(vectors), np.eye(vectors.shape[1]), atol=1e-2)


@pytest.mark.parametrize("layers", [1, (0, 2), "all", "average"])
def test_each_token_is_whitened_and_counts_by_its_weight_alone(elmo: Elmo, layers: Any) -> None:
    embedder = SentenceEmbedder(elmo, SentencePooling(layers=layers)).fit(random_sentences(300))
    sentence = ["the", "zebra", "sat"]
    (vectors,) = elmo.embed([sentence], layers=layers)
    rows = vectors if vectors.ndim == 2 else np.concatenate(list(vectors), axis=1)
    mapped = (rows - embedder.linear_map.mean) @ embedder.linear_map.projection
    weights = np.array([embedder.weight(token) for token in sentence])
    expected = weights / weights.sum() @ (mapped / np.linalg.norm(mapped, axis=1, keepdims=True))
    np.testing.assert_allclose(embedder.embed([sentence])[0], expected, atol=1e-5)


def test_mapped_words_that_are_kept_change_no_bit_and_follow_the_map_and_the_model() -> None:
    elmo = Elmo.from_pretrained()
    first, others = ["The", "dog", "saw", "a", "cat", "."], [["cat"], ["A", "dog", "and", "a", "dog"], ["saw"] * 40]
    alone = SentenceEmbedder(elmo).embed([first])
    embedder = SentenceEmbedder(elmo)
    embedder.embed(others)
    np.testing.assert_array_equal(embedder.embed([first]), alone)

    embedder.linear_map = elmo.model.sentence_head
    fresh = SentenceEmbedder(elmo, linear_map=elmo.model.sentence_head)
    np.testing.assert_array_equal(embedder.embed([first]), fresh.embed([first]))

    words = elmo.model.vocabulary.words
    head, others = elmo.model.sentence_head, Vocabulary([*words[:3], *reversed(words[3:])])
    # "cat" has the row of another word.
    elmo.computer = elmo.computer.with_model(elmo.model.replace(vocabulary=others, sentence_head=head))
    fresh = SentenceEmbedder(elmo, linear_map=elmo.model.sentence_head)
    np.testing.assert_array_equal(embedder.embed([["cat"]]), fresh.embed([["cat"]]))


def test_a_whitening_does_not_depend_on_the_head_that_an_embedder_had_before() -> None:
    whitenings = []
    for has_head in (True, False):
        model = open_model("en-mini")
        embedder = SentenceEmbedder.by_name(Elmo(model), "trained")
        if not has_head:
            embedder = SentenceEmbedder(Elmo(model), embedder.pooling)
        embedder.fit([["The", "bank", "paid", "me", "."], ["A", "dog", "ran"], ["He", "sat", "by", "the", "river"]])
        assert model.whitening is not None
        whitenings.append(model.whitening)
    np.testing.assert_array_equal(whitenings[0].mean, whitenings[1].mean)


def test_the_default_is_the_whitening_or_sif_or_with_a_warning_the_mean(model: PretrainedBiLM) -> None:
    without_words = model.replace(vocabulary=None, softmax=None)
    with pytest.warns(UserWarning, match="no vocabulary .* plain means"):
        plain = SentenceEmbedder(Elmo(without_words))
    with pytest.warns(UserWarning, match="no vocabulary .* plain means"):
        of_a_layer = SentenceEmbedder.by_name(Elmo(without_words), "auto", layers=1)
    assert (plain.pooling, of_a_layer.pooling) == (SentencePooling("mean"), SentencePooling("mean", 1))
    counted = SentenceEmbedder(Elmo(without_words), word_counts={"the": 3, "cat": 1})
    assert counted.pooling_name == "sif"
    elmo = Elmo(model)
    for embedder in (SentenceEmbedder(elmo), SentenceEmbedder.by_name(elmo, "auto")):
        assert (embedder.pooling_name, embedder.pooling) == ("sif", SentencePooling())
    whitening = SentenceEmbedder(elmo, SentencePooling("mean", 1)).fit(random_sentences(50)).linear_map
    for embedder in (SentenceEmbedder(elmo), SentenceEmbedder.by_name(elmo, "auto")):
        assert (embedder.pooling_name, embedder.linear_map) == ("whitened", whitening)
    assert SentenceEmbedder.by_name(elmo, "auto", layers=1).pooling == SentencePooling(layers=1)


def test_a_whitening_of_a_model_without_word_frequencies_can_be_fitted_and_is_the_default(
    model: PretrainedBiLM,
) -> None:
    elmo = Elmo(model.replace(vocabulary=None, softmax=None))
    with pytest.warns(UserWarning, match="plain means"):
        SentenceEmbedder(elmo).fit(random_sentences(50))
    assert SentenceEmbedder(elmo).pooling_name == "whitened"


def test_one_table_has_the_weightings_and_their_names() -> None:
    assert tuple(WEIGHTINGS) == get_args(WeightingName)
    assert set(POOLING_NAMES) == {"auto", *WEIGHTINGS, "whitened", "trained"}


def test_a_row_of_the_table_is_a_weighting_everywhere(elmo: Elmo, monkeypatch: pytest.MonkeyPatch) -> None:
    def surprise(probability: Any, smoothing: float) -> Any:
        return -np.log(probability) + smoothing

    monkeypatch.setitem(WEIGHTINGS, "surprise", surprise)  # type: ignore[misc]
    pooling = SentencePooling("surprise", smoothing=0.5)  # type: ignore[arg-type]
    counts = {"the": 90, "cat": 10}
    embedder = SentenceEmbedder(elmo, pooling, counts)
    (vectors,) = elmo.embed([["the", "cat", "."]], layers=0)
    weights = np.array([0.5 - np.log(0.9), 0.5 - np.log(0.1), 0])
    expected = (weights / weights.sum()) @ vectors
    np.testing.assert_allclose(embedder.embed([["the", "cat", "."]])[0], expected, rtol=1e-5, atol=1e-7)
    pairs = [ScoredPair(["the", "cat"], ["a", "dog"], 1), ScoredPair(["the", "cat"], ["the", "cat"], 5)]
    scores = evaluate_similarity(elmo, {"pairs": pairs}).scores["pairs"]
    assert {one.weighting for one in scores} == {"mean", "sif", "surprise"}
    # A whitening is that of means with these weights, whichever they are.
    sentences = random_sentences(300)
    means = embedder.embed(sentences)
    whitening = embedder.fit(sentences).linear_map
    assert whitening.pooling == pooling
    whitened = (means - whitening.mean) @ whitening.projection
    np.testing.assert_allclose(covariance(whitened), np.eye(whitened.shape[1]), atol=1e-3)


@pytest.mark.parametrize("pooling", ["mean", "sif", "whitened", "trained"])
def test_a_pickled_embedder_computes_the_same(pooling: Any) -> None:
    embedder = SentenceEmbedder.by_name(Elmo.from_pretrained(), pooling)
    copy = pickle.loads(pickle.dumps(embedder))
    np.testing.assert_array_equal(copy.embed(SENTENCES), embedder.embed(SENTENCES))


def test_n_components_keeps_the_directions_of_largest_variance(elmo: Elmo) -> None:
    sentences = random_sentences(500)
    pooling = SentencePooling(layers=1)
    all_of_them = SentenceEmbedder(elmo, pooling).fit(sentences).linear_map
    two = SentenceEmbedder(elmo, pooling).fit(sentences, n_components=2).linear_map
    np.testing.assert_allclose(two.projection, all_of_them.projection[:, :2], atol=1e-5)


def test_a_whitening_is_stored_with_the_model_and_used_by_default(elmo: Elmo, tmp_path: Path) -> None:
    embedder = SentenceEmbedder(elmo, SentencePooling(layers=(0, 1), smoothing=1e-3)).fit(random_sentences(300))
    save_model(elmo.model, tmp_path / "model")
    again = SentenceEmbedder.from_pretrained(tmp_path / "model")
    assert again.pooling == embedder.pooling
    np.testing.assert_array_equal(again.embed(SENTENCES), embedder.embed(SENTENCES))


def test_the_sign_of_a_direction_does_not_depend_on_the_library() -> None:
    vectors = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    whitening = fit_whitening([vectors], SentencePooling())
    largest = np.abs(whitening.projection).argmax(axis=0)
    assert (whitening.projection[largest, range(4)] > 0).all()


def test_sif_ignores_punctuation_unless_there_is_nothing_else(elmo: Elmo) -> None:
    embedder = SentenceEmbedder(elmo, SentencePooling())
    with_marks, without, marks = embedder.embed([["the", "mat", ".", "..."], ["the", "mat"], [".", "..."]])
    np.testing.assert_allclose(with_marks, without, rtol=1e-5, atol=1e-7)
    assert marks.any()


def test_quotes_are_folded_to_those_of_the_vocabulary() -> None:
    vocabulary = Vocabulary(["</S>", "<S>", "<UNK>", '"', "n't", "\u2019"])
    tokens = ["``", "did", "n\u2019t", "\u2019", "\u201c", "''", "it\u2019s"]
    assert fold_tokens(tokens, vocabulary, fold_case=False) == ['"', "did", "n't", "\u2019", '"', '"', "it\u2019s"]
    assert fold_tokens(tokens, None, fold_case=False) == tokens


def test_capitalized_words_are_read_as_the_more_frequent_of_both_cases() -> None:
    vocabulary = Vocabulary(["</S>", "<S>", "<UNK>", "the", "I", "May", "may", "us", "US", "i", "The", "\u00f6l"])
    tokens = ["The", "I", "May", "US", "Us", "Zebra", "\u00d6l", "\u0130", "", "the"]
    folded = fold_tokens(tokens, vocabulary, fold_case=True)
    assert folded == ["the", "I", "May", "US", "us", "Zebra", "\u00f6l", "\u0130", "", "the"]
    assert fold_tokens(tokens, None, fold_case=True) == tokens
    assert fold_tokens(np.array(tokens), vocabulary, fold_case=True) == folded  # type: ignore[arg-type]
    assert fold_tokens(["US", "-", "5"], vocabulary, fold_case=True) == ["US", "-", "5"]  # a single word is a name
    shouted = ["I", "MAY", "SAY", "\u201cTHE", "\u0130", "US", "\u201d", "."]
    assert fold_tokens(shouted, vocabulary, fold_case=True) == [
        "I",
        "May",
        "say",
        "\u201cthe",
        "i\u0307",
        "us",
        "\u201d",
        ".",
    ]
    assert fold_tokens(shouted, vocabulary, fold_case=False) == shouted


def test_case_is_folded_where_words_have_no_context(elmo: Elmo) -> None:
    capitalized, lower = [["The", "dog"]], [["the", "dog"]]
    for layers, are_equal in ((0, True), ((0,), True), (1, False), ("all", False)):
        embedder = SentenceEmbedder(elmo, SentencePooling(layers=layers))
        assert np.array_equal(embedder.embed(capitalized), embedder.embed(lower)) == are_equal


def test_folded_quotes_reach_the_network_in_every_way_to_embed(tmp_path: Path) -> None:
    embedder = SentenceEmbedder.from_pretrained(pooling=SentencePooling(layers=2))
    curly, plain = (
        [["She", "did", "n\u2019t", "say", "\u201c", "no", "\u201d", "."]],
        [["She", "did", "n't", "say", '"', "no", '"', "."]],
    )
    np.testing.assert_array_equal(embedder.embed(curly), embedder.embed(plain))
    text = tmp_path / "curly.txt"
    text.write_text(" ".join(curly[0]) + "\n", encoding="utf-8")
    embed_file(embedder, text, tmp_path / "curly.npz")
    with np.load(tmp_path / "curly.npz") as arrays:
        np.testing.assert_array_equal(arrays["vectors"].reshape(1, -1), embedder.embed(plain))


@pytest.mark.parametrize("pooling", [SentencePooling(), SentencePooling("mean", layers="all")])
def test_a_raw_text_has_the_weighted_mean_over_the_tokens_of_all_its_sentences(
    elmo: Elmo, pooling: SentencePooling
) -> None:
    embedder = SentenceEmbedder(elmo, pooling)
    text = "The cat sat. The zebra ran on the mat!"
    split = tokenize(text)
    sums = [sum(map(embedder.weight, embedder.fold([token for token in one if token.isalnum()]))) for one in split]
    weights = sums if pooling.weighting == "sif" else list(map(len, split))
    expected = np.average(embedder.embed(split), axis=0, weights=weights)
    vectors = embedder.embed(["the", text, ""], tokenize=True)
    np.testing.assert_allclose(vectors[1], expected, rtol=1e-5, atol=1e-7)
    assert np.array_equal(vectors[0], embedder.embed([["the"]])[0])
    assert not vectors[2].any()
    assert np.array_equal(embedder.embed_texts([[["the"]], split, []]), vectors)
    assert np.array_equal(list(embedder.embed(iter(["the", text, ""]), tokenize=True)), vectors)
    similarity = embedder.similarity(vectors)
    norms = np.linalg.norm(vectors, axis=1)
    np.testing.assert_allclose(similarity[0, 1], vectors[0] @ vectors[1] / (norms[0] * norms[1]), rtol=1e-5)
    np.testing.assert_array_equal(similarity[2], 0)
    np.testing.assert_allclose(embedder.similarity(vectors[:1], vectors), similarity[:1], rtol=1e-5)
