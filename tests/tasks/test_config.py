"""Task configs: a file over a preset, false for None, settings from the shell."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.config import deep_merge, to_dict, to_toml
from elmokit.errors import ConfigError, TextError
from elmokit.tasks.config import (
    CharsConfig,
    ElmoConfig,
    MixConfig,
    OptimizerConfig,
    PlateauConfig,
    StepDecayConfig,
    TaskDataConfig,
    TaskTrainingConfig,
    WordsConfig,
    apply_override,
    expand_paths,
)
from elmokit.tasks.table import TASKS, config_of, load_config

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
    path.write_text(to_toml({"task": name, **to_dict(config)}), encoding="utf-8")
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"task": "ner", "train": {"epoch": 3}}, "here: unknown key 'train.epoch'. Did you mean 'train.epochs'"),
        ({"task": "ner", "epochs": 3}, "here: unknown key 'epochs'. Did you mean 'train.epochs'"),
        ({"task": "ner", "elmo": {"input": {"lambda": 1}}}, "here: unknown key 'elmo.input.lambda'"),
        ({"task": "nre"}, "here: task is 'nre'; it must be one of ner, sst"),
        ({"task": "ner", "preset": "smal"}, "here: preset is 'smal'; it must be one of published, small"),
        ({}, "here has no task"),
        ({"task": "ner", "train": {"batch_size": 0}}, "batch_size is 0"),
        ({"task": "ner", "train": {"batch_size": "many"}}, "here: train.batch_size is 'many'. Expected type: integer."),
        ({"task": "ner", "words": 5}, "here"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(content: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        config_of(content, "here")
    assert message in str(error.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TaskDataConfig(train_ratio=0),
        lambda: WordsConfig(dim=0),
        lambda: WordsConfig(min_count=0),
        lambda: CharsConfig(filters=()),
        lambda: CharsConfig(filters=((3, 0),)),
        lambda: CharsConfig(max_chars=0),
        lambda: CharsConfig(dropout=1.0),
        lambda: MixConfig(penalty=-1),
        lambda: MixConfig(dropout=1),
        lambda: ElmoConfig(input=None),
        lambda: OptimizerConfig(learning_rate=0),
        lambda: OptimizerConfig(betas=(0.9, 1.5)),
        lambda: OptimizerConfig(rho=95),
        lambda: OptimizerConfig(momentum=-1),
        lambda: PlateauConfig(factor=1),
        lambda: PlateauConfig(patience=-1),
        lambda: StepDecayConfig(rate=2),
        lambda: TaskTrainingConfig(seeds=()),
        lambda: TaskTrainingConfig(seeds=(1, 1)),
        lambda: TaskTrainingConfig(seeds=(-1,)),
        lambda: TaskTrainingConfig(seeds=(2**32,)),
        lambda: TaskTrainingConfig(average=1),
        lambda: TaskTrainingConfig(patience=0),
        lambda: TaskTrainingConfig(clip_value=0),
        lambda: TaskTrainingConfig(l2=-1),
    ],
)
def test_values_are_checked_where_a_config_is_made(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError):
        make()


def test_a_setting_is_toml_or_a_bare_word() -> None:
    content = apply_override({"train": {"epochs": 5}}, "train.seeds=[1, 2]")
    assert content == {"train": {"epochs": 5, "seeds": [1, 2]}}
    assert apply_override({}, "elmo.model=a/path.d")["elmo"] == {"model": "a/path.d"}
    assert apply_override({}, "words=false") == {"words": False}
    assert apply_override({"elmo": False}, "elmo.model=x") == {"elmo": {"model": "x"}}
    for wrong in ("train.epochs", "=3", "a..b=3"):
        with pytest.raises(ConfigError, match=r"table\.key=value"):
            apply_override({}, wrong)


@pytest.mark.parametrize("value", ["1" * 5000, "[" * 5000])
def test_a_value_that_python_cannot_parse_is_a_word(value: str) -> None:
    assert apply_override({}, f"train.epochs={value}") == {"train": {"epochs": value}}


def test_a_second_line_of_a_setting_is_refused() -> None:
    assert apply_override({}, "train.seeds=[1,\n2]") == {"train": {"seeds": [1, 2]}}
    with pytest.raises(ConfigError, match="several lines"):
        apply_override({}, "train.epochs=1\nother = 5")


def test_files_that_are_no_config_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot read the config"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("task = [")
    with pytest.raises(ConfigError, match="is not a valid TOML"):
        load_config(tmp_path / "bad.toml")


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
        assert task.elmo.input is not None
        assert task.elmo.output is not None
        assert (task.elmo.input.penalty, task.elmo.output.penalty) == (0.001, 0.001)
