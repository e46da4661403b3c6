"""Alignment: the map between the spaces of two models, how it is learned, stored and applied."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from elmokit import (
    Elmo,
    ElmoModule,
    LanguageModel,
    SentenceEmbedder,
    align,
    describe,
    open_model,
    save_model,
)
from elmokit.embedding.fingerprint import fingerprint
from elmokit.engine.config import PRESETS
from elmokit.engine.layer_alignment import LayerAlignment
from elmokit.engine.state import Floats
from elmokit.errors import ConfigError, ElmoError, FormatError, TensorMismatchError, TextError
from elmokit.evaluation.word_retrieval import retrieval_precision, word_anchors
from elmokit.formats.alignment import read_alignment
from elmokit.formats.model import PretrainedBiLM
from elmokit.training.alignment import read_dictionary
from tests.conftest import random_model
from tests.helpers.shell import Shell

SENTENCES = [["the", "cat", "sat"], ["the", "dog"], ["zebra", "on", "the", "mat", "."]]


def random_sentences(n: int, words: list[str], seed: int = 0) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [list(rng.choice(words, size=rng.integers(3, 9))) for _ in range(n)]


def random_rotations(generator: np.random.Generator, n: int, dim: int) -> Floats:
    return np.linalg.qr(generator.standard_normal((n, dim, dim)))[0].astype(np.float32)


def random_alignment(model: PretrainedBiLM) -> LayerAlignment:
    """A random rotation for each layer, and a shift."""
    n_layers, dim = model.config.n_layers + 1, model.config.output_dim
    generator = np.random.default_rng(0)
    matrices = random_rotations(generator, n_layers, dim)
    return LayerAlignment(matrices, generator.standard_normal((n_layers, dim)).astype(np.float32))


@pytest.fixture
def rotated(model: PretrainedBiLM) -> PretrainedBiLM:
    """A model whose vectors are those of ``model``, rotated and shifted."""
    return model.replace(alignment=random_alignment(model))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with two texts over 120 words and a dictionary that maps each word to itself."""
    words = [f"{first}{second}{third}" for first in "abcdef" for second in "aeiou" for third in "lrst"]
    for name, seed in (("a.txt", 1), ("b.txt", 2)):
        lines = [" ".join(sentence) for sentence in random_sentences(200, words, seed)]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "dictionary.txt").write_text("".join(f"{word}\t{word}\n" for word in words), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("centered", [False, True])
def test_a_rotation_is_recovered(centered: bool) -> None:
    generator = np.random.default_rng(0)
    matrices = random_rotations(generator, 2, 8)
    shift = generator.standard_normal((2, 1, 8)) if centered else np.zeros((2, 1, 8))
    source = generator.standard_normal((2, 40, 8)).astype(np.float32) + 3
    target = source @ matrices.swapaxes(1, 2) + shift
    found = LayerAlignment.fit(source, target, centered)
    np.testing.assert_allclose(found.matrices, matrices, atol=1e-5, rtol=0)
    np.testing.assert_allclose(found.apply(source, [0, 1]), target, atol=1e-5, rtol=1e-5)


def test_a_learned_map_is_a_rotation_even_with_fewer_pairs_than_dimensions() -> None:
    source, target = np.random.default_rng(0).standard_normal((2, 3, 5, 8))
    matrices = LayerAlignment.fit(source, target).matrices
    np.testing.assert_allclose(matrices @ matrices.swapaxes(1, 2), [np.eye(8)] * 3, atol=1e-5, rtol=0)


def test_matrices_of_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3, 4\)"):
        LayerAlignment.of_matrices(np.zeros((2, 3, 4), np.float32))


