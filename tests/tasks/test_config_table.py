"""Configs of AllenNLP are read as Jsonnet reads them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from elmokit.errors import ConfigError, MissingExtraError
from elmokit.tasks.allennlp.config_table import read_config_file


def config(folder: Path, text: str) -> Path:
    path = folder / "inner" / "config.jsonnet"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


PUBLISHED_SHAPES = {
    "comments before the table, a trailing comma": (
        """// Configuration of a tagger.\n// Slightly modified.\n{\n  "trainer": {\n    "patience": 25,\n  }\n}\n""",
        {"trainer": {"patience": 25}},
    ),
    "comments inside, of two kinds": (
        """{\n  // A model.\n  "model": {\n  "type": "bcn", /* of\n 2017 */ # no "elmo"\n  "dropout": 0.5\n }\n}""",
        {"model": {"type": "bcn", "dropout": 0.5}},
    ),
    "external variables in both quotes": (
        """{"train_data_path": std.extVar("TRAIN"), "validation_data_path": std.extVar('DEV')}""",
        {"train_data_path": "conll/train", "validation_data_path": 'std.extVar("DEV")'},
    ),
    "a directory in a local name": (
        """local data = std.extVar("TRAIN");\n// local data = "/home/me";\n\n{"train_data_path": data + "/x"}""",
        {"train_data_path": "conll/train/x"},
    ),
    "tables in local names, with semicolons": (
        """local size = 8;\nlocal BASE_READER = {\n\t"type": "sst_tokens",\n\t"granularity": "5-class",\n};\n"""
        """{dataset_reader: BASE_READER, model: {'hidden': size}}""",
        {"dataset_reader": {"type": "sst_tokens", "granularity": "5-class"}, "model": {"hidden": 8}},
    ),
    "sizes that are added": (
        """local words = 50; local chars = 128;\n{input_size: words + chars + 1024}""",
        {"input_size": 1202},
    ),
    "what JSON writes": (
        json.dumps({"alpha": [1e-05, -0.5, 10**15], "text": '\u00e9\U0001f600\\"\n/', "off": None, "": [[], {}]}),
        {"alpha": [1e-05, -0.5, 10**15], "text": '\u00e9\U0001f600\\"\n/', "off": None, "": [[], {}]},
    ),
}


@pytest.mark.parametrize("shape", PUBLISHED_SHAPES)
def test_the_shapes_of_published_configs_are_read(tmp_path: Path, shape: str) -> None:
    text, expected = PUBLISHED_SHAPES[shape]
    assert evaluated(tmp_path, text, TRAIN="conll/train") == expected


def test_json_needs_no_jsonnet_and_other_files_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "_jsonnet", None)
    text, expected = PUBLISHED_SHAPES["what JSON writes"]
    assert read_config_file(config(tmp_path, text)) == expected
    with pytest.raises(MissingExtraError, match=r"config\.jsonnet is not JSON.*\[tasks\]"):
        read_config_file(config(tmp_path, "{a: 1}"))


def evaluated(folder: Path, text: str, **variables: str) -> Any:
    pytest.importorskip("_jsonnet")
    return read_config_file(config(folder, text), variables)


def test_jsonnet_evaluates_what_computes(tmp_path: Path) -> None:
    text = 'local f(n) = n * 2; {size: f(4), seed: std.parseInt(std.extVar("SEED")), data: std.extVar("DATA")}'
    expected = {"size": 8, "seed": 13, "data": 'std.extVar("DATA")'}
    assert evaluated(tmp_path, text, SEED="13") == expected


def test_a_library_next_to_the_config_is_read(tmp_path: Path) -> None:
    config(tmp_path, "").with_name("model.libsonnet").write_text('{type: "bcn"}')
    assert evaluated(tmp_path, '{model: import "model.libsonnet"}') == {"model": {"type": "bcn"}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{a: ", "neither JSON nor valid Jsonnet"),
        ('{model: std.parseInt(std.extVar("N"))}', "without a value: N; give them with --var"),
        ('{model: import "../secret.libsonnet"}', "outside the directory"),
        ('{model: import "gone.libsonnet"}', "gone.libsonnet"),
    ],
)
def test_jsonnet_that_cannot_be_evaluated_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "secret.libsonnet").write_text("{}")
    with pytest.raises(ConfigError, match=message) as raised:
        evaluated(tmp_path, text)
    assert "\n" not in str(raised.value)


def test_variables_are_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"variable 'DATA'"):
        read_config_file(config(tmp_path, "{}"), {"DATA": "a\udcff"})
