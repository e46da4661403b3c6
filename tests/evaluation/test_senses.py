from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open

from elmokit.embedding.elmo import Elmo
from elmokit.errors import OutputError, TextError
from elmokit.evaluation import probe_corpus as corpus
from elmokit.evaluation.sense_files import Instance, SenseSet, find_sense_set, read_inventory, read_keys, read_sense_xml
from elmokit.evaluation.senses import (
    WITH_PRIOR,
    FrequencyProbe,
    SenseMeans,
    answer_senses,
    probe_senses,
    score_senses,
    train_senses,
    write_answers,
)
from elmokit.pretrained.model import PretrainedBiLM
from tests.helpers.killing import Killed, kill_at
from tests.helpers.sense_files import INVENTORY, TEST, TRAIN, write_set


@pytest.fixture
def elmo(model: PretrainedBiLM) -> Elmo:
    return Elmo(model)


def test_an_answer_is_the_nearest_sense_of_the_lemma_or_else_the_first(elmo: Elmo, tmp_path: Path) -> None:
    means = train_senses(elmo, write_set(tmp_path, "train", TRAIN))
    text = list(read_sense_xml(write_set(tmp_path, "test", TEST).data))
    answers, backed_off = answer_senses(elmo, text, means, INVENTORY)
    for layer in ("1", "2", "average"):
        # the dog sentence stands in training, word for word
        assert answers[layer] == {
            "s0.t0": "cat%1:18::",
            "s0.t1": "mat%1:07::",
            "s1.t0": "cat%1:05::",
            "s1.t1": "cat%2:29::",
        }
    assert backed_off == {"s0.t1", "s1.t1"}
    assert answers["first"]["s1.t0"] == "cat%1:18::"
    assert answers["most frequent"]["s0.t0"] == "cat%1:05::"
    without, _ = answer_senses(elmo, text, means)
    assert set(without["1"]) == set(without["most frequent"]) == {"s0.t0", "s1.t0"}
    assert without["first"] == {}


def test_scores_are_by_set_overall_and_by_part_of_speech(elmo: Elmo, tmp_path: Path) -> None:
    train = write_set(tmp_path, "train", TRAIN)
    tests = [write_set(tmp_path, "one", TEST), write_set(tmp_path, "two", TEST[1:])]
    result = probe_senses(elmo, train, tests, INVENTORY)
    assert [row.name for row in result.rows] == ["first", "most frequent", "0", "1", "2", "average", WITH_PRIOR]
    top = result.rows[4]
    assert top.scores["one"] == (0.75, 0.75, 0.75)
    assert top.scores["two"] == (1, 1, 1)
    assert top.scores["all"].f1 == pytest.approx(5 / 6)
    assert {pos: score.f1 for pos, score in top.by_pos.items()} == pytest.approx({"NOUN": 3 / 4, "VERB": 1})
    assert (result.n_instances, result.n_backed_off) == ({"one": 4, "two": 2}, {"one": 2, "two": 1})
    without = probe_senses(elmo, train, tests[:1])
    assert [row.name for row in without.rows] == ["most frequent", "0", "1", "2", "average", WITH_PRIOR]
    assert without.rows[3].scores == {"one": pytest.approx((1, 0.5, 2 / 3))}
    write_answers(result, tmp_path / "answers")
    assert (tmp_path / "answers" / "two.layer-1.key.txt").read_text() == "s0.t0 cat%1:05::\ns0.t1 cat%2:29::\n"
    assert len(list((tmp_path / "answers").iterdir())) == 14


def test_files_that_do_not_match_are_refused(elmo: Elmo, tmp_path: Path) -> None:
    train, test = write_set(tmp_path, "train", TRAIN), write_set(tmp_path, "test", TEST)
    test.gold.write_text("d9.t9 cat%1:05::\n")
    with pytest.raises(TextError, match="has no keys for the instances"):
        probe_senses(elmo, train, [test])
    train.gold.write_text("s0.t0 cat%1:05::\n")
    with pytest.raises(TextError, match=r"instance s0\.t1 has no key in"):
        train_senses(elmo, train)
    empty = write_set(tmp_path, "empty", TRAIN[2:3])
    with pytest.raises(TextError, match="no instances to learn senses from"):
        train_senses(elmo, empty)
    with pytest.raises(TextError, match=r"found: none\.$"):
        probe_senses(elmo, train, [])
    for tests in ([test, test], [test, write_set(tmp_path, "all", TEST)]):
        with pytest.raises(TextError, match="different names, none of them 'all'"):
            probe_senses(elmo, train, tests)


