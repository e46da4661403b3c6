"""``elmokit task``: train, evaluate, predict; resume after SIGKILL; errors in one line."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

import pytest

from elmokit.errors import TextError
from elmokit.tasks.task_table import TASKS
from elmokit.text.first_lines import refuse_other_formats
from tests.helpers.shell import Shell
from tests.helpers.task_examples import write_config


@pytest.mark.slow
def test_train_evaluate_and_predict(task_shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config()
    ran = task_shell("train", "config.toml", "--run", "run", "--seeds", "1,2", "--set", "train.epochs=15")
    assert ran.code == 0
    assert ran.out.splitlines()[0] == "f1         100.00 ± 0.00 (2 seeds)"
    assert "seed 2  epoch 15/15  loss" in ran.err
    assert "--seeds 1,2" in json.loads(Path("run/run.json").read_text())["command"]
    assert task_shell("evaluate", "run", "data").out == ran.out
    one = json.loads(task_shell("evaluate", "run", "data", "--seed", "2", "--json").out)
    assert one["n_examples"] == 3
    assert one["scores"]["f1"] == {"mean": 100.0, "deviation": 0.0}
    Path("text.txt").write_text("Mira visits Oslo\n", encoding="utf-8")
    assert task_shell("predict", "run", "text.txt").out == "[PER Mira] visits [LOC Oslo]\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Mira visits New York.\n")))
    record = json.loads(task_shell("predict", "run", "-", "--json", "--text-kind", "lines", "--seed", "1").out)
    assert record["tokens"] == ["Mira", "visits", "New", "York", "."]
    assert set(record) == {"tokens", "tags", "entities"}
    words = "".join(f"{number}\t{word}" + "\t_" * 8 + "\n" for number, word in enumerate(["Mira", "visits", "Oslo"], 1))
    Path("text.conllu").write_text(f"# text = Mira visits Oslo\n{words}\n")
    for flags in ((), ("--text-kind", "lines")):
        assert task_shell("predict", "run", "text.conllu", *flags).out == "[PER Mira] visits [LOC Oslo]\n"
    Path("raw.txt").write_text("Mira visits Oslo, and sleeps there.\n" * 3)
    ran = task_shell("predict", "run", "raw.txt")
    assert (ran.code, ran.out) == (2, "")
    assert "raw.txt looks like raw text: 'Oslo,' is read as one token. Pass --raw" in ran.err
    assert len(task_shell("predict", "run", "raw.txt", "--raw").out.splitlines()) == 3
    ran = task_shell("predict", "run", "text.txt", "--best", "2")
    assert (ran.code, "--best" in ran.err) == (2, True)
    Path("table.txt").write_text(words)
    ran = task_shell("predict", "run", "table.txt")
    assert (ran.code, ran.out, "table.txt looks like CoNLL-U" in ran.err) == (2, "", True)


def test_tasks_read_their_own_formats() -> None:
    lines = {"JSON": '{"sentence1": "A cat", "sentence2": "A dog"}', "a table": "1\tA cat sat\n2\tA dog ran"}
    for name, formats in {
        "nli": {"JSON", "a table"},
        "qa": {"JSON", "a table"},
        "coref": {"JSON"},
        "ner": {"JSON"},
        "sst": {"JSON"},
        "srl": {"JSON"},
    }.items():
        for format_, text in lines.items():
            with contextlib.nullcontext() if format_ in formats else pytest.raises(TextError, match=f"like {format_}"):
                refuse_other_formats("text", text.split("\n"), TASKS[name].text_formats)


def test_the_fraction_of_words_without_a_vector_is_printed(task_shell: Shell) -> None:
    write_config(words={"vectors": "v.txt", "dim": False, "lowercase": False}, train={"epochs": 1})
    Path("v.txt").write_text("Mira 1 2\nOslo 2 1\n")
    ran = task_shell("train", "config.toml", "--run", "run")
    # before training, so that the wrong file costs nothing
    assert ran.err.startswith("words: no pretrained vector for 81.8% of the training words, 75.0% of the tokens\n")
    assert "epoch 1/1" in ran.err
