"""Baidu's ELMo of PaddlePaddle: the directory and its archive open, and vectors are those of the formulas."""

from __future__ import annotations

import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from elmokit.embedding.elmo import Elmo
from elmokit.errors import ConfigError, FormatError, ModelNotFoundError, TensorMismatchError
from elmokit.formats.open import open_model
from elmokit.lm.language_model import LanguageModel
from tests.helpers.paddle_files import WORDS, toy_model
from tests.reference.paddle_numpy import read_direction, sentence_layers

SENTENCES = [["das", "Haus", "ist", "北"], ["Überläufer"], ["ist", "das"]]


def ids(sentence: list[str]) -> list[int]:
    return [WORDS.index(word if word in WORDS else "<UNK>") for word in ("<S>", *sentence, "</S>")]


@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_every_layer_equals_the_formulas(n_layers: int, tmp_path: Path) -> None:
    toy = toy_model(n_layers=n_layers)
    model = open_model(toy.write(tmp_path / "490001"))
    assert model.family == "paddle"
    assert model.config.n_layers == n_layers
    for sentence, layers in zip(SENTENCES, Elmo(model, start="zero").embed(SENTENCES), strict=True):
        np.testing.assert_allclose(layers, sentence_layers(ids(sentence), n_layers, toy.variables), atol=1e-5)


def test_the_softmax_is_read_with_the_vocabulary(tmp_path: Path) -> None:
    toy = toy_model()
    model = open_model(toy.write(tmp_path / "model"))
    (found,) = LanguageModel(model, start="zero").surprisal([["das", "Haus"]])
    vectors = [toy.variables["embedding_para"][number].astype(np.float64) for number in ids(["das", "Haus"])]
    last = np.array(read_direction(vectors, "fw", 0, 2, toy.variables)[-1])
    scores = last @ toy.variables["softmax_weight"].T + toy.variables["softmax_bias"]
    log_probabilities = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    expected = [-log_probabilities[place, ids(["das", "Haus"])[place + 1]] for place in range(3)]
    np.testing.assert_allclose(found.nats[0, 1:], expected, rtol=1e-4)


def test_the_archive_opens_with_a_vocabulary_that_is_elsewhere(tmp_path: Path) -> None:
    folder = toy_model().write(tmp_path / "baike_elmo_checkpoint")
    words = (folder / "vocabulary_min5k.txt").rename(tmp_path / "words.txt")
    with tarfile.open(tmp_path / "baike_elmo_checkpoint.tar.gz", "w:gz") as archive:
        archive.add(folder, folder.name)
    model = open_model(tmp_path / "baike_elmo_checkpoint.tar.gz", vocabulary=words)
    assert model.softmax is not None
    expected = Elmo(open_model(folder, vocabulary=words)).embed(SENTENCES)
    for one, other in zip(Elmo(model).embed(SENTENCES), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_without_a_vocabulary_tokens_cannot_be_read(tmp_path: Path) -> None:
    model = open_model(toy_model().write(tmp_path / "model", words=False))
    assert model.softmax is None
    assert "no vocabulary" in model.card["softmax"]
    with pytest.raises(ModelNotFoundError, match="has no vocabulary"):
        model.encode(["das"])


def test_files_that_do_not_fit_are_reported(tmp_path: Path) -> None:
    toy = toy_model()
    (toy.write(tmp_path / "missing") / "lstmp_3.b_0").unlink()
    with pytest.raises(ModelNotFoundError, match=r"lstmp_3\.b_0 is missing"):
        open_model(tmp_path / "missing")
    toy.variables["lstmp_1.w_1"] = toy.variables["lstmp_1.w_1"][:-1]
    with pytest.raises(TensorMismatchError, match=r"wrong shape: lstmp_1\.w_1"):
        open_model(toy.write(tmp_path / "shape"))
    with pytest.raises(ConfigError, match="same size"):
        open_model(toy_model(projection_dim=7).write(tmp_path / "equal"))
    (tmp_path / "two").write_text("<S>\n</S>\n")
    with pytest.raises(TensorMismatchError, match="lists 2 words"):
        open_model(toy_model().write(tmp_path / "words"), vocabulary=tmp_path / "two")


def test_forged_sizes_are_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    toy = toy_model()
    toy.variables["embedding_para"] = np.zeros((1, 900_000), np.float32)
    for name in ("fw_layer1_gate_w", "lstmp_0.w_0"):
        toy.variables[name] = np.zeros((0, 4_000_000), np.float32)  # 8 terabytes for the matrix of both
    with pytest.raises(TensorMismatchError, match="wrong shape: fw_layer1_gate_w"):
        open_model(toy.write(tmp_path / "model"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "cut short or damaged"),
        (lambda data: data[:10], "not a variable of PaddlePaddle"),
        (lambda data: b"\x01" + data[1:], "not a variable of PaddlePaddle"),
        (lambda data: data[:16] + struct.pack("<i", 1 << 30) + data[20:], "not a variable of PaddlePaddle"),
        (lambda data: data[:20] + b"\x08\x06" + data[22:], "only float32"),
        (lambda data: data[:16] + struct.pack("<i", 682) + b"\x08\x05" + b"\x10\x00" * 340, "have 340 dimensions"),
    ],
)
def test_a_damaged_variable_is_reported(damage, message: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = toy_model().write(tmp_path / "model") / "embedding_para"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FormatError, match=message):
        open_model(tmp_path / "model")
