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


AS_JSON = {"alpha": [1e-05, -0.5, 10**15], "text": '\u00e9\U0001f600\\"\n/', "off": None, "": [[], {}]}


def test_json_needs_no_jsonnet_and_other_files_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "_jsonnet", None)
    assert read_config_file(config(tmp_path, json.dumps(AS_JSON))) == AS_JSON
    with pytest.raises(MissingExtraError, match=r"config\.jsonnet is not JSON.*\[tasks\]"):
        read_config_file(config(tmp_path, "{a: 1}"))


def evaluated(folder: Path, text: str, **variables: str) -> Any:
    pytest.importorskip("_jsonnet")
    return read_config_file(config(folder, text), variables)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Published configs have comments of three kinds, trailing commas and directories in local names.
        (
            """// A tagger.\n{\n  model: {"type": "bcn", /* of\n 2017 */ # no "elmo"\n  },\n}""",
            {"model": {"type": "bcn"}},
        ),
        (
            """local data = std.extVar("TRAIN");\n// local data = "/me";\n{train: data + "/x"}""",
            {"train": "conll/train/x"},
        ),
        (
            """{train: std.extVar("TRAIN"), dev: std.extVar('DEV')}""",
            {"train": "conll/train", "dev": 'std.extVar("DEV")'},
        ),
        ("""local f(n) = n * 2; {size: f(4), seed: std.parseInt(std.extVar("SEED"))}""", {"size": 8, "seed": 13}),
    ],
)
def test_jsonnet_is_evaluated_and_variables_without_a_value_stay(tmp_path: Path, text: str, expected: Any) -> None:
    assert evaluated(tmp_path, text, TRAIN="conll/train", SEED="13") == expected


def test_a_library_next_to_the_config_is_read(tmp_path: Path) -> None:
    config(tmp_path, "").with_name("model.libsonnet").write_text('{type: "bcn"}')
    assert evaluated(tmp_path, '{model: import "model.libsonnet"}') == {"model": {"type": "bcn"}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{a: ", "neither JSON nor valid Jsonnet"),
        ('{model: std.parseInt(std.extVar("N"))}', "without a value: N; pass them with --var"),
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
