"""Several models in one directory: each keeps its own options and words."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

import pytest

from elmokit.engine.config import PRESETS
from elmokit.errors import FormatError, ModelNotFoundError, OutputError
from elmokit.formats.bilm_tf_hdf5 import write_hdf5
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from elmokit.text.vocabulary import Vocabulary
from tests.conftest import WORDS, random_model
from tests.helpers.every_format import write_model
from tests.helpers.weights import same_weights

OTHER = dataclasses.replace(PRESETS["tiny"], n_layers=1, cell_clip=None, dropout=0.0)


def same(path: Path, model: PretrainedBiLM) -> bool:
    return same_weights(open_model(path), model)


def word_model(words: list[str]) -> PretrainedBiLM:
    model = random_model(dataclasses.replace(PRESETS["tiny"], char_cnn=None, n_words=len(words)))
    return model.replace(softmax=None, vocabulary=Vocabulary(words, strict=False))


@pytest.mark.parametrize(
    ("weights", "options"),
    [
        ("b.hdf5", "b_options.json"),
        ("b.h5", "b_options.json"),
        ("elmo_2x_weights.hdf5", "elmo_2x_options.json"),
        ("weights.hdf5", "options.json"),
        ("model.hdf5", "model_options.json"),
        ("v1.5.hdf5", "v1.5_options.json"),
    ],
)
def test_options_are_named_after_the_weights(tmp_path: Path, weights: str, options: str) -> None:
    model = random_model()
    assert save_model(model, tmp_path / weights) == [tmp_path / weights, tmp_path / options]
    assert {path.name for path in tmp_path.iterdir()} == {weights, options}
    assert same(tmp_path / weights, model)


@pytest.mark.parametrize("name", ["weights.hdf5", "new.hdf5", "old_weights.h5"])
def test_overwriting_touches_only_files_of_the_same_name(tmp_path: Path, name: str) -> None:
    old = random_model()
    write_hdf5(old, tmp_path / "options.json", tmp_path / "old.hdf5")  # as bilm-tf writes it
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    is_refused = name != "new.hdf5"  # old.hdf5 would read the options of the others as its own
    with pytest.raises(OutputError, match="reads too") if is_refused else contextlib.nullcontext():
        save_model(random_model(OTHER), tmp_path / name, overwrite=True)
    assert {path: path.read_bytes() for path in before} == before
    assert same(tmp_path / "old.hdf5", old)


@pytest.mark.parametrize("pair", [("b.hdf5", "b_weights.hdf5"), ("b.h5", "b.hdf5"), ("x/b_weights.h5", "x/b.h5")])
def test_two_weights_that_would_share_their_options_are_refused(tmp_path: Path, pair: tuple[str, str]) -> None:
    first = random_model()
    save_model(first, tmp_path / pair[0])
    with pytest.raises(OutputError, match=r"needs the file b_options\.json, which .* reads too"):
        save_model(random_model(OTHER), tmp_path / pair[1], overwrite=True)
    assert same(tmp_path / pair[0], first)
    assert not (tmp_path / pair[1]).exists()


@pytest.mark.parametrize(
    ("kind", "name"),
    [("checkpoint", "options.json"), ("module", "options.json"), ("words", "vocab.txt")],
)
def test_weights_in_the_directory_of_another_format_leave_it_its_files(tmp_path: Path, kind: str, name: str) -> None:
    folder = write_model(kind, tmp_path / "model")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    other = random_model(OTHER) if kind != "words" else word_model(["<S>", "</S>", "x"])
    with pytest.raises(OutputError, match=rf"weights\.hdf5 .*{name}.* reads too"):
        save_model(other, folder / "weights.hdf5", overwrite=True)
    assert not (folder / "weights.hdf5").exists()
    save_model(other, folder / "other.hdf5")
    assert {path: path.read_bytes() for path in before} == before
    assert same(folder / "other.hdf5", other)


def test_published_names_still_open(tmp_path: Path) -> None:
    model = random_model()
    for options, weights in (("options.json", "elmo_pt_weights.hdf5"), ("options262.json", "en_weights.hdf5")):
        folder = tmp_path / options
        folder.mkdir()
        write_hdf5(model, folder / options, folder / weights)
        assert same(folder, model)
        save_model(random_model(OTHER), folder / "new.hdf5")  # its options are not those of the others
        assert same(folder / weights, model)


def test_options_of_another_model_are_never_used(tmp_path: Path) -> None:
    save_model(random_model(OTHER), tmp_path / "a.hdf5")
    write_hdf5(random_model(), tmp_path / "elsewhere.json", tmp_path / "b.hdf5")
    with pytest.raises(ModelNotFoundError, match=r"/options\.json"):
        open_model(tmp_path / "b.hdf5")
    for pair in (("a.hdf5", "b.hdf5"), ("a_weights.hdf5", "b.hdf5")):
        folder = tmp_path / pair[0].replace(".", "-")
        for number, name in enumerate(pair):
            save_model(random_model(seed=number), folder / name)
        with pytest.raises(FormatError, match=rf"{folder.name} holds several HDF5 files \({', '.join(pair)}\)"):
            open_model(folder)


def test_a_directory_of_another_program_is_not_overwritten(tmp_path: Path) -> None:
    bert = tmp_path / "bert"
    bert.mkdir()
    (bert / "config.json").write_text(json.dumps({"model_type": "bert"}))
    (bert / "vocab.txt").write_text("[PAD]\n")
    with pytest.raises(OutputError, match="is not an elmokit directory, so it is not overwritten"):
        save_model(random_model(), bert, overwrite=True)
    assert (bert / "vocab.txt").read_text() == "[PAD]\n"
    save_model(random_model(), tmp_path / "ours")
    save_model(random_model(OTHER), tmp_path / "ours", overwrite=True)


@pytest.mark.parametrize("name", ["mini.onnx", "m.npy", "m.HDF5", "m.tar.gz", "m.json", "m.pt"])
def test_an_extension_of_another_format_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError, match=r"Use \.hdf5 or \.h5, or a name without an extension for an elmokit dir"):
        save_model(random_model(), tmp_path / name)
    assert not list(tmp_path.iterdir())
