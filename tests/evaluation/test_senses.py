from __future__ import annotations

from pathlib import Path

import pytest

from elmokit.embedding.elmo import Elmo
from elmokit.errors import TextError
from elmokit.evaluation.sense_files import find_sense_set, read_inventory, read_keys, read_sense_xml
from elmokit.evaluation.senses import WITH_PRIOR, answer_senses, probe_senses, score_senses, train_senses, write_answers
from elmokit.formats.model import PretrainedBiLM
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
    with pytest.raises(TextError, match="has no key for any instance"):
        probe_senses(elmo, train, [test])
    train.gold.write_text("s0.t0 cat%1:05::\n")
    with pytest.raises(TextError, match=r"instance s0\.t1 has no key in"):
        train_senses(elmo, train)
    empty = write_set(tmp_path, "empty", TRAIN[2:3])
    with pytest.raises(TextError, match="no instance to learn senses from"):
        train_senses(elmo, empty)
    for tests in ([], [test, test], [test, write_set(tmp_path, "all", TEST)]):
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
