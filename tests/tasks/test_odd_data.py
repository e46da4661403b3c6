"""Odd data and settings that tasks meet: files of other programs, shuffled lines, seeds that are added, long lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit.config import read_toml
from elmokit.errors import ConfigError, TextError
from elmokit.tasks.batches import sample_texts
from elmokit.tasks.readers.pairs import parse_pair, read_pairs
from elmokit.tasks.run import train_task
from elmokit.tasks.setup import MAX_SQUARES, _bounded
from elmokit.tasks.srl import SrlConfig, SrlTask
from elmokit.tasks.table import load_config
from elmokit.tasks.word_vectors import read_word_vectors
from elmokit.text.batching import plan_batches

PROPOSITIONS = [
    "0 said it works ||| B-V O O",
    "2 said it works ||| O O B-V",
    "0 left he knows ||| B-V O O",
    "2 left he knows ||| O O B-V",
]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [0, 2, 1, 3], [3, 0, 2, 1]])
def test_predicates_are_learned_in_any_order_of_the_lines(order: list[int]) -> None:
    lines = [PROPOSITIONS[number] for number in order]
    examples = list(SrlTask().read_text(lines, "lines", str.split, SrlConfig()))
    assert SrlTask().labels(examples, SrlConfig())["predicates"] == ["knows", "left", "said", "works"]


@pytest.mark.parametrize(
    "content",
    [
        "2 2\na\t0.1\t0.2\nb\t0.1\t0.3\n",
        "a\t0.1\t0.2\nb\t0.1\t0.3\n",
        "a  0.1 0.2\nb  0.1 0.3\n",
        "\ufeffa 0.1 0.2\nb 0.1 0.3\n",
        "\ufeff2 2\na 0.1 0.2\nb 0.1 0.3\n",
        "a\t0.1 0.2\nb\t0.1 0.3\n",
    ],
)
def test_word_vectors_are_read_whatever_separates_them(content: str, tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text(content, encoding="utf-8")
    found = read_word_vectors(str(path), {"a", "b"})
    assert found.dim == 2
    np.testing.assert_allclose(found.vectors["a"], [0.1, 0.2], atol=1e-6)
    np.testing.assert_allclose(found.vectors["b"], [0.1, 0.3], atol=1e-6)


def test_an_empty_label_is_refused_and_null_is_none(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("gold_label\tsentence1\tsentence2\nneutral\ta\tb\n\ta c\tb\n")
    with pytest.raises(TextError, match=r"line 3: the label is empty. Write it, or - if there is none"):
        list(read_pairs(str(path)))
    record = json.dumps({"sentence1": "a", "sentence2": "b", "gold_label": None})
    assert parse_pair(record, "x").label is None


def test_a_batch_with_a_long_example_is_divided() -> None:
    lengths: list[Any] = [(2000, 3), *[(4, 2)] * 31]
    plan = list(_bounded(plan_batches(lengths, batch_size=32), lengths))
    assert sorted(number for batch in plan for number in batch) == list(range(32))
    assert all(len(batch) * max(lengths[batch[0]]) ** 2 <= MAX_SQUARES for batch in plan)
    assert list(_bounded([[0, 1]], [10_000, 3])) == [[0], [1]]


def test_a_sample_has_the_number_of_texts_that_its_ratio_says() -> None:
    for ratio, n_texts, expected in ((0.07, 100, 7), (0.55, 100, 55), (0.14, 50, 7), (0.001, 100, 1), (0.071, 100, 8)):
        assert len(sample_texts([str(number) for number in range(n_texts)], ratio)) == expected


def test_a_config_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "marked.toml"
    path.write_bytes(b'\xef\xbb\xbftask = "ner"\n')
    assert read_toml(path) == {"task": "ner"}


@pytest.mark.parametrize(
    ("task", "values", "message"),
    [
        ("qa", ("data.skip_unanswerable=true", "model.no_answer=true"), "skip_unanswerable leaves out what"),
        ("ner", ("elmo.input.penalty=inf",), "penalty is inf; it must be 0 or more"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    task: str, values: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f'task = "{task}"\npreset = "small"\n[data]\ntrain = "a"\ndev = "b"\n[elmo]\nmodel = "m"\n')
    with pytest.raises(ConfigError, match=message):
        load_config(path, values)


def test_a_seed_that_is_added_joins_the_results_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.txt").write_text("Mira B-PER\nleft O\nRome B-LOC\n\nRome B-LOC\nwon O\n\n" * 3)
    Path("ner.toml").write_text(
        'task = "ner"\npreset = "small"\n[data]\ntrain = "data.txt"\ndev = "data.txt"\n[words]\ndim = 4\n'
        "min_count = 1\n[model]\nhidden = [4]\n[train]\nepochs = 1\n"
    )
    for seeds, expected in (([1, 2], [1, 2]), ([3], [1, 2, 3])):
        task, config = load_config("ner.toml", (f"train.seeds={seeds}",))
        results = train_task(task, config, "run")
        assert [result["seed"] for result in results["seeds"]] == expected
        assert load_config("run/config.toml")[1].train.seeds == tuple(expected)
