"""A model of the backward direction alone computes the backward half of a model of both directions."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from elmokit.embedding.elmo import Elmo
from elmokit.embedding.fingerprint import fingerprint
from elmokit.engine.config import PRESETS
from elmokit.errors import ConfigError
from elmokit.formats import tf_checkpoint
from elmokit.formats.bilm_tf_hdf5 import read_hdf5, write_hdf5
from elmokit.formats.folder import load_folder, save_folder
from elmokit.formats.model import PretrainedBiLM
from elmokit.lm.language_model import LanguageModel
from elmokit.network.bilm import BiLM
from elmokit.text.windows import WindowStream
from tests.conftest import random_model
from tests.helpers.tf_bundle_writer import write_bundle
from tests.helpers.tf_names import checkpoint_tensors
from tests.helpers.weights import same_weights

SENTENCES = [["the", "cat", "sat", "."], ["dog", "ran"], ["zebra"]]
BACKWARD = dataclasses.replace(PRESETS["tiny"], bidirectional=False, backward_only=True)


@pytest.fixture
def models() -> tuple[PretrainedBiLM, PretrainedBiLM]:
    """A model of both directions, and its backward direction alone."""
    both = random_model()
    bilm = BiLM(BACKWARD)
    own = {name: value for name, value in both.bilm.state_dict().items() if not name.startswith("directions.0.")}
    bilm.load_state_dict({name.replace("directions.1.", "directions.0."): value for name, value in own.items()})
    return both, both.replace(weights=bilm.eval())


@pytest.mark.parametrize("start", ["zero", "warm"])
def test_vectors_are_the_backward_half(models: tuple[PretrainedBiLM, PretrainedBiLM], start: str) -> None:
    both, alone = (Elmo(model, start=start).embed(SENTENCES) for model in models)  # type: ignore[arg-type]
    for whole, half in zip(both, alone, strict=True):
        np.testing.assert_allclose(half, whole[..., half.shape[-1] :], atol=1e-6)


def test_long_texts_are_read_from_their_end(models: tuple[PretrainedBiLM, PretrainedBiLM]) -> None:
    text = ["the", "cat", "sat", "on", "the", "mat", "."] * 9
    whole, half = (np.concatenate(list(Elmo(model).embed_document(text, chunk_tokens=10)), axis=1) for model in models)
    np.testing.assert_allclose(half, whole[..., half.shape[-1] :], atol=1e-6)


def test_scores_are_those_of_the_backward_direction(models: tuple[PretrainedBiLM, PretrainedBiLM]) -> None:
    both, alone = (LanguageModel(model, start="zero") for model in models)
    for whole, half in zip(both.surprisal(SENTENCES), alone.surprisal(SENTENCES), strict=True):
        np.testing.assert_allclose(half.nats, whole.nats[1:], atol=1e-5)
        assert [line.split("\t")[3] for line in half.to_tsv(1).splitlines()] == [
            line.split("\t")[3] for line in whole.to_tsv(1).splitlines()
        ]
        assert {line.split("\t")[2] for line in half.to_tsv(1).splitlines()} == {""}
    numbers = alone.perplexity(SENTENCES)
    assert list(numbers.to_dict()["mean_nats"]) == ["backward"]
    assert numbers.per_direction == pytest.approx(both.perplexity(SENTENCES).per_direction[1:])
    as_bilm_tf = [model.bilm_tf_perplexity(SENTENCES, 2) for model in (both, alone)]
    assert as_bilm_tf[1].per_direction == pytest.approx(as_bilm_tf[0].per_direction[1:])
    assert "backward" in as_bilm_tf[1].to_text()
    assert "forward" not in as_bilm_tf[1].to_text()
    found = [model.substitutes(SENTENCES[0], 1, n=3, direction="backward") for model in (both, alone)]
    assert [one.word for one in found[0]] == [one.word for one in found[1]]
    with pytest.raises(ConfigError, match="reads backward only: ask for 'backward'"):
        alone.substitutes(SENTENCES[0], 1, direction="forward")


def test_training_windows_are_those_of_the_backward_direction(
    models: tuple[PretrainedBiLM, PretrainedBiLM], tmp_path: Path
) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(" ".join(sentence) + "\n" for sentence in SENTENCES), encoding="utf-8")
    vocabulary = models[0].vocabulary
    assert vocabulary is not None
    both, alone = (WindowStream([path], vocabulary, model.encode, 2, 3, model.config.read_backward) for model in models)
    for _ in range(5):
        whole, half = next(both), next(alone)
        assert np.array_equal(half.targets, whole.targets[1:])
        assert np.array_equal(half.tokens[half.inputs], whole.tokens[whole.inputs][1:])


def test_files_keep_the_direction(models: tuple[PretrainedBiLM, PretrainedBiLM], tmp_path: Path) -> None:
    _, alone = models
    save_folder(alone, tmp_path / "model")
    write_hdf5(alone, tmp_path / "options.json", tmp_path / "weights.hdf5")
    # bilm-tf writes a backward model like a forward one; "reverse" in the options says which it is.
    forward = alone.replace(weights=BiLM(dataclasses.replace(BACKWARD, backward_only=False)))
    forward.bilm.load_state_dict(alone.bilm.state_dict())
    write_bundle(tmp_path / "model.ckpt-1", checkpoint_tensors(forward))
    (tmp_path / "vocab.txt").write_text(alone.vocabulary.to_text())  # type: ignore[union-attr]
    for opened in (
        load_folder(tmp_path / "model"),
        read_hdf5(tmp_path / "options.json", tmp_path / "weights.hdf5"),
        tf_checkpoint.FORMAT.load(tmp_path),
    ):
        assert opened.config == BACKWARD
        assert same_weights(opened, alone)


def test_each_direction_has_its_own_fingerprint(models: tuple[PretrainedBiLM, PretrainedBiLM]) -> None:
    both, alone = models
    forward = alone.replace(weights=BiLM(dataclasses.replace(BACKWARD, backward_only=False)))
    forward.bilm.load_state_dict(alone.bilm.state_dict())
    assert len({fingerprint(model, "zero") for model in (both, alone, forward)}) == 3
