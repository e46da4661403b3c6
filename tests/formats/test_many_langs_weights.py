"""ELMoForManyLangs folders: equal to the formulas, converted whole, and damaged or hostile ones refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit.embedding.elmo import Elmo
from elmokit.engine.architecture import PRESETS
from elmokit.formats.many_langs_weights import read_settings, stock_settings
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from elmokit.pretrained.model import PretrainedBiLM
from tests.helpers.many_langs_files import CHARS, SENTENCES, WORDS, ToyModel, dic_of, toy_model

# What the released package (0.0.4.post2, PyTorch 2.13) made of [Überläufer, ist, zzz] and the files of toy_model(0):
# the context-free layer, once, then the two LSTM layers with forward and backward side by side.
RELEASED_LAYER_0 = [
    [-1.01384, -4.99626, -4.46943, -4.07291],
    [1.79178, -2.48333, 1.52717, 0.62091],
    [-1.25692, -4.57432, -4.34172, -1.16985],
]
RELEASED_LAYERS_1_AND_2 = [
    [
        [0.5, -0.19643, -0.5, 0.09968, -0.0775, -0.02386, -0.16811, 0.04914],
        [0.2058, -0.03922, -0.5, -0.10535, 0.12346, 0.04494, -0.5, 0.03636],
        [0.5, -0.17738, -0.5, 0.0881, -0.01824, -0.04282, -0.04528, 0.06107],
    ],
    [
        [1.0, 0.00991, -0.39807, 0.59968, -0.42828, -0.19565, -0.14163, -0.45086],
        [0.7058, 0.19385, -0.56149, 0.39465, -0.24784, -0.22575, -0.49961, -0.46364],
        [1.0, 0.07238, -0.49374, 0.5881, -0.35959, -0.25203, -0.04345, -0.43893],
    ],
]


def vectors(model: PretrainedBiLM) -> list[Any]:
    return Elmo(model, start="zero").embed(SENTENCES)


def assert_equals_the_formulas(toy: ToyModel, model: PretrainedBiLM) -> None:
    for sentence, found in zip(SENTENCES, vectors(model), strict=True):
        np.testing.assert_allclose(found, toy.layers(sentence), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation": "tanh"},
        {"n_highway": 0},
        {"word_dim": 0},
        {"char_dim": 0},
        {"encoder": {"n_layers": 3, "cell_clip": 0, "proj_clip": 0}},
    ],
    ids=str,
)
def test_every_layer_equals_the_formulas(changes: dict[str, Any], tmp_path: Path) -> None:
    toy = toy_model(**changes)
    model = open_model(toy.write(tmp_path / "toy"))
    assert model.family == "ELMoForManyLangs"
    assert_equals_the_formulas(toy, model)


def test_vectors_equal_those_of_the_released_package(tmp_path: Path) -> None:
    model = open_model(toy_model(0).write(tmp_path / "toy"))
    (found,) = Elmo(model, start="zero").embed([["Überläufer", "ist", "zzz"]])
    np.testing.assert_allclose(found[0], np.tile(RELEASED_LAYER_0, 2), rtol=0, atol=1e-5)
    np.testing.assert_allclose(found[1:], RELEASED_LAYERS_1_AND_2, rtol=0, atol=1e-5)


def test_ids_are_a_word_in_its_cut_form_and_its_characters_from_one_up(tmp_path: Path) -> None:
    model = open_model(toy_model().write(tmp_path / "toy"))
    begin, end, padding, unknown = (CHARS.index(mark) + 1 for mark in ("<eow>", "<bow>", "<pad>", "<oov>"))
    row = [begin, CHARS.index("d") + 1, CHARS.index("a") + 1, unknown, end, *[padding] * 4]
    assert model.encode(["daz"]).tolist() == [[WORDS.index("<oov>") + 1, *row]]
    boundary = [WORDS.index("<eos>") + 1, begin, CHARS.index("<eos>") + 1, end, *[padding] * 6]
    assert model.encode(["</S>", "<eos>"]).tolist() == [boundary, boundary]
    long, cut = model.encode(["Überläufer", "Überläu"])
    assert (long == cut).all()
    assert long[0] == WORDS.index("Überläu") + 1


def test_tokens_of_spaces_collapse_onto_one_and_rows_still_count(tmp_path: Path) -> None:
    toy = toy_model()
    words = ["<oov>", "<bos>", "<eos>", "<pad>", "\u3000", "\u00a0", "das", "\u2003das", "\u3000\u3000", "ist"]
    toy.word_dic = dic_of(words).replace("\n", "\r\n")
    model = open_model(toy.write(tmp_path / "toy"))
    assert model.encode(["\u3000", "das", "\u00a0"])[:, 0].tolist() == [8 + 1, 7 + 1, 0 + 1]
    assert_equals_the_formulas(toy, model)
    save_model(model, tmp_path / "ours")
    assert_equals_the_formulas(toy, open_model(tmp_path / "ours"))


def test_files_next_to_the_model_are_reported(tmp_path: Path) -> None:
    toy = toy_model().write(tmp_path / "toy")
    (toy / "classifier.pkl").write_bytes(b"not even read")
    (toy / "meta.json").write_text('{"corpus": "CoNLL17"}', encoding="utf-8")
    (toy / "vectors.hdf5").write_bytes(b"")
    card = open_model(toy).card
    assert card["meta"] == {"corpus": "CoNLL17"}
    assert "classifier.pkl" in card["left out"]
    (toy / "meta.json").write_text("{", encoding="utf-8")
    assert "meta" not in open_model(toy).card


# The path in config.json, where the file is, and whether it is found.
CONFIG_PATHS = [
    *((path, "sizes.json", True) for path in ("/home/author/sizes.json", "C:\\author\\sizes.json", "x/sizes.json")),
    ("configs/mine.json", "configs/mine.json", True),
    *(
        (path, "../outside/mine.json", False)
        for path in ("{outside}", "../outside/mine.json", "a/../../outside/mine.json")
    ),
]


@pytest.mark.parametrize(("config_path", "file", "is_found"), CONFIG_PATHS)
def test_a_configuration_is_found_by_its_path_below_the_directory_or_by_its_name_and_never_outside(
    config_path: str, file: str, is_found: bool, tmp_path: Path
) -> None:
    toy = toy_model()
    toy.config_path = config_path.format(outside=tmp_path / "outside" / "mine.json")
    folder = toy.write(tmp_path / "toy")
    for inner in ("a", "configs", "../outside"):
        (folder / inner).mkdir()
    (folder / "sizes.json").rename(folder / file)
    if not is_found:
        assert read_settings(folder).is_stock
        file = "mine.json"
        (tmp_path / "outside" / file).rename(folder / file)
    assert read_settings(folder).where == str(folder / file)
    assert_equals_the_formulas(toy, open_model(folder))


def test_without_its_configuration_a_model_is_of_the_stock_one(tmp_path: Path) -> None:
    toy = toy_model(char_dim=0, max_characters_per_token=50, encoder={"cell_clip": 3, "proj_clip": 3})
    toy.config_path = "/users4/conll18st/elmo/configs/cnn_0_5_4_7_sample.json"
    model = open_model(toy.write(tmp_path / "toy"))
    assert "stock configuration" in model.card["sizes"]
    assert_equals_the_formulas(toy, model)


@pytest.mark.parametrize("name", ["cnn_50_100_512_4096_sample.json", "elmo.json"])
def test_the_stock_configuration_has_the_published_sizes(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"config_path": f"/a/{name}"}), encoding="utf-8")
    settings = read_settings(tmp_path)
    assert settings.is_stock
    assert (settings.encoder["dim"], settings.encoder["projection_dim"], settings.max_chars) == (4096, 512, 50)
    assert (settings.token_embedder["char_dim"], settings.token_embedder["word_dim"]) == (50, 100)
    assert settings.token_embedder["filters"] == [list(one) for one in PRESETS["original"].char_cnn.filters]
    tokens = stock_settings("cnn_0_100_512_4096_sample.json")["token_embedder"]
    assert (tokens["char_dim"], tokens["word_dim"]) == (0, 100)


def test_the_token_embedder_lstm_opens_without_characters_and_does_not_cut_words(tmp_path: Path) -> None:
    toy = toy_model(name="lstm", char_dim=0, max_characters_per_token=4)
    del toy.settings["token_embedder"]["filters"]
    elmo = Elmo(open_model(toy.write(tmp_path / "toy")), start="zero")
    toy.settings["token_embedder"]["max_characters_per_token"] = 100  # the formulas cut at this
    for sentence in SENTENCES:
        np.testing.assert_allclose(elmo.embed([sentence])[0], toy.layers(sentence), atol=2e-6)
    assert elmo.model.lexicon is not None
    assert elmo.model.encode(["Überläu"])[0, 0] == WORDS.index("Überläu") + 1