def test_models_that_differ_by_a_rotation_are_aligned_on_unseen_sentences(
    model: PretrainedBiLM, rotated: PretrainedBiLM, texts: Path
) -> None:
    result = align(model, rotated, texts / "a.txt", texts / "a.txt", texts / "dictionary.txt", centered=True)
    for ours, theirs in zip(Elmo(result.model).embed(SENTENCES), Elmo(rotated).embed(SENTENCES), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert (result.n_learned, result.n_test, result.n_candidates, result.n_missing) == (108, 12, 120, 0)
    assert all(one.cosine == one.csls == 1 for one in result.retrieval)
    assert any(one.cosine_before < 0.5 for one in result.retrieval)


def test_texts_and_words_may_differ_between_the_sides(
    model: PretrainedBiLM, rotated: PretrainedBiLM, texts: Path
) -> None:
    pairs = [(word, word) for word, _ in read_dictionary(texts / "dictionary.txt")] + [("lacking", "aal")]
    result = align(model, rotated, texts / "a.txt", texts / "b.txt", pairs, centered=True)
    assert result.n_missing == 1
    assert result.retrieval[0].cosine == 1  # layer 0 has no context: the anchors are equal
    assert result.retrieval[1].cosine > result.retrieval[1].cosine_before
    text = result.to_text()
    assert "Learned from 108 pairs" in text
    assert "1 pair was left out" in text
    assert len(text.splitlines()) == 5


def test_without_test_words_all_pairs_are_learned_from(model: PretrainedBiLM, texts: Path) -> None:
    SentenceEmbedder(Elmo(model)).fit(random_sentences(200, ["the", "cat", "sat", "on", "mat"]))
    pairs = dict(read_dictionary(texts / "dictionary.txt"))
    for dictionary in (pairs, list(pairs.items())):
        result = align(model, model, texts / "a.txt", texts / "b.txt", dictionary, test_ratio=0)
        assert (result.n_learned, result.n_test, result.retrieval) == (120, 0, ())
        assert "Precision" not in result.to_text()
        # It was fitted to other vectors.
        assert model.whitening is not None
        assert result.model.whitening is None


def test_the_same_seed_gives_the_same_alignment(model: PretrainedBiLM, rotated: PretrainedBiLM, texts: Path) -> None:
    files = texts / "a.txt", texts / "b.txt", texts / "dictionary.txt"
    first, again, other = (align(model, rotated, *files, seed=seed).model.alignment for seed in (0, 0, 1))
    assert first is not None
    assert again is not None
    assert other is not None
    assert np.array_equal(first.matrices, again.matrices)
    assert not np.array_equal(first.matrices, other.matrices)


def test_an_anchor_is_the_mean_over_occurrences(model: PretrainedBiLM) -> None:
    sentences = random_sentences(30, ["the", "cat", "sat", "on"])
    anchors = word_anchors(Elmo(model), iter([*sentences, ["zebra"], ["dog"]]), ["cat", "zebra", "mat", "cat"])
    vectors = Elmo(model).embed(sentences)
    tokens = [token for sentence in sentences for token in sentence]
    found = np.concatenate(vectors, axis=1)[:, np.array(tokens) == "cat"]
    assert anchors.words == ["cat", "zebra"]
    assert list(anchors.counts) == [found.shape[1], 1]
    np.testing.assert_allclose(anchors.vectors[:, 0], found.mean(axis=1), atol=1e-5)
    assert word_anchors(Elmo(model), sentences, ["cat", "zebra"], min_count=2).words == ["cat"]


def test_every_way_of_embedding_is_aligned(model: PretrainedBiLM, rotated: PretrainedBiLM) -> None:
    plain, elmo, alignment = Elmo(model), Elmo(rotated), rotated.alignment
    assert alignment is not None
    expected = [alignment.apply(array, [0, 1, 2]) for array in plain.embed(SENTENCES)]

    def check(found: object, wanted: Floats) -> None:
        np.testing.assert_allclose(torch.as_tensor(found).detach(), wanted, atol=1e-5, rtol=1e-5)

    for layers, pick in (("all", slice(None)), (0, 0), (1, 1), ("top", -1)):
        for found, wanted in zip(elmo.embed(SENTENCES, layers=layers), expected, strict=True):  # type: ignore[call-overload]
            check(found, wanted[pick])
    check(np.concatenate(list(elmo.embed_document(SENTENCES[2], chunk_tokens=2)), axis=1), expected[2])
    module = ElmoModule(rotated)
    with torch.no_grad():
        check(module.mixed_vectors(SENTENCES)[2], expected[2].mean(0))
    check(module.mixed_vectors(SENTENCES)[2], expected[2].mean(0))
    (mix,), mask, _ = module(module.ids(SENTENCES))
    check(mix[1, :2], expected[1].mean(0))
    assert not mix[~mask].any()
    layers, mask = module.padded_layers(SENTENCES)
    check(layers[:, 0, :3], expected[0])
    assert not layers[:, ~mask].any()


def test_gradients_reach_a_trainable_model_and_not_the_alignment(rotated: PretrainedBiLM) -> None:
    elmo = ElmoModule(rotated, trainable=True)
    (mix,), _, _ = elmo(elmo.ids(SENTENCES))
    mix.sum().backward()
    assert all(parameter.grad is not None for parameter in elmo.bilm.parameters())
    assert not any("alignment" in name for name, _ in elmo.named_parameters())


def test_predictions_do_not_depend_on_the_alignment(model: PretrainedBiLM, rotated: PretrainedBiLM) -> None:
    assert LanguageModel(rotated).perplexity(SENTENCES) == LanguageModel(model).perplexity(SENTENCES)


def test_an_alignment_is_stored_with_the_model(model: PretrainedBiLM, rotated: PretrainedBiLM, tmp_path: Path) -> None:
    save_model(rotated, tmp_path / "model", "float16")
    again = open_model(tmp_path / "model")
    assert again.alignment is not None
    assert rotated.alignment is not None
    np.testing.assert_array_equal(again.alignment.matrices, rotated.alignment.matrices)
    np.testing.assert_array_equal(again.alignment.offsets, rotated.alignment.offsets)
    assert describe(again)["alignment"] == "stored with the model"
    assert fingerprint(rotated, "warm") != fingerprint(model, "warm")
    save_model(model, tmp_path / "plain")
    assert open_model(tmp_path / "plain").alignment is None
    assert not (tmp_path / "plain" / "alignment.safetensors").exists()
    tensors = {"matrices": np.zeros((3, 2, 2), np.float32), "offsets": np.zeros((3, 2), np.float32)}
    save_file(tensors, tmp_path / "model/alignment.safetensors")
    with pytest.raises(TensorMismatchError, match=r"alignment\.safetensors"):
        open_model(tmp_path / "model")


def test_published_matrices_give_the_vectors_of_allennlps_class(model: PretrainedBiLM, tmp_path: Path) -> None:
    dim = model.config.output_dim
    matrix = np.random.default_rng(0).normal(size=(dim, dim))
    torch.save(matrix, tmp_path / "alignment_de.pth")
    aligned = model.replace(alignment=read_alignment([tmp_path / "alignment_de.pth"], model.config))
    (plain,), (found,) = (ElmoModule(one).embed(SENTENCES[:1], layers="mix") for one in (model, aligned))
    # AllenNLP multiplies the mix of the layers by the matrix, as a linear layer without bias does.
    np.testing.assert_allclose(found, plain @ matrix.T, atol=1e-4)
    for layer in range(3):
        torch.save(torch.eye(dim) * layer, tmp_path / f"{layer}.pth")
    each = read_alignment([tmp_path / f"{layer}.pth" for layer in range(3)], model.config)
    assert [float(one[0, 0]) for one in each.matrices] == [0, 1, 2]
    for paths, error, name in (
        ([tmp_path / "0.pth"] * 2, ConfigError, "2"),
        ([tmp_path / "s.pth"], FormatError, "s.pth"),
    ):
        torch.save(torch.eye(3), tmp_path / "s.pth")
        with pytest.raises(error, match=name):
            read_alignment(paths, model.config)


def test_csls_avoids_a_word_that_is_near_to_all_others() -> None:
    # Target 2 is between the others and is the nearest to both queries by cosine.
    source = np.array([[1, 0.6], [0.6, 1]], np.float32)
    target = np.array([[1, 0.1], [0.1, 1], [1, 1]], np.float32)
    right = [{0}, {1}]
    assert retrieval_precision(source, target, [0, 1], right) == 0
    cosines = (source / np.linalg.norm(source, axis=1)[:, None]) @ (target / np.linalg.norm(target, axis=1)[:, None]).T
    csls = 2 * cosines - cosines.mean(axis=1)[:, None] - cosines.mean(axis=0)
    expected = np.mean([int(row) in wanted for row, wanted in zip(csls.argmax(axis=1), right, strict=True)])
    assert retrieval_precision(source, target, [0, 1], right, csls=True) == expected == 1


def test_any_of_several_translations_is_right() -> None:
    target = np.eye(3, dtype=np.float32)
    assert retrieval_precision(target[:1], target, [0], [{0, 2}]) == 1
    assert retrieval_precision(target[:1], target, [0], [{1, 2}]) == 0


def test_a_dictionary_has_two_columns(tmp_path: Path) -> None:
    path = tmp_path / "dictionary.txt"
    path.write_text("Hund dog\n\nHund\thound\nHund dog\n", encoding="utf-8")
    assert read_dictionary(path) == [("Hund", "dog"), ("Hund", "hound")]


def test_the_command_saves_an_aligned_model(shell: Shell, texts: Path) -> None:
    save_model(random_model(), "other")
    files = ("a.txt", "b.txt", "dictionary.txt")
    ran = shell("align", "model", "other", *files, "--out", "aligned")
    assert (ran.code, "CSLS" in ran.out) == (0, True)
    assert open_model("aligned").card["alignment"]["target"] == "other"
    assert shell("embed", "text.txt", "vectors.hdf5", "--model", "aligned").code == 0
    ran = shell("align", "model", "other", *files, "--out", "aligned", "--overwrite", "--json", "--test-ratio", "0.5")
    assert json.loads(ran.out)["n_test"] == 60


def test_convert_stores_published_matrices_and_reports_what_hdf5_cannot_hold(shell: Shell) -> None:
    torch.save(torch.eye(64), "matrix.pth")
    assert shell("convert", "model", "aligned", "--alignment", "matrix.pth").code == 0
    alignment = open_model("aligned").alignment
    assert alignment is not None
    np.testing.assert_array_equal(alignment.matrices, [np.eye(64)] * 3)
    assert "alignment" in shell("convert", "aligned", "out.hdf5").err


@pytest.mark.parametrize(
    ("change", "error", "name"),
    [
        ({"dictionary": "Hund dog\nKatze\n"}, TextError, "line 2"),
        ({"dictionary": "\n"}, TextError, "0 pairs"),
        ({"dictionary": "aal Katze\nMaus mouse\n"}, TextError, "2 pairs, 0"),
        ({"dictionary": "aal aal\n", "test_ratio": 0.6}, TextError, "test_ratio"),
        ({"layers": 1}, ConfigError, "2"),
        ({"min_count": 0}, ConfigError, "min_count"),
        ({"test_ratio": 1.0}, ConfigError, "test_ratio"),
        ({"device": "tpu9"}, ConfigError, "tpu9"),
    ],
)
def test_align_refuses(
    change: dict[str, Any], error: type[ElmoError], name: str, model: PretrainedBiLM, texts: Path
) -> None:
    path, settings = texts / "dictionary.txt", dict(change)
    if "dictionary" in settings:
        path.write_text(settings.pop("dictionary"), encoding="utf-8")
    other = random_model(dataclasses.replace(PRESETS["tiny"], n_layers=settings.pop("layers", 2)))
    with pytest.raises(error, match=name):
        align(model, other, texts / "a.txt", texts / "b.txt", path, **settings)
