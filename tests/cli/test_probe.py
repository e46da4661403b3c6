"""``elmokit evaluate pos``, ``evaluate wsd`` and ``elmokit neighbors`` in the shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elmokit.formats.save import save_model
from tests.conftest import random_model
from tests.helpers.sense_files import INVENTORY, TEST, TRAIN, write_set
from tests.helpers.shell import Shell

pytestmark = pytest.mark.usefixtures("short_probes")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a small model and small data."""
    monkeypatch.chdir(tmp_path)
    save_model(random_model(), Path("model"))
    rows = [("the", "DET", "DT"), ("cat", "NOUN", "NN"), ("ran", "VERB", "VBD"), (".", "PUNCT", ".")]
    lines = [f"{n}\t{word}\t_\t{tag}\t{fine}" + "\t_" * 5 for n, (word, tag, fine) in enumerate(rows, start=1)]
    Path("tags.conllu").write_text("\n".join([*lines, "", *lines]) + "\n")
    Path("tags.txt").write_text("".join(f"{word} {tag} {fine}\n" for word, tag, fine in rows))
    Path("bad.conllu").write_text("1\tthe\n")
    write_set(tmp_path, "train", TRAIN)
    write_set(tmp_path, "one", TEST)
    write_set(tmp_path, "two", TEST[1:])
    content = "".join(f"{lemma}\t{pos}\t{' '.join(keys)}\n" for (lemma, pos), keys in INVENTORY.items())
    Path("inventory.tsv").write_text(content)
    Path("text.txt").write_text("the cat sat on the mat .\nthe dog ran .\n\nthe dog sat .\n")
    return tmp_path


POS = ("evaluate", "pos", "tags.conllu", "tags.conllu", "--model", "model", "--epochs", "1")
WSD = ("evaluate", "wsd", "train.data.xml", "one.data.xml", "two.data.xml", "--model", "model")


@pytest.mark.slow
def test_pos_prints_an_accuracy_for_each_layer(shell: Shell) -> None:
    ran = shell(*POS)
    lines = ran.out.splitlines()
    assert lines[0].split() == ["part", "of", "speech", "accuracy", "(%)", "weights"]
    assert lines[1].split() == ["most", "frequent", "tag", "100.00"]
    assert [line.split()[:2] for line in lines[2:5]] == [["layer", str(layer)] for layer in range(3)]
    assert all("100.00" in line for line in lines[2:7])
    assert lines[6].split()[:2] == ["mix", "100.00"]
    assert len(lines[6].split()) == 5
    assert lines[-1] == "4 tags, 8 training words, 8 test words."


@pytest.mark.slow
def test_pos_reads_columns_and_writes_json(shell: Shell) -> None:
    flags = ("--tags", "3", "--layers", "0,2", "--seeds", "2", "--control", "--json")
    facts = json.loads(shell(*POS[:2], "tags.txt", "tags.txt", *POS[4:], *flags).out)
    assert [row["name"] for row in facts["rows"]] == ["0", "2", "average", "mix"]
    assert [len(row["accuracies"]) for row in facts["rows"]] == [2] * 4
    assert facts["rows"][0]["selectivity"] == 0
    assert len(facts["rows"][3]["weights"]) == 2


def test_wsd_prints_f1_by_layer_set_and_part_of_speech(shell: Shell) -> None:
    lines = shell(*WSD, "--inventory", "inventory.tsv").out.splitlines()
    assert lines[0].split() == ["F1", "(%)", "one", "two", "all", "NOUN", "VERB"]
    assert lines[4].split() == ["layer", "1", "75.0", "100.0", "83.3", "75.0", "100.0"]
    assert lines[-1] == "6 senses in training; for 3 of 6 instances, none of their senses is among them."
    assert "pass an --inventory" in shell(*WSD).out
    first = Path("inventory.tsv").read_text().splitlines(keepends=True)[0]
    Path("short.tsv").write_text(first)
    shown = shell(*WSD, "--inventory", "short.tsv").out
    assert "Some instances have no answer: the inventory lacks their lemma; see precision and recall" in shown


@pytest.mark.slow
def test_wsd_writes_json_answers_and_means(shell: Shell) -> None:
    flags = ("--inventory", "inventory.tsv", "--json", "--answers", "answers", "--senses", "means")
    facts = json.loads(shell(*WSD, *flags).out)
    assert facts["instances"] == {"one": 4, "two": 2}
    assert facts["rows"][0]["scores"]["one"].keys() == {"precision", "recall", "f1"}
    assert facts["rows"][0]["parts_of_speech"].keys() == {"NOUN", "VERB"}
    assert Path("answers/one.layer-0.key.txt").exists()
    assert Path("means").exists()
    assert "already exists" in shell(*WSD, *flags).err


def test_an_index_is_replaced_only_on_request(shell: Shell) -> None:
    command = ("neighbors", "index", "text.txt", "index", "--model", "model")
    assert shell(*command).code == 0
    assert shell(*command).code == 0
    Path("text.txt").write_text("the dog sat .\n")
    ran = shell(*command)
    assert ran.code == 2
    assert "index was started with another text" in ran.err
    assert ran.err.endswith("to start over, pass --overwrite.\n")
    assert "1 sentence, 4 tokens" in shell(*command, "--overwrite").err


def test_neighbors_are_found_in_an_index(shell: Shell) -> None:
    ran = shell("neighbors", "index", "text.txt", "tags.conllu", "index", "--model", "model")
    assert ran.code == 0
    assert ran.err.endswith("index: 5 sentences, 23 tokens, 8 distinct words\n")
    lines = shell("neighbors", "find", "index", "dog", "a dog sat .", "-n", "2").out.splitlines()
    assert lines[0].split() == ["a", "[dog]", "sat", "."]
    assert lines[1].startswith("without context: ")
    assert [line.split()[:2] for line in lines[2:]] == [["layer", "1"]] * 2 + [["layer", "2"]] * 2
    same = ("--among", "same", "--layers", "2", "--json", "--min-count", "4")
    facts = json.loads(shell("neighbors", "find", "index", "dog", "dog or dog", "--occurrence", "2", *same).out)
    assert facts["token"] == 2
    assert [one["words"][one["token"]] for one in facts["layers"]["2"]] == ["dog", "dog"]
    assert facts["layers"].keys() == {"2"}
    assert [one["word"] for one in facts["context_free"]] in (["the", "."], [".", "the"])
    assert "layer 1  none" in shell("neighbors", "find", "index", "zebra", "zebra", "--among", "same").out
    for word, sentence, occurrence, mentions in (
        ("dgo", "a dog", "1", "a | dog. Did you mean 'dog'?"),
        ("dog", "", "1", "'dog' is not a token"),
        ("dog", "a dog", "2", "--occurrence is 2"),
        ("dog", "a dog", "0", "--occurrence is 0"),
    ):
        ran = shell("neighbors", "find", "index", word, sentence, "--occurrence", occurrence)
        assert (ran.code, mentions in ran.err) == (2, True)
