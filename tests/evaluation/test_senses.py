from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elmokit.embedding.elmo import Elmo
from elmokit.errors import OutputError, TextError
from elmokit.evaluation import probe_corpus as corpus
from elmokit.evaluation import sense_means
from elmokit.evaluation.sense_files import Instance, SenseSet, read_inventory, read_sense_xml
from elmokit.evaluation.sense_means import SenseMeans, train_senses
from elmokit.evaluation.senses import answer_senses, probe_senses, write_answers
from elmokit.formats.model import PretrainedBiLM
from tests.helpers.sense_files import INVENTORY, TEST, TRAIN, write_set


@pytest.fixture
def elmo(model: PretrainedBiLM) -> Elmo:
    return Elmo(model)


def test_a_sense_is_the_mean_of_its_vectors_and_a_phrase_the_mean_of_its_words(elmo: Elmo, tmp_path: Path) -> None:
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


def test_answers_are_the_nearest_of_the_lemmas_own_senses_and_else_the_first(elmo: Elmo, tmp_path: Path) -> None:
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


def test_candidates_come_in_the_inventorys_order_then_by_frequency() -> None:
    means = SenseMeans(1, 1)
    one, nothing = Instance("a", "a", "NOUN", 0, 1), np.zeros((1, 1), dtype=np.float32)
    for sense in ("rare", "common", "listed", "common"):
        means.add(one, [sense], nothing)
    inventory = {("a", "NOUN"): ("unseen", "listed")}
    assert means.candidates(("a", "NOUN"), inventory) == ["listed", "common", "rare"]
    assert means.candidates(("a", "VERB"), inventory) == []


def test_a_probe_scores_each_set_all_of_them_and_each_part_of_speech(elmo: Elmo, tmp_path: Path) -> None:
    train = write_set(tmp_path, "train", TRAIN)
    tests = [write_set(tmp_path, "one", TEST), write_set(tmp_path, "two", TEST[1:])]
    result = probe_senses(elmo, train, tests, INVENTORY)
    assert [row.name for row in result.rows] == ["first", "most frequent", "0", "1", "2", "average"]
    top = result.rows[4]
    assert top.scores["one"] == (0.75, 0.75, 0.75)
    assert top.scores["two"] == (1, 1, 1)
    assert top.scores["all"].f1 == pytest.approx(5 / 6)
    assert {pos: score.f1 for pos, score in top.by_pos.items()} == pytest.approx({"NOUN": 3 / 4, "VERB": 1})
    assert (result.n_instances, result.n_backed_off) == ({"one": 4, "two": 2}, {"one": 2, "two": 1})
    without = probe_senses(elmo, train, tests[:1])
    assert [row.name for row in without.rows] == ["most frequent", "0", "1", "2", "average"]
    assert without.rows[3].scores == {"one": pytest.approx((1, 0.5, 2 / 3))}
    write_answers(result, tmp_path / "answers")
    assert (tmp_path / "answers" / "two.layer-1.key.txt").read_text() == "s0.t0 cat%1:05::\ns0.t1 cat%2:29::\n"
    assert len(list((tmp_path / "answers").iterdir())) == 12


def test_training_that_was_killed_ends_with_the_same_means(
    elmo: Elmo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "CHUNK_TOKENS", 8)
    monkeypatch.setattr(sense_means, "SAVE_SECONDS", 0.0)
    source = write_set(tmp_path, "train", TRAIN * 3)
    train_senses(elmo, source, tmp_path / "straight")

    class Killed(Exception):
        pass

    def kill(stage: str, done: int, total: int | None) -> None:
        if done >= 5:
            raise Killed

    with pytest.raises(Killed):
        train_senses(elmo, source, tmp_path / "resumed", kill)
    assert 0 < read_means(elmo, source, tmp_path / "resumed").n_sentences < 12
    train_senses(elmo, source, tmp_path / "resumed")
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "straight").read_bytes()
    monkeypatch.setattr(elmo, "embed", None)
    assert train_senses(elmo, source, tmp_path / "resumed").n_sentences == 12  # whole: nothing is computed again


def read_means(elmo: Elmo, source: SenseSet, path: Path) -> SenseMeans:
    import json

    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return SenseMeans.load(path, json.loads(file.metadata()["content"])["about"])


def test_means_of_another_text_and_files_of_another_kind_are_refused(elmo: Elmo, tmp_path: Path) -> None:
    train_senses(elmo, write_set(tmp_path, "train", TRAIN), tmp_path / "means")
    other = write_set(tmp_path, "other", TRAIN[:2])
    with pytest.raises(OutputError, match="contains sense means with data"):
        train_senses(elmo, other, tmp_path / "means")
    before = other.data.read_bytes()
    with pytest.raises(OutputError, match="is not a file of sense means"):
        train_senses(elmo, other, other.data)
    assert other.data.read_bytes() == before


def test_files_that_do_not_fit_each_other_are_refused(elmo: Elmo, tmp_path: Path) -> None:
    train, test = write_set(tmp_path, "train", TRAIN), write_set(tmp_path, "test", TEST)
    test.gold.write_text("d9.t9 cat%1:05::\n")
    with pytest.raises(TextError, match="has no key for any instance"):
        probe_senses(elmo, train, [test])
    train.gold.write_text("s0.t0 cat%1:05::\n")
    with pytest.raises(TextError, match=r"instance s0\.t1 has no key in"):
        train_senses(elmo, train)
    empty = write_set(tmp_path, "empty", TRAIN[2:3])
    with pytest.raises(TextError, match="no instance to learn senses from"):
        train_senses(elmo, empty)
    with pytest.raises(TextError, match="different names"):
        probe_senses(elmo, train, [test, test])


def test_first_senses_of_the_shared_inventory_score_as_its_readme_says(shared: Path) -> None:
    inventory = read_inventory(shared / "data" / "wsd" / "sense-inventory.tsv.xz")
    from elmokit.evaluation.sense_files import find_sense_set, read_keys
    from elmokit.evaluation.senses import score_senses

    for name, expected in (("senseval2", 0.631), ("senseval3", 0.646), ("semeval2007", 0.543)):
        found = find_sense_set(shared / "data" / "wsd" / name)
        answers = {
            one.id: inventory.get((one.lemma, one.pos), ())[:1]
            for sentence in read_sense_xml(found.data)
            for one in sentence.instances
        }
        assert score_senses(read_keys(found.gold), answers).recall == pytest.approx(expected, abs=0.001)
