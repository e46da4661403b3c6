"""A stored head of sentence vectors maps and weights words, and belongs to a model and its vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from elmokit import Elmo, SentenceEmbedder, SentencePooling, open_model, save_model
from elmokit.errors import ConfigError, ElmoError, FormatError, TensorMismatchError
from elmokit.formats.format import Storage
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.pretrained.sentence_pooling import SentenceHead
from elmokit.text.vocabulary import Vocabulary
from tests.conftest import TABLE, random_model


@pytest.fixture
def trained(model: PretrainedBiLM) -> PretrainedBiLM:
    """A model with a head."""
    return model.replace(sentence_head=head_of(model, 2.0))


def head_of(model: PretrainedBiLM, weights: float) -> SentenceHead:
    """A head that gives every word the same weight."""
    assert model.vocabulary is not None
    dim = model.config.output_dim
    mean, projection = np.zeros(dim, np.float32), np.eye(dim, 2, dtype=np.float32)
    return SentenceHead(SentencePooling("sif"), mean, projection, np.full(len(model.vocabulary), weights, np.float32))


def test_a_head_maps_each_word_and_weights_it(model: PretrainedBiLM) -> None:
    elmo, dim = Elmo(model), model.config.output_dim
    weights = np.ones(len(model.vocabulary), np.float32)
    weights[model.vocabulary.ids["cat"]], weights[model.vocabulary.unknown_id] = 3.0, 0.5
    mean, projection = np.full(dim, 0.25, np.float32), np.eye(dim, 2, dtype=np.float32)
    head = SentenceHead(SentencePooling("mean"), mean, projection, weights)
    tokens = ["The", "Cat", "zebra"]
    (vectors,) = elmo.embed([["the", "cat", "zebra"]], layers=0)
    mapped = (vectors - mean) @ projection
    unit = mapped / np.linalg.norm(mapped, axis=1, keepdims=True)
    expected = (unit[0] + 3 * unit[1] + 0.5 * unit[2]) / 4.5
    embedder = SentenceEmbedder(elmo, linear_map=head)
    np.testing.assert_allclose(embedder.embed([tokens])[0], expected, rtol=1e-5, atol=1e-6)
    rows = embedder.word_rows(tokens)
    np.testing.assert_allclose(rows.sum(axis=0) / 4.5, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("storage", ["float32", "int8"])
def test_a_head_may_read_the_row_of_each_word_after_its_vector(storage: Storage, tmp_path: Path) -> None:
    model = random_model(TABLE)
    assert model.vocabulary is not None
    generator, n_inputs = np.random.default_rng(0), TABLE.output_dim + TABLE.projection_dim
    mean, projection = (generator.normal(size=shape).astype(np.float32) for shape in ((n_inputs,), (n_inputs, 5)))
    head = SentenceHead(SentencePooling("mean"), mean, projection, np.ones(len(model.vocabulary), np.float32))
    save_model(model.replace(sentence_head=head), tmp_path / "model", storage)
    stored = open_model(tmp_path / "model")
    tokens, elmo = ["the", "zebra", "cat", "zebra"], Elmo(stored)
    table = stored.arrays["token_layer.word_embedding.weight"]
    rows = table[[stored.vocabulary.ids["the"] + 1, 0, stored.vocabulary.ids["cat"] + 1, 0]]
    (vectors,) = elmo.embed([tokens], layers=0)
    mapped = (np.hstack([vectors, rows]) - mean) @ projection
    expected = (mapped / np.linalg.norm(mapped, axis=1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(SentenceEmbedder.by_name(elmo, "trained").embed([tokens])[0], expected, atol=1e-6)
    with torch.no_grad():  # from now on, the module has the weights
        elmo.computer.use_module().get_parameter("token_layer.word_embedding.weight")[1:] *= 2
    np.testing.assert_array_equal(elmo.computer.table_rows(tokens), 2 * rows)


def test_a_head_is_stored_with_the_model(trained: PretrainedBiLM, tmp_path: Path) -> None:
    save_model(trained, tmp_path / "model")
    again = open_model(tmp_path / "model")
    sentences = [["the", "cat", "sat"], [], ["zebra"]]
    expected = SentenceEmbedder.by_name(Elmo(trained), "trained").embed(sentences)
    np.testing.assert_array_equal(SentenceEmbedder.by_name(Elmo(again), "trained").embed(sentences), expected)
    save_model(again, tmp_path / "copy")
    name = "sentence_head.safetensors"
    assert (tmp_path / "copy" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()


def test_a_model_with_another_vocabulary_has_no_head(trained: PretrainedBiLM, tmp_path: Path) -> None:
    assert trained.replace(card={}).sentence_head is trained.sentence_head
    other = trained.replace(vocabulary=Vocabulary([*trained.vocabulary.words[:-1], "another"]), softmax=None)
    for model in (other, trained.replace(vocabulary=None, softmax=None)):
        assert model.sentence_head is None
        save_model(model, tmp_path / "model", overwrite=True)
        assert open_model(tmp_path / "model").sentence_head is None


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("mean", lambda array: array[:3], TensorMismatchError),
        ("projection", lambda array: array[:3], TensorMismatchError),
        ("projection", lambda array: array * np.nan, FormatError),
        ("word_weights", lambda array: array[:2], TensorMismatchError),
    ],
)
def test_a_stored_head_that_does_not_fit_is_not_read(
    name: str,
    change: Callable[[NDArray[np.float32]], NDArray[np.float32]],
    error: type[ElmoError],
    model: PretrainedBiLM,
    tmp_path: Path,
) -> None:
    good = head_of(model, 1.0)
    head = replace(good, **{name: change(getattr(good, name))})
    save_model(model.replace(sentence_head=good), tmp_path / "model")
    path = tmp_path / "model" / "sentence_head.safetensors"
    save_file({**load_file(path), name: torch.from_numpy(getattr(head, name).copy())}, path)
    with pytest.raises(error, match=r"sentence_head\.safetensors"):
        open_model(tmp_path / "model")


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan])
def test_a_sentence_whose_words_weigh_nothing_is_refused(model: PretrainedBiLM, weight: float) -> None:
    with pytest.raises(ConfigError, match="weights"):
        SentenceEmbedder(Elmo(model), linear_map=head_of(model, weight)).embed([["the", "cat"]])
