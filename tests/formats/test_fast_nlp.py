"""fastNLP's models: the directory and its archive open, vectors are those of the formulas, no code is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.embedding.elmo import Elmo
from elmokit.errors import ConfigError, ElmoError, FormatError, TensorMismatchError
from elmokit.formats.open import open_model
from tests.helpers.fast_nlp_files import CHARS, toy_model

SENTENCES = [["das", "Haus"], ["Überläufer", "ist", "北", "", "zzz"], ["ist"]]


@pytest.mark.parametrize("zipped", [True, False])
def test_every_layer_equals_the_formulas(zipped: bool, tmp_path: Path) -> None:
    toy = toy_model()
    model = open_model(toy.write(tmp_path / "model", zipped))
    assert model.family == "fastNLP"
    for sentence, layers in zip(SENTENCES, Elmo(model, start="zero").embed(SENTENCES), strict=True):
        np.testing.assert_allclose(layers, toy.layers(sentence), atol=2e-6)


def test_sentence_marks_and_rows_that_the_lexicon_lacks_are_allowed(tmp_path: Path) -> None:
    toy = toy_model([char for char in CHARS if char not in ("<bos>", "<eos>")])
    toy.char_cnn["char_emb_layer.weight"] = torch.cat([toy.char_cnn["char_emb_layer.weight"], torch.ones(2, 3)])
    elmo = Elmo(open_model(toy.write(tmp_path / "model")), start="zero")
    np.testing.assert_allclose(elmo.embed(SENTENCES)[1], toy.layers(SENTENCES[1]), atol=2e-6)


REFUSED: list[tuple[Callable[[Path], object], type[ElmoError], str]] = [
    (lambda folder: (folder / "elmo_options.json").write_text("{}"), ConfigError, r"elmo_options\.json.*char_cnn"),
    (lambda folder: (folder / "elmo_options.json").write_text('{"char_cnn": {}}'), ConfigError, "embedding"),
    (lambda folder: (folder / "elmo_options.json").write_text('{"char_cnn": 3}'), ConfigError, "elmo_options"),
    (lambda folder: torch.save({"a": torch.zeros(1)}, folder / "elmo_weights.pkl"), FormatError, "char_cnn and lstm"),
    (lambda folder: torch.save({"char_cnn": 1, "lstm": 2}, folder / "elmo_weights.pkl"), FormatError, "elmo_weights"),
]


@pytest.mark.parametrize(("change", "error", "name"), REFUSED, ids=range(len(REFUSED)))
def test_other_files_are_refused(
    change: Callable[[Path], object], error: type[ElmoError], name: str, tmp_path: Path
) -> None:
    folder = toy_model().write(tmp_path / "model")
    change(folder)
    with pytest.raises(error, match=name):
        open_model(folder)


def test_files_of_different_models_are_reported_by_the_names_in_the_file(tmp_path: Path) -> None:
    toy = toy_model()
    del toy.char_cnn["_projection.bias"]
    with pytest.raises(TensorMismatchError, match=r"missing: char_cnn\._projection\.bias"):
        open_model(toy.write(tmp_path / "model"))
    toy = toy_model()
    toy.chars = [*CHARS, "x"]
    with pytest.raises(TensorMismatchError, match=r"char\.dic names 19 rows.*table in elmo_weights\.pkl has 18"):
        open_model(toy.write(tmp_path / "third"))
