from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit.engine.architecture import PRESETS, BiLMConfig
from elmokit.errors import TensorMismatchError
from elmokit.formats import bilm_tf, tf_checkpoint
from elmokit.formats.bilm_tf_hdf5 import read_hdf5, write_hdf5
from elmokit.formats.open import open_model
from elmokit.lm.perplexity import perplexity
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.tokenize import split_tokens
from tests.conftest import WORDS, random_model
from tests.helpers.tf_bundle_writer import write_bundle
from tests.helpers.tf_names import checkpoint_tensors
from tests.helpers.weights import same_weights

TINY = PRESETS["tiny"]
WORD_INPUT = replace(TINY, char_cnn=None, n_words=len(WORDS))


def write_checkpoint(
    model: PretrainedBiLM, folder: Path, name: str = "model.ckpt-207", tensors: dict[str, Any] | None = None
) -> Path:
    """A folder as bilm-tf's trainer leaves it, with a vocabulary; ``tensors`` replace those of the model."""
    write_bundle(folder / name, checkpoint_tensors(model) if tensors is None else tensors)
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n')
    training = {"n_epochs": 3, "n_tokens_vocab": len(WORDS), "batch_size": 16}
    options = bilm_tf.options_from_config(model.config) | training
    (folder / "options.json").write_text(json.dumps(options))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("base", [TINY, WORD_INPUT], ids=["characters", "words"])
def test_a_checkpoint_gives_back_model_and_softmax(
    tmp_path: Path, base: BiLMConfig, n_layers: int, bidirectional: bool
) -> None:
    model = random_model(replace(base, n_layers=n_layers, bidirectional=bidirectional))
    opened = open_model(write_checkpoint(model, tmp_path))
    assert opened.family == "tf-checkpoint"
    assert opened.card == {"training_steps": 207}
    assert same_weights(opened, model)
    assert opened.vocabulary.words == WORDS
    for name in ("weight", "bias"):
        np.testing.assert_array_equal(opened.softmax.arrays[name], model.softmax.arrays[name])


def test_a_tied_softmax_is_the_table_of_words(tmp_path: Path) -> None:
    model = random_model(WORD_INPUT)
    tensors = checkpoint_tensors(model)
    del tensors["lm/softmax/W"]
    opened = open_model(write_checkpoint(model, tmp_path, tensors=tensors))
    np.testing.assert_array_equal(opened.softmax.weight, model.arrays["token_layer.embedding.weight"][1:])


def test_names_of_tensorflow_1_0_are_read(tmp_path: Path) -> None:
    model = random_model()
    old = {
        name.replace("kernel", "weights").replace("bias", "biases"): tensor
        for name, tensor in checkpoint_tensors(model).items()
    }
    assert same_weights(open_model(write_checkpoint(model, tmp_path, tensors=old)), model)


def test_adagrad_sums_come_by_our_names_and_in_our_layout(tmp_path: Path) -> None:
    model = random_model(replace(TINY, n_layers=1))
    weights = checkpoint_tensors(model)
    sums = {f"{name}/Adagrad": 2 * tensor for name, tensor in weights.items() if name.startswith("lm/")}
    folder = write_checkpoint(model, tmp_path, tensors=weights | sums)
    adagrad = tf_checkpoint.read_adagrad(folder / "model.ckpt-207", open_model(folder))
    ours = {**model.arrays, **{f"softmax.{name}": array for name, array in model.softmax.arrays.items()}}
    assert set(adagrad) == set(ours)
    for name, array in ours.items():
        expected = 2 * array
        if name == "token_layer.char_embedding.weight":
            expected[0] = tf_checkpoint.ADAGRAD_START
        np.testing.assert_array_equal(adagrad[name], expected, name)
    with pytest.raises(TensorMismatchError, match="another point"):
        tf_checkpoint.read_adagrad(folder / "model.ckpt-207", random_model(seed=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "step"),
    [
        ('model_checkpoint_path: "model.ckpt-20"\n', 20),
        ('model_checkpoint_path: "/home/somebody/run/model.ckpt-9"\n', 9),
        ('model_checkpoint_path: "C:\\\\run\\\\model.ckpt-9"\n', 9),
        ('model_checkpoint_path: "model.ckpt-5000"\n', 100),
        ("no such thing", 100),
        (None, 100),
    ],
)
def test_the_newest_checkpoint_is_opened(tmp_path: Path, text: str | None, step: int) -> None:
    for number in (9, 20, 100):
        write_checkpoint(random_model(seed=number), tmp_path, f"model.ckpt-{number}")
    (tmp_path / "checkpoint").unlink()
    if text is not None:
        (tmp_path / "checkpoint").write_text(text)
    assert same_weights(open_model(tmp_path), random_model(seed=step))


