"""``ElmoVectorizer`` inside scikit-learn itself."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import edited_model

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from elmokit import SentenceEmbedder, SentencePooling
from elmokit.embedding.elmo import Elmo
from elmokit.errors import ConfigError, TextError
from elmokit.formats.save import save_model
from elmokit.integrations.sklearn import ElmoVectorizer
from tests.conftest import random_model

TEXTS = ["the cat sat.", "the dog ran!", "", "the mat"]
TOKENS = [["the", "cat", "sat", "."], ["the", "dog", "ran", "!"], [], ["the", "mat"]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "model"
    save_model(random_model(), path)
    return str(path)


@parametrize_with_checks([ElmoVectorizer()])
def test_scikit_learn_accepts_it(estimator: Any, check: Any) -> None:
    check(estimator)


def test_vectors_of_texts_and_tokens_are_those_of_the_sentence_embedder(model: str) -> None:
    elmo = Elmo.from_pretrained(model)
    expected = SentenceEmbedder(elmo, SentencePooling("mean", layers=(0, 2))).embed(TOKENS)
    vectorizer = ElmoVectorizer(model, pooling="mean", layers=[0, 2])
    for texts in (TEXTS, TOKENS, np.array(TEXTS), iter(TOKENS)):
        np.testing.assert_allclose(vectorizer.fit_transform(texts), expected, atol=1e-5)


def test_the_default_is_that_of_the_sentence_embedder(tmp_path: Path) -> None:
    embedder = SentenceEmbedder(Elmo(random_model())).fit([*TOKENS, ["the", "dog", "ran"], ["a", "mat"]])
    save_model(embedder.elmo.model, tmp_path / "whitened")
    vectors = ElmoVectorizer(str(tmp_path / "whitened")).transform(TOKENS)
    np.testing.assert_allclose(vectors, embedder.embed(TOKENS), atol=1e-5)


def test_another_tokenizer_is_used(model: str) -> None:
    vectorizer = ElmoVectorizer(model, tokenizer=str.split)
    np.testing.assert_allclose(vectorizer.transform(["the cat."]), vectorizer.transform([["the", "cat."]]), atol=1e-6)


def test_output_can_be_a_data_frame_with_named_columns(model: str) -> None:
    pandas = pytest.importorskip("pandas")
    frame = ElmoVectorizer(model).set_output(transform="pandas").fit_transform(pandas.Series(TEXTS))
    assert list(frame.columns[:2]) == ["elmovectorizer0", "elmovectorizer1"]
    assert frame.shape == (4, 64)


def test_clones_and_pickles_compute_the_same(model: str) -> None:
    vectorizer = ElmoVectorizer(model, layers="all").fit(TEXTS)
    content = pickle.dumps(vectorizer)
    assert len(content) < 2000  # the model is not in it
    for copy in (clone(vectorizer), pickle.loads(content)):
        assert np.array_equal(copy.transform(TEXTS), vectorizer.transform(TEXTS))


@pytest.mark.parametrize("how", ["the directory is replaced", "a file in it is written to"])
def test_a_model_whose_files_change_is_opened_again(tmp_path: Path, how: str) -> None:
    half = edited_model(random_model(), lambda bilm: [tensor.mul_(0.5) for tensor in bilm.parameters()])
    path, models = tmp_path / "model", [random_model(), half]
    vectorizer = ElmoVectorizer(str(path), pooling="mean")
    for model in models:
        if model is models[0] or how == "the directory is replaced":
            save_model(model, path, overwrite=True)
        else:
            save_model(model, tmp_path / "other")
            weights = (tmp_path / "other" / "model.safetensors").read_bytes()
            (path / "model.safetensors").write_bytes(weights)
        expected = SentenceEmbedder.by_name(Elmo(model), "mean").embed(TOKENS)
        np.testing.assert_allclose(vectorizer.transform(TOKENS), expected, atol=1e-5)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_one_column_of_a_data_frame_is_the_texts(library: str, model: str) -> None:
    make_frame, vectorizer = pytest.importorskip(library).DataFrame, ElmoVectorizer(model)
    expected = vectorizer.transform(TEXTS)
    for texts in (TEXTS, TOKENS):
        assert np.array_equal(vectorizer.fit_transform(make_frame({"text": texts})), expected)
        assert np.array_equal(vectorizer.fit_transform(make_frame({"text": texts})["text"]), expected)
    assert np.array_equal(vectorizer.fit_transform(np.array(TEXTS)[:, None]), expected)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_table_of_several_columns_is_an_error(library: str, model: str) -> None:
    frame = pytest.importorskip(library).DataFrame({"title": TEXTS, "text": TEXTS})
    for method in ("fit", "transform", "fit_transform"):
        with pytest.raises(TextError, match=r"'title', 'text'"):
            getattr(ElmoVectorizer(model), method)(frame)
    with pytest.raises(TextError, match=r"\(4, 2\)"):
        ElmoVectorizer(model).fit_transform(np.array([TEXTS, TEXTS]).T)


@pytest.mark.parametrize(
    ("settings", "texts", "error", "mentioned"),
    [
        ({}, "the cat", TextError, "'the cat'"),
        ({}, np.zeros((2, 3)), TextError, "ndarray"),
        ({}, ["the cat", None], TextError, r"got None of type NoneType\. This is a missing value .* fillna\(''\)"),
        ({}, ["the cat", float("nan")], TextError, r"got nan of type float\. This is a missing value"),
        ({"pooling": "whitened"}, TEXTS, ConfigError, "whitening"),
        ({"pooling": "max"}, TEXTS, ConfigError, "pooling"),
    ],
)
def test_mistakes_are_errors(model: str, settings: Any, texts: Any, error: type[Exception], mentioned: str) -> None:
    with pytest.raises(error, match=mentioned):
        ElmoVectorizer(model, **settings).fit_transform(texts)
    if isinstance(texts, str):
        with pytest.raises(error, match=mentioned):
            ElmoVectorizer(model).fit(texts)


def test_a_paragraph_has_the_vector_of_all_its_sentences(model: str) -> None:
    vectorizer = ElmoVectorizer(model, pooling="mean", layers="all")
    embedder = SentenceEmbedder.from_pretrained(model, SentencePooling("mean", "all"))
    split = [["the", "cat", "sat", "."], ["the", "dog", "ran", "."]]
    assert np.array_equal(vectorizer.transform(["the cat sat. the dog ran."]), embedder.embed_texts([split]))
