"""A stored alignment maps every vector of a model into the space of another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from elmokit import Elmo, ElmoModule, LanguageModel, describe, open_model, save_model
from elmokit.embedding.fingerprint import fingerprint
from elmokit.engine.layer_selection import LayerAlignment
from elmokit.engine.state import Floats
from elmokit.errors import ConfigError, FormatError, TensorMismatchError
from elmokit.formats.torch_save import read_alignment
from elmokit.pretrained.model import PretrainedBiLM
from tests.helpers.shell import Shell

SENTENCES = [["the", "cat", "sat"], ["the", "dog"], ["zebra", "on", "the", "mat", "."]]


def random_alignment(model: PretrainedBiLM) -> LayerAlignment:
    """A random rotation for each layer, and a shift."""
    n_layers, dim = model.config.n_layers + 1, model.config.output_dim
    generator = np.random.default_rng(0)
    matrices = np.linalg.qr(generator.standard_normal((n_layers, dim, dim)))[0].astype(np.float32)
    return LayerAlignment(matrices, generator.standard_normal((n_layers, dim)).astype(np.float32))


@pytest.fixture
def rotated(model: PretrainedBiLM) -> PretrainedBiLM:
    """A model whose vectors are those of ``model``, rotated and shifted."""
    return model.replace(alignment=random_alignment(model))


def test_every_way_of_embedding_is_aligned(model: PretrainedBiLM, rotated: PretrainedBiLM) -> None:
    plain, elmo, alignment = Elmo(model), Elmo(rotated), rotated.alignment
    expected = [alignment.apply(array, [0, 1, 2]) for array in plain.embed(SENTENCES)]

    def check(found: object, wanted: Floats) -> None:
        np.testing.assert_allclose(torch.as_tensor(found).detach(), wanted, atol=1e-5, rtol=1e-5)

    for layers, pick in (("all", slice(None)), (0, 0), (1, 1), ("top", -1)):
        for found, wanted in zip(elmo.embed(SENTENCES, layers=layers), expected, strict=True):  # type: ignore[call-overload]
            check(found, wanted[pick])
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


@pytest.mark.parametrize(("matrices", "offsets"), [((2, 2), (2, 2)), ((3, 2, 4), (3, 2)), ((3, 2, 2), (2, 2))], ids=str)
def test_an_alignment_of_other_shapes_is_an_error(matrices: tuple[int, ...], offsets: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="Expected matrices"):
        LayerAlignment(np.zeros(matrices, np.float32), np.zeros(offsets, np.float32))


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


def test_convert_stores_published_matrices_and_reports_what_hdf5_cannot_hold(shell: Shell) -> None:
    torch.save(torch.eye(64), "matrix.pth")
    assert shell("convert", "model", "aligned", "--alignment", "matrix.pth").code == 0
    alignment = open_model("aligned").alignment
    np.testing.assert_array_equal(alignment.matrices, [np.eye(64)] * 3)
    assert "alignment" in shell("convert", "aligned", "out.hdf5").err
