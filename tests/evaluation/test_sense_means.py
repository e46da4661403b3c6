from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open

from elmokit.embedding.elmo import Elmo
from elmokit.errors import OutputError
from elmokit.evaluation import probe_corpus as corpus
from elmokit.evaluation import senses as sense_means
from elmokit.evaluation.sense_files import Instance, SenseSet
from elmokit.evaluation.senses import FrequencyProbe, SenseMeans, train_senses
from elmokit.formats.model import PretrainedBiLM
from tests.helpers.killing import Killed, kill_at
from tests.helpers.sense_files import TRAIN, write_set


@pytest.fixture
def elmo(model: PretrainedBiLM) -> Elmo:
    return Elmo(model)


def test_a_sense_is_the_mean_of_its_vectors_and_a_phrase_that_of_its_words(elmo: Elmo, tmp_path: Path) -> None:
    means = train_senses(elmo, write_set(tmp_path, "train", TRAIN))
    vectors = elmo.embed([text.split() for text, _ in TRAIN])
    rows = means.rows
    mean = means.sums / np.maximum(means.counts, 1)[:, None, None]
    np.testing.assert_allclose(mean[rows["cat%1:05::"]], (vectors[0][:, 1] + vectors[3][:, 1]) / 2, atol=1e-5)
    np.testing.assert_allclose(mean[rows["run_on%2:30::"]], vectors[3][:, 2:4].mean(axis=1), atol=1e-5)
    for sense in ("cat%1:18::", "cat%1:99::"):  # an instance of two senses counts for both
        np.testing.assert_allclose(mean[rows[sense]], vectors[1][:, 1], atol=1e-5)
    assert means.tagged[("cat", "NOUN")] == {"cat%1:05::": 2, "cat%1:18::": 1, "cat%1:99::": 1}
    assert means.n_sentences == 4


def test_the_nearest_mean_is_by_cosine_in_each_layer() -> None:
    means = SenseMeans(2, 2)
    one = Instance("a", "a", "NOUN", 0, 1)
    means.add(one, ["x"], np.array([[10, 0], [0, 1]], dtype=np.float32))
    means.add(one, ["y"], np.array([[0, 1], [1, 0]], dtype=np.float32))
    means.add(one, ["z"], np.array([[0, 0], [0, 0]], dtype=np.float32))
    vector = np.array([[1, 0.9], [1, 0.9]], dtype=np.float32)
    assert means.nearest(vector, ["x", "y"]) == ["x", "y"]
    assert means.nearest(vector, ["z", "y", "x"], average=True) == ["x", "y", "y"]  # the mean of x is (5, 0.5)
    assert means.nearest(vector, ["z"]) == ["z", "z"]


def test_the_probe_with_frequencies_adds_a_prior_to_the_cosine_of_half_whitened_vectors() -> None:
    rng = np.random.default_rng(0)
    means = SenseMeans(2, 3)
    for sense, n, center in (("x", 12, [4, 0, 0]), ("y", 4, [0, 1, 0]), ("z", 9, [0, 0, 0.5])):
        for vector in rng.normal(center, 0.1, size=(n, 3)).astype(np.float32):
            means.add(Instance("a", "a", "NOUN", 0, 1), [sense], np.stack([np.zeros(3, np.float32), vector]))
    counts = means.counts[:3].astype(float)
    vectors = means.sums[:3, 1] / counts[:, None]
    center = (counts[:, None] * vectors).sum(axis=0) / counts.sum()
    variances, directions = np.linalg.eigh(np.cov((vectors - center).T, fweights=means.counts[:3], bias=True))
    kept = variances > 1e-6 * variances.max()  # three means vary in two directions
    assert kept.sum() == 2

    def unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        mapped = (vector - center) @ directions[:, kept] / np.sqrt(np.sqrt(variances[kept]))
        return mapped / np.linalg.norm(mapped)

    tried = rng.normal(size=(50, 3)).astype(np.float32)
    prior = np.log((counts + 0.5) / (counts + 0.5).sum())
    expected = ["xyz"[int(np.argmax([unit(mean) @ unit(one) for mean in vectors] + 0.1 * prior))] for one in tried]
    probe = FrequencyProbe(means, 1)
    assert [probe.best(np.stack([one, one]), ("a", "NOUN"), ["x", "y", "z"]) for one in tried] == expected
    assert set(expected) == {"x", "y", "z"}
    assert probe.best(np.tile(center, (2, 1)), ("a", "NOUN"), ["y", "x"]) == "x"  # the prior alone


def test_candidates_come_in_the_inventorys_order_then_by_frequency() -> None:
    means = SenseMeans(1, 1)
    one, nothing = Instance("a", "a", "NOUN", 0, 1), np.zeros((1, 1), dtype=np.float32)
    for sense in ("rare", "common", "listed", "common"):
        means.add(one, [sense], nothing)
    inventory = {("a", "NOUN"): ("unseen", "listed")}
    assert means.candidates(("a", "NOUN"), inventory) == ["listed", "common", "rare"]
    assert means.candidates(("a", "VERB"), inventory) == []


def test_interrupted_training_resumes_with_the_same_means(
    elmo: Elmo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "CHUNK_TOKENS", 8)
    monkeypatch.setattr(sense_means, "SAVE_SECONDS", 0.0)
    source = write_set(tmp_path, "train", TRAIN * 3)
    train_senses(elmo, source, tmp_path / "straight")

    with pytest.raises(Killed):
        train_senses(elmo, source, tmp_path / "resumed", kill_at("compute sense means", 5))
    assert 0 < read_means(elmo, source, tmp_path / "resumed").n_sentences < 12
    train_senses(elmo, source, tmp_path / "resumed")
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "straight").read_bytes()
    monkeypatch.setattr(elmo, "embed", None)
    assert train_senses(elmo, source, tmp_path / "resumed").n_sentences == 12  # whole: nothing is computed again


def read_means(elmo: Elmo, source: SenseSet, path: Path) -> SenseMeans:
    with safe_open(path, framework="np") as file:
        about = json.loads(file.metadata()["content"])["about"]
    return SenseMeans.load(path, about, elmo.n_layers, elmo.output_dim)


def test_means_of_another_text_and_other_files_are_refused(elmo: Elmo, tmp_path: Path) -> None:
    train_senses(elmo, write_set(tmp_path, "train", TRAIN), tmp_path / "means")
    other = write_set(tmp_path, "other", TRAIN[:2])
    with pytest.raises(OutputError, match=r"contains sense means with data .* start anew with --overwrite"):
        train_senses(elmo, other, tmp_path / "means")
    assert train_senses(elmo, other, tmp_path / "means", overwrite=True).n_sentences == 2
    assert read_means(elmo, other, tmp_path / "means").n_sentences == 2
    before = other.data.read_bytes()
    with pytest.raises(OutputError, match="is not a file of sense means"):
        train_senses(elmo, other, other.data)
    assert other.data.read_bytes() == before