@pytest.mark.slow
def test_first_senses_of_the_published_inventory_score_as_published(shared: Path) -> None:
    inventory = read_inventory(shared / "data" / "wsd" / "sense-inventory.tsv.xz")
    for name, expected in (("senseval2", 0.631), ("senseval3", 0.646), ("semeval2007", 0.543)):
        found = find_sense_set(shared / "data" / "wsd" / name)
        answers = {
            one.id: inventory.get((one.lemma, one.pos), ())[:1]
            for sentence in read_sense_xml(found.data)
            for one in sentence.instances
        }
        assert score_senses(read_keys(found.gold), answers).recall == pytest.approx(expected, abs=0.001)


GOLD = {
    "d0.t0": ["long%3:00:02::", "long%5:00:00:tall:00"],
    "d0.t1": ["play%1:10:01::"],
    "d0.t2": ["play%2:33:00::"],
    "d0.t3": ["bank%1:17:01::"],
    "d0.t4": ["group%1:03:00::"],
}


def test_scores_are_those_that_the_official_program_prints() -> None:
    """P, R and F1 as ``Scorer.java`` of the unified framework printed them for these two files."""
    answers = {
        "d0.t0": ["long%5:00:00:tall:00"],
        "d0.t1": ["play%1:10:01::", "play%1:04:05::"],
        "d0.t2": ["play%2:36:12::"],
        "d0.t3": ["bank%1:17:01::"],
        "d9.t9": ["bank%1:17:01::"],
    }
    assert score_senses(GOLD, answers) == pytest.approx((0.625, 0.5, 0.5555555555555556), abs=1e-15)


@pytest.mark.parametrize(
    ("gold", "answers", "score"),
    [
        (GOLD, {name: keys[-1:] for name, keys in GOLD.items()}, (1, 1, 1)),  # one of several gold senses is enough
        (GOLD, {"d0.t1": ["play%1:10:01::", "play%1:10:01::", "x"]}, (0.5, 0.1, 1 / 6)),  # given twice counts once
        (GOLD, {"d0.t1": ["play%1:10:01::"], "d0.t2": []}, (1, 0.2, 1 / 3)),  # a missing answer lowers recall only
        (GOLD, {}, (0, 0, 0)),
        ({}, {"d0.t1": ["x"]}, (0, 0, 0)),
    ],
)
def test_answers_are_scored_by_the_fraction_that_is_right(
    gold: dict[str, list[str]], answers: dict[str, list[str]], score: tuple[float, float, float]
) -> None:
    assert score_senses(gold, answers) == pytest.approx(score)


def test_a_sense_is_the_mean_of_its_vectors_and_a_phrase_that_of_its_words(elmo: Elmo, tmp_path: Path) -> None:
    means = train_senses(elmo, write_set(tmp_path, "train", TRAIN))
    vectors = elmo.embed([text.split() for text, _ in TRAIN])
    mean = {sense: total / means.counts[sense] for sense, total in means.sums.items()}
    np.testing.assert_allclose(mean["cat%1:05::"], (vectors[0][:, 1] + vectors[3][:, 1]) / 2, atol=1e-5)
    np.testing.assert_allclose(mean["run_on%2:30::"], vectors[3][:, 2:4].mean(axis=1), atol=1e-5)
    for sense in ("cat%1:18::", "cat%1:99::"):  # an instance of two senses counts for both
        np.testing.assert_allclose(mean[sense], vectors[1][:, 1], atol=1e-5)
    assert means.tagged[("cat", "NOUN")] == {"cat%1:05::": 2, "cat%1:18::": 1, "cat%1:99::": 1}
    assert means.n_sentences == 4


def test_the_probe_with_frequencies_adds_a_prior_to_the_cosine_of_half_whitened_vectors() -> None:
    rng = np.random.default_rng(0)
    means = SenseMeans()
    for sense, n, center in (("x", 12, [4, 0, 0]), ("y", 4, [0, 1, 0]), ("z", 9, [0, 0, 0.5])):
        for vector in rng.normal(center, 0.1, size=(n, 3)).astype(np.float32):
            means.add(Instance("a", "a", "NOUN", 0, 1), [sense], np.stack([np.zeros(3, np.float32), vector]))
    counts = np.array([means.counts[sense] for sense in "xyz"])
    vectors = np.stack([means.sums[sense][1] for sense in "xyz"]) / counts[:, None]
    center = (counts[:, None] * vectors).sum(axis=0) / counts.sum()
    variances, directions = np.linalg.eigh(np.cov((vectors - center).T, fweights=counts, bias=True))
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


def test_interrupted_training_resumes_with_the_same_means(
    elmo: Elmo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "CHUNK_TOKENS", 8)
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
    with pytest.raises(OutputError, match=r"contains sense means with data .* start over with --overwrite"):
        train_senses(elmo, other, tmp_path / "means")
    assert train_senses(elmo, other, tmp_path / "means", overwrite=True).n_sentences == 2
    assert read_means(elmo, other, tmp_path / "means").n_sentences == 2
    before = other.data.read_bytes()
    with pytest.raises(OutputError, match="is not a file of sense means"):
        train_senses(elmo, other, other.data)
    assert other.data.read_bytes() == before
