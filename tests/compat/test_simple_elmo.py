"""simple_elmo's calls, with its published shapes and without its bugs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from elmokit.compat.simple_elmo import ElmoModel
from elmokit.embedding.computer import Computer
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.start_state import boundary_state
from elmokit.engine.architecture import PRESETS, BiLMConfig
from elmokit.formats.bilm_tf_hdf5 import write_hdf5
from elmokit.formats.folder import save_folder
from elmokit.formats.open import open_model
from elmokit.network.bilm import BiLMState
from tests.conftest import WORDS, random_model

TEXTS = [["the", "cat", "sat", "."], ["zebras"], [], ["the", "dog", "ran"]]


def published(folder: Path, name: str = "model.hdf5", seed: int = 0) -> Path:
    """A folder as in the NLPL repository: options.json and model.hdf5, no softmax; of plain weights.

    Weights made larger enlarge what rounding does in batches of other shapes, above all while a start
    state is computed.
    """
    folder.mkdir(exist_ok=True)
    write_hdf5(random_model(seed=seed, scale=1.0), folder / "options.json", folder / name, overwrite=True)
    return folder


@pytest.fixture
def elmo(tmp_path: Path) -> ElmoModel:
    elmo = ElmoModel()
    elmo.load(published(tmp_path / "published"))
    return elmo


def full_model(tmp_path: Path, config: BiLMConfig = PRESETS["tiny"], max_batch_size: int = 32) -> ElmoModel:
    """A loaded model with a softmax, and a stored start state: computed again, it would differ in the fifth digit."""
    model = random_model(config, scale=1.0)
    model = model.replace(start_state=boundary_state(Computer(model)))
    save_folder(model, tmp_path / "full")
    elmo = ElmoModel()
    elmo.load(tmp_path / "full", full=True, max_batch_size=max_batch_size)
    return elmo


def test_vectors_are_one_dense_array_padded_with_zeros(elmo: ElmoModel) -> None:
    for layers, shape in (("average", (4, 4, 64)), ("top", (4, 4, 64)), ("all", (4, 3, 4, 64))):
        vectors = elmo.get_elmo_vectors(TEXTS, layers=layers)
        assert vectors.shape == shape
        assert vectors.dtype == np.float32
        for place, text in enumerate(TEXTS):
            assert vectors[place, ..., : len(text), :].all()
            assert not vectors[place, ..., len(text) :, :].any()
        averages = elmo.get_elmo_vector_average(TEXTS, layers=layers)
        assert averages.shape == (*shape[:-2], shape[-1])


def test_vectors_are_those_of_the_embedder_layer_by_layer(tmp_path: Path, elmo: ElmoModel) -> None:
    expected = Elmo.from_pretrained(tmp_path / "published").embed(TEXTS)
    stacked = elmo.get_elmo_vectors(TEXTS, layers="all")
    for layers in ("all", "average", "top"):
        vectors = elmo.get_elmo_vectors(TEXTS, layers=layers)
        for place, array in enumerate(expected):
            wanted = {"all": array, "average": array.mean(axis=0), "top": array[-1]}[layers]
            np.testing.assert_allclose(vectors[place, ..., : array.shape[1], :], wanted, atol=1e-5)
    np.testing.assert_allclose(stacked.mean(axis=1), elmo.get_elmo_vectors(TEXTS), atol=1e-5)


def test_a_sentence_average_is_the_plain_mean_of_its_real_tokens(elmo: ElmoModel) -> None:
    for layers in ("average", "top", "all"):
        vectors = elmo.get_elmo_vectors(TEXTS, layers=layers)
        averages = elmo.get_elmo_vector_average(TEXTS, layers=layers)
        for place, text in enumerate(TEXTS):
            expected = vectors[place, ..., : len(text), :].mean(axis=-2) if text else np.zeros_like(averages[place])
            np.testing.assert_allclose(averages[place], expected, atol=1e-5)


def test_warmup_is_the_warm_start_and_without_it_state_is_zero(tmp_path: Path, elmo: ElmoModel) -> None:
    folder = tmp_path / "published"
    for warmup, start in ((True, "warm"), (False, "zero")):
        expected = Elmo.from_pretrained(folder, start=start).embed(TEXTS[:1], layers="top")[0]
        np.testing.assert_allclose(elmo.get_elmo_vectors(TEXTS[:1], warmup, "top")[0], expected, atol=1e-5)
    difference = elmo.get_elmo_vectors(TEXTS[:1], True, "top") - elmo.get_elmo_vectors(TEXTS[:1], False, "top")
    assert np.abs(difference).max() > 1e-3


def test_of_several_weight_files_model_hdf5_opens_else_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "two"
    for name, seed in (("b.hdf5", 1), ("a.hdf5", 2)):
        published(folder, name, seed)
    (folder / "._a.hdf5").write_bytes(b"Mac OS X")  # as macOS puts beside files on disks that are not its own
    expected = {seed: Elmo(random_model(seed=seed, scale=1.0)).embed(TEXTS[:1], layers="average")[0] for seed in (0, 2)}
    elmo = ElmoModel()
    elmo.load(folder)
    np.testing.assert_allclose(elmo.get_elmo_vectors(TEXTS[:1])[0], expected[2], atol=1e-5)
    published(folder)
    elmo.load(str(folder), max_batch_size=1, limit=1000)
    np.testing.assert_allclose(elmo.get_elmo_vectors(TEXTS[:1])[0], expected[0], atol=1e-5)


@torch.no_grad()
def test_substitutes_are_what_each_direction_predicts_without_the_token(tmp_path: Path) -> None:
    elmo = full_model(tmp_path)
    model = open_model(tmp_path / "full")
    bilm, softmax = model.build_modules()
    assert model.start_state is not None
    start = BiLMState.from_numpy(model.start_state)
    sentence = ["the", "cat", "sat"]
    (found,) = elmo.get_elmo_substitutes(["the cat sat"], topn=len(WORDS), nodelimiters=False)
    assert [entry["word"] for entry in found] == sentence
    tokens = ["<S>", *sentence, "</S>"]
    vectors = bilm.token_vectors(torch.from_numpy(model.encode(tokens)))[None]
    for place, entry in enumerate(found, start=1):
        sides = (entry["forward"], vectors[:, :place]), (entry["backward"], vectors[:, place + 1 :])
        for direction, (predictions, context) in enumerate(sides):
            real = torch.ones(context.shape[:2], dtype=torch.bool)
            outputs, _ = bilm.run_direction(direction, context, start.of_direction(direction), real, direction == 1)
            nearest = outputs[-1][0, -1 if direction == 0 else 0]
            scores = F.linear(nearest, softmax.weight, softmax.bias)
            best = scores.argsort(descending=True).tolist()
            assert predictions["candidates"] == best
            assert predictions["candidate_words"] == [WORDS[index] for index in best]
            np.testing.assert_allclose(predictions["logp"], scores[best], atol=1e-5)


def test_boundaries_are_substitutes_only_on_request(tmp_path: Path) -> None:
    elmo = full_model(tmp_path)
    every, words = (
        elmo.get_elmo_substitutes(["the cat sat"], topn=len(WORDS), nodelimiters=nodelimiters)[0]
        for nodelimiters in (False, True)
    )
    for entry, kept in zip(every, words, strict=True):
        expected = [word for word in entry["forward"]["candidate_words"] if word not in ("<S>", "</S>")]
        assert len(expected) == len(WORDS) - 2
        assert kept["forward"]["candidate_words"] == expected
    few = elmo.get_elmo_substitutes(["the cat sat"], topn=4)[0]
    assert [entry["forward"]["candidate_words"] for entry in few] == [
        entry["forward"]["candidate_words"][:4] for entry in words
    ]
