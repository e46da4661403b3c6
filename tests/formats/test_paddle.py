"""Baidu's ELMo of PaddlePaddle: the directory and its archive open, and vectors are those of the formulas."""

from __future__ import annotations

import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elmokit.embedding.elmo import Elmo
from elmokit.errors import ConfigError, ElmoError, FormatError, ModelNotFoundError, TensorMismatchError
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


def with_variable(change: Callable[[np.ndarray], np.ndarray], name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        toy = toy_model()
        toy.variables[name] = change(toy.variables[name])
        toy.write(folder)

    return write


def with_bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        path = toy_model().write(folder) / "embedding_para"
        path.write_bytes(change(path.read_bytes()))

    return write


# What is written, the error, and the name that it mentions.
REFUSED: list[tuple[Callable[[Path], object], type[ElmoError], str]] = [
    (lambda folder: (toy_model().write(folder) / "lstmp_3.b_0").unlink(), ModelNotFoundError, r"lstmp_3\.b_0"),
    (lambda folder: (toy_model().write(folder) / "fw_layer2_gate_w").unlink(), ModelNotFoundError, "fw_layer2_gate_w"),
    (with_variable(lambda array: array[:-1], "lstmp_1.w_1"), TensorMismatchError, r"lstmp_1\.w_1"),
    (with_variable(lambda array: array[:, :-1], "lstmp_1.w_0"), TensorMismatchError, r"lstmp_1\.w_0"),
    (with_variable(lambda array: array[0], "fw_layer1_gate_w"), ConfigError, "model"),
    (with_variable(lambda array: array[0], "embedding_para"), ConfigError, "model"),
    (lambda folder: toy_model(projection_dim=7).write(folder), ConfigError, "same size"),
    (with_bytes(lambda data: data[:-1]), FormatError, "embedding_para"),
    (with_bytes(lambda data: data[:10]), FormatError, "embedding_para"),
    (with_bytes(lambda data: b"\x01" + data[1:]), FormatError, "embedding_para"),
    (with_bytes(lambda data: data[:16] + struct.pack("<i", 1 << 30) + data[20:]), FormatError, "embedding_para"),
    (with_bytes(lambda data: data[:20] + b"\x08\x06" + data[22:]), FormatError, "embedding_para"),
    (with_bytes(lambda data: data[:20] + b"\xff" * (len(data) - 20)), FormatError, "embedding_para"),
]


@pytest.mark.parametrize(("write", "error", "name"), REFUSED, ids=range(len(REFUSED)))
def test_files_that_do_not_fit_are_refused(
    write: Callable[[Path], object], error: type[ElmoError], name: str, tmp_path: Path
) -> None:
    write(tmp_path / "model")
    with pytest.raises(error, match=name):
        open_model(tmp_path / "model")


def test_a_vocabulary_of_another_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "two").write_text("<S>\n</S>\n")
    with pytest.raises(TensorMismatchError, match="lists 2 words"):
        open_model(toy_model().write(tmp_path / "words"), vocabulary=tmp_path / "two")
