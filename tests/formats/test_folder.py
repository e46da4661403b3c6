"""Our own format: round trips, float16, damaged folders."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit.embedding.computer import Computer
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.start_state import boundary_state
from elmokit.engine.layer_selection import LayerAlignment
from elmokit.engine.softmax import WordSoftmax
from elmokit.errors import ConfigError, ElmoError, FormatError
from elmokit.formats.folder import included_model, load_folder, read_card, save_folder
from elmokit.formats.save import save_model
from elmokit.lm.language_model import LanguageModel
from elmokit.pretrained.model import PretrainedBiLM, describe
from elmokit.pretrained.sentence_pooling import SentenceHead, SentencePooling, Whitening
from tests.conftest import WORDS, aligned_model, random_model


def test_float16_storage_halves_the_file_and_loads_as_float32(model: PretrainedBiLM, tmp_path: Path) -> None:
    save_folder(model, tmp_path / "full")
    save_folder(model, tmp_path / "half", storage="float16")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("full", "half")]
    assert 0.45 < sizes[1] / sizes[0] < 0.6
    for name, array in load_folder(tmp_path / "half").arrays.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, model.arrays[name].astype(np.float16).astype(np.float32))


def test_a_model_has_the_precision_that_its_files_name(model: PretrainedBiLM, tmp_path: Path) -> None:
    model = model.replace(precision="int8")
    save_folder(model, tmp_path / "model", storage="int8")
    again = load_folder(tmp_path / "model")
    assert again.precision == "int8"
    assert Elmo.from_pretrained(tmp_path / "model").model.precision == "int8"
    assert Elmo.from_pretrained(tmp_path / "model", precision="float32").model.precision == "float32"
    assert LanguageModel.from_pretrained(tmp_path / "model").model.precision == "int8"
    save_folder(again, tmp_path / "again")
    assert load_folder(tmp_path / "again").precision == "int8"


def test_a_lost_softmax_is_a_warning_and_one_that_is_not_declared_is_not(model: PretrainedBiLM, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_folder(model, folder)
    (folder / "softmax.safetensors").unlink()
    with pytest.warns(UserWarning, match=r"model has no softmax\.safetensors, although its config\.json describes it"):
        lost = load_folder(folder)
    assert lost.softmax is None
    assert Elmo(lost).embed([["cat"]])[0].shape == (3, 1, model.config.output_dim)
    save_folder(lost, tmp_path / "without")
    assert load_folder(tmp_path / "without").softmax is None  # a warning would be an error here


def test_a_model_card_is_read_without_the_tensors(model: PretrainedBiLM, tmp_path: Path) -> None:
    model.card["corpus"] = "novels"
    save_folder(model, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    assert read_card(tmp_path / "model") == model.card


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_weights_with_nan_are_named(number: float, model: PretrainedBiLM, tmp_path: Path) -> None:
    model.arrays["directions.1.layers.0.bias"][3] = number
    save_folder(model, tmp_path / "model")
    loaded = load_folder(tmp_path / "model")
    with pytest.raises(FormatError, match=r"NaN or infinity in directions\.1\.layers\.0\.bias \(elmokit:"):
        Elmo(loaded)


def with_nan(array: Any) -> Any:
    changed = np.array(array)
    changed.flat[0] = np.nan
    return changed


@pytest.mark.parametrize(
    "part",
    [
        "weight of softmax",
        "warm_state.cell of model",
        "bias of letters",
        "matrices of alignment",
        "mean of whitening",
        "word_weights of sentence_head",
    ],
)
def test_a_model_that_could_not_be_opened_again_is_not_saved(part: str, tmp_path: Path) -> None:
    model = aligned_model()
    if part == "matrices of alignment":
        model = model.replace(alignment=LayerAlignment.of_matrices(with_nan(model.alignment.matrices)))
    elif part == "mean of whitening":
        dim = model.config.output_dim
        whitening = Whitening(SentencePooling(), with_nan(np.ones(dim)), np.eye(dim, dtype=np.float32))
        model = model.replace(whitening=whitening)
    elif part == "word_weights of sentence_head":
        mean, projection = np.zeros(model.config.output_dim), np.eye(model.config.output_dim, dtype=np.float32)
        head = SentenceHead(SentencePooling(), mean, projection, with_nan(np.ones(len(WORDS))))
        model = model.replace(sentence_head=head)
    elif part == "warm_state.cell of model":
        state = boundary_state(Computer(model))
        model = model.replace(start_state=state._replace(cell=with_nan(state.cell)))
    elif part == "bias of letters":
        letters = load_folder(included_model()).letters
        model = model.replace(letters=dataclasses.replace(letters, bias=with_nan(letters.bias)))
    else:
        weights = {name: with_nan(array) for name, array in model.softmax.arrays.items()}
        model = model.replace(softmax=WordSoftmax(model.softmax.config, weights, len(WORDS)))
    with pytest.raises(ElmoError, match=f"{part}.* holds NaN"):
        save_model(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    save_model(model, tmp_path / "model.hdf5")  # which has none of them


@pytest.mark.parametrize(
    ("model", "name"),
    [("en-mini", "'en-mini'"), (3, "type int"), (Elmo(random_model()), r"type Elmo\. Pass its \.model")],
)
def test_another_object_than_a_model_is_refused_with_what_to_pass(model: Any, name: str, tmp_path: Path) -> None:
    for use in (describe, lambda model: save_model(model, tmp_path / "model")):
        with pytest.raises(ConfigError, match=name):
            use(model)
