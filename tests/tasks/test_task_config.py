"""Task configs: a file over a preset, false for None, settings from the shell."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.config import deep_merge, to_dict, to_toml
from elmokit.errors import ConfigError, TextError
from elmokit.tasks.allennlp.variants import ARCHIVED_TASKS
from elmokit.tasks.config_file import config_of, load_config
from elmokit.tasks.task_config import (
    ElmoConfig,
    MixConfig,
    OptimizerConfig,
    PlateauConfig,
    TaskTrainingConfig,
    apply_override,
    expand_paths,
)
from elmokit.tasks.task_table import TASKS

VALUES = st.one_of(
    st.text(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans(), st.lists(st.integers())
)
NAMES = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)


@given(st.dictionaries(NAMES, st.one_of(VALUES, st.dictionaries(NAMES, VALUES))))
def test_what_is_written_as_toml_is_read_back(content: dict[str, object]) -> None:
    assert tomllib.loads(to_toml(content)) == content


@pytest.mark.parametrize("name", list(TASKS))
@pytest.mark.parametrize("preset", ["published", "small"])
@pytest.mark.parametrize("with_elmo", [False, True])
def test_every_preset_comes_back_from_its_file(name: str, preset: str, with_elmo: bool, tmp_path: Path) -> None:
    task = TASKS[name]
    config = task.presets[preset]
    if with_elmo:
        config = replace(config, elmo=task.elmo)
    path = tmp_path / "config.toml"
    # Some editors begin a file with a byte order mark.
    encoding = "utf-8-sig" if with_elmo else "utf-8"
    path.write_text(to_toml({"task": name, **to_dict(config)}), encoding=encoding)
    assert load_config(path) == (task, config)


def test_an_elmo_table_alone_switches_elmo_on_with_the_task_s_own_positions() -> None:
    task, config = config_of({"task": "ner", "elmo": {}}, "here")
    assert config.elmo == task.elmo
    assert config.elmo.input.penalty == 0.1
    _, config = config_of({"task": "ner", "elmo": {"input": {"layers": [0, 1]}}}, "here")
    assert (config.elmo.input.layers, config.elmo.input.penalty) == ((0, 1), 0.1)


def test_false_takes_away_what_may_be_missing() -> None:
    content = {"task": "sst", "words": False, "elmo": {"output": False}, "train": {"max_grad_norm": False}}
    _, config = config_of(content, "here")
    assert (config.words, config.elmo.output, config.train.max_grad_norm) == (None, None, None)
    _, config = config_of({"task": "ner", "train": {"bucketed": False}}, "here")
    assert config.train.bucketed is False


def test_a_file_is_laid_over_its_preset() -> None:
    small = TASKS["ner"].presets["small"]
    _, config = config_of({"task": "ner", "preset": "small", "train": {"epochs": 3}}, "here")
    assert config == replace(small, train=replace(small.train, epochs=3))
    assert deep_merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": 4}) == {"a": {"b": 3, "c": 2}, "d": 4}


@pytest.mark.parametrize("preset", ["published", "small", "coarse-to-fine"])
def test_files_of_word_vectors_say_their_own_size(preset: str) -> None:
    tables: dict[str, object] = {name: {"vectors": "glove.6B.100d.txt"} for name in ("words", "head_words")}
    _, config = config_of({"task": "coref", "preset": preset, **tables}, "here")
    assert (config.words.dim, config.head_words.dim) == (None, None)
    assert config.words.unit_length is (preset != "small")  # the rest of the preset stays
    _, config = config_of({"task": "coref", "preset": preset, "words": {"vectors": "v.txt", "dim": 7}}, "here")
    assert config.words.dim == 7
    _, config = config_of({"task": "coref", "preset": preset, "words": {"vectors": []}}, "here")
    assert config.words.dim == TASKS["coref"].presets[preset].words.dim


REFUSED = [
    ("ner", "train.epoch=3", "unknown key 'train.epoch'. Did you mean 'train.epochs'"),
    ("ner", "epochs=3", "unknown key 'epochs'. Did you mean 'train.epochs'"),
    ("ner", "elmo.input.lambda=1", "'elmo.input.lambda'"),
    ("nre", "train.epochs=1", "task is 'nre'; it must be one of ner, sst"),
    ("ner", "task=false", "task is False"),
    ("ner", "preset=smal", "preset is 'smal'; it must be one of published, small"),
    ("ner", "words=5", "words is 5"),
    ("ner", "data.train_ratio=0", "train_ratio"),
    ("ner", "chars.filters=[]", "the length of filters is 0"),
    ("ner", "chars.filters=[[3, 0]]", "filters is 0"),
    ("ner", "chars.dropout=1.0", "dropout"),
    ("ner", "elmo.input.penalty=-1", "penalty"),
    ("ner", "elmo.input=false", "elmo has neither an input nor an output mix"),
    *(
        ("ner", f"elmo.{name}={value}", f"elmo.{name} is {value}, which needs elmo.trainable")
        for name, value in (("learning_rate", 1e-4), ("layer_decay", 0.5), ("freeze_epochs", 1), ("unfreeze_every", 1))
    ),
    *(
        ("ner", f"elmo={{trainable = true, {name} = {value}}}", f"{name} is {value}")
        for name, value in (("learning_rate", 0.0), ("layer_decay", 1.5), ("freeze_epochs", -1), ("unfreeze_every", 0))
    ),
    ("ner", "train.optimizer.learning_rate=0", "learning_rate"),
    ("ner", "train.optimizer.betas=[0.9, 1.5]", "betas"),
    ("ner", "train.plateau={factor = 2}", "factor"),
    ("ner", "train.seeds=[]", "seeds is []"),
    ("ner", "train.seeds=[1, 1]", "seeds is [1, 1]"),
    ("ner", f"train.seeds=[{2**32}]", "seeds"),
    ("ner", "train.batch_size=0", "batch_size"),
    ("ner", "train.batch_size=many", "train.batch_size is 'many'"),
    ("ner", "train.batch_size", "table.key=value"),
    ("ner", "train.epochs=1\nother = 5", "table.key=value"),
    ("ner", "model.hidden=[]", "the length of hidden is 0"),
    ("ner", "model.hidden=[0]", "hidden"),
    ("sst", "model.output_hidden=[3, 3, 3]", "output_hidden"),
    ("sst", "data.min_tokens=0", "min_tokens"),
    ("qa", "model={network = 'bidaf', no_answer = true}", "no_answer"),
]


@pytest.mark.parametrize(("task", "setting", "named"), REFUSED)
def test_a_setting_that_cannot_be_used_is_named(task: str, setting: str, named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        config_of(apply_override({"task": task, "preset": "small", "elmo": {}}, setting), "here")


def test_a_setting_is_toml_or_a_bare_word() -> None:
    content = apply_override({"train": {"epochs": 5}}, "train.seeds=[1,\n2]")
    assert content == {"train": {"epochs": 5, "seeds": [1, 2]}}
    assert apply_override({}, "elmo.model=a/path.d")["elmo"] == {"model": "a/path.d"}
    assert apply_override({}, "words=false") == {"words": False}
    assert apply_override({"elmo": False}, "elmo.model=x") == {"elmo": {"model": "x"}}
    unparsable = "1" * 5000
    assert apply_override({}, f"train.epochs={unparsable}") == {"train": {"epochs": unparsable}}


def test_paths_may_be_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.txt", "a.txt", "c[1].txt"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert expand_paths("[ab].txt") == ["a.txt", "b.txt"]
    assert expand_paths(str(tmp_path / "*.txt"))[0] == str(tmp_path / "a.txt")
    assert expand_paths(("c[1].txt",)) == ["c[1].txt"]
    with pytest.raises(TextError, match=r"No file matches 'missing\.txt'"):
        expand_paths(("c[1].txt", "missing.txt"))
    assert expand_paths(()) == []


def test_a_folder_stands_for_its_gold_conll_files_at_any_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train/nw/b.gold_conll", "train/a.v4_gold_conll", "train/nw/b.gold_skel", "other/readme.txt"):
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    files = ["train/a.v4_gold_conll", "train/nw/b.gold_conll"]
    assert expand_paths("train") == expand_paths("tr*n") == expand_paths(("train/a.v4_gold_conll", "train/nw")) == files
    assert expand_paths("train/**") == files  # each once, though it names the folder and the one inside
    assert expand_paths(("train", "train")) == files * 2  # vectors may be asked for twice
    assert expand_paths(str(tmp_path / "train")) == [str(tmp_path / name) for name in files]
    with pytest.raises(TextError, match=r"other contains no file named \*gold_conll.*'other/\*\*/\*'"):
        expand_paths("other")


def test_the_published_numbers() -> None:
    ner, sst, nli = (TASKS[name].presets["published"] for name in ("ner", "sst", "nli"))
    adam = OptimizerConfig("adam", 1e-3)
    assert (ner.words.dim, ner.words.train, ner.words.lowercase) == (50, True, True)
    assert (ner.chars.dim, ner.chars.filters, ner.chars.activation) == (16, ((3, 128),), "relu")
    assert (ner.model.hidden, ner.model.dropout, ner.model.tags) == ((200, 200), 0.5, "BIOUL")
    assert (ner.model.constraints, ner.model.learn_ends) == ("decoding", False)
    assert ner.train == TaskTrainingConfig(adam, 64, False, 75, 25, max_grad_norm=5.0)
    assert TASKS["ner"].elmo == ElmoConfig(input=MixConfig(penalty=0.1))
    assert (sst.words.dim, sst.words.train) == (300, False)
    assert sst.train == TaskTrainingConfig(adam, 100, True, 40, 5, max_grad_norm=5.0)
    assert (sst.model.output_hidden, sst.model.output_dropout, sst.model.pool) == ((1200, 600), (0.2, 0.3), 4)
    assert (nli.words.dim, nli.model.hidden, nli.model.dropout) == (300, 300, 0.5)
    assert nli.train == TaskTrainingConfig(
        OptimizerConfig("adam", 4e-4), 32, True, 75, 5, max_grad_norm=10.0, plateau=PlateauConfig(0.5, 0)
    )
    for task in (TASKS["sst"], TASKS["nli"]):
        assert (task.elmo.input.penalty, task.elmo.output.penalty) == (0.001, 0.001)


@pytest.mark.parametrize(
    ("name", "table", "settings"),
    [
        ("ner", "model", {"encoder": "gru"}),
        ("srl", "model", {"decoding": "allennlp"}),
        ("coref", "model", {"network": "allennlp"}),
        ("qa", "model", {"network": "bidaf"}),
        ("nli", "elmo", {"start": "continued"}),
        ("sst", "chars", {"layer": "lstm"}),
    ],
)
def test_a_setting_of_allennlp_makes_a_config_of_its_model(name: str, table: str, settings: dict[str, Any]) -> None:
    task, config = config_of({"task": name, table: settings}, "here")
    assert task is ARCHIVED_TASKS[name]
    assert to_dict(config)[table].items() >= settings.items()
    plain, other = config_of({"task": name}, "here")
    assert plain is TASKS[name]
    assert isinstance(config, type(other))
    assert settings.keys().isdisjoint(to_dict(other.model))