@pytest.mark.slow
def test_deeppavlov_keeps_options_and_vocabulary_above(tmp_path: Path) -> None:
    for epoch in (2, 10):
        write_checkpoint(random_model(seed=epoch), tmp_path / "saves" / "epochs" / str(epoch), "model")
    inner = tmp_path / "saves" / "epochs"
    (inner / "10" / "options.json").rename(tmp_path / "options.json")
    (inner / "10" / "vocab.txt").rename(tmp_path / "vocab-2016-09-10.txt")
    opened = open_model(tmp_path)
    assert same_weights(opened, random_model(seed=10))
    assert opened.softmax is not None


def test_without_a_vocabulary_the_softmax_is_left_out_and_the_card_says_so(tmp_path: Path) -> None:
    folder = write_checkpoint(random_model(), tmp_path)
    (folder / "vocab.txt").rename(folder / "words")
    opened = open_model(folder)
    assert opened.softmax is None
    assert "no vocabulary" in opened.card["softmax"]


@pytest.mark.parametrize("kind", ["folder", "index", "archive"])
def test_a_vocabulary_that_is_given_names_the_softmax(tmp_path: Path, kind: str) -> None:
    folder = write_checkpoint(random_model(), tmp_path / "run")
    words, few = tmp_path / "words", tmp_path / "few"
    (folder / "vocab.txt").rename(words)
    few.write_text("<S>\n</S>\n<UNK>\ncat\n")
    path = {"folder": folder, "index": folder / "model.ckpt-207.index", "archive": tmp_path / "run.zip"}[kind]
    if kind == "archive":
        with zipfile.ZipFile(path, "w") as archive:
            for file in folder.iterdir():
                archive.write(file, file.name)
    opened = open_model(path, vocabulary=words)
    assert opened.softmax is not None
    assert opened.vocabulary.words == WORDS
    assert "softmax" not in opened.card
    with pytest.raises(TensorMismatchError, match=r"few.*softmax/b .*\(4,\)"):
        open_model(path, vocabulary=few)


def test_without_a_softmax_the_words_must_still_be_those_of_the_table(tmp_path: Path) -> None:
    model = random_model(WORD_INPUT)
    tensors = {name: tensor for name, tensor in checkpoint_tensors(model).items() if "softmax" not in name}
    folder = write_checkpoint(model, tmp_path, tensors=tensors)
    assert open_model(folder).encode(["cat"]).tolist() == [WORDS.index("cat") + 1]
    (folder / "vocab.txt").write_text("<S>\n</S>\n<UNK>\ncat\n")
    with pytest.raises(TensorMismatchError, match="lists 4 words"):
        open_model(folder)


def test_exported_weights_in_the_folder_come_first(tmp_path: Path) -> None:
    folder = write_checkpoint(random_model(), tmp_path)
    write_hdf5(random_model(seed=1), folder / "options.json", folder / "weights.hdf5", overwrite=True)
    assert open_model(folder).family == "bilm-tf"
    assert open_model(folder / "checkpoint").family == "tf-checkpoint"


def test_the_checkpoint_of_bilm_tf_holds_what_its_own_dump_holds(bilm_tf_run: Path) -> None:
    run = bilm_tf_run
    found = tf_checkpoint.FORMAT.load(run)
    adagrad = tf_checkpoint.read_adagrad(run / "model.ckpt-207", found)
    dumped = read_hdf5(run / "options.json", run / "weights.hdf5")
    assert same_weights(found, dumped)
    assert found.card == {"training_steps": 207}
    assert found.softmax.weight.shape == (603, 12)
    shapes = {name: array.shape for name, array in dumped.arrays.items()}
    shapes |= {f"softmax.{name}": array.shape for name, array in found.softmax.arrays.items()}
    assert {name: array.shape for name, array in adagrad.items()} == shapes
    assert all(bool((array >= tf_checkpoint.ADAGRAD_START).all()) for array in adagrad.values())


def test_the_checkpoint_of_bilm_tf_has_the_perplexity_that_bilm_tf_measured(bilm_tf_run: Path) -> None:
    run = bilm_tf_run
    model = tf_checkpoint.FORMAT.load(run)
    sentences = [split_tokens(line) for line in (run / "train.txt").read_text(encoding="utf-8").splitlines()]
    found = perplexity(model, [sentences], start="zero", documents=True)
    assert found.mean == pytest.approx(100.72575, abs=2e-4)  # run_test with one row, which loses no tail
