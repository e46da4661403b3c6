from __future__ import annotations

import json
from pathlib import Path

import pytest

from elmokit.config import from_dict, parse_count, read_json, read_toml, to_dict
from elmokit.engine.config import PRESETS, BiLMConfig
from elmokit.errors import ConfigError, FormatError


@pytest.mark.parametrize("name", PRESETS)
def test_config_survives_json(name: str) -> None:
    assert from_dict(BiLMConfig, json.loads(json.dumps(to_dict(PRESETS[name]))), "here") == PRESETS[name]


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero")
def test_a_file_without_an_end_is_not_read_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="/dev/zero is not a valid TOML file: it is larger than"):
        read_toml("/dev/zero")
    with pytest.raises(FormatError, match="/dev/zero is not a readable JSON file: it is larger than"):
        read_json("/dev/zero")


@pytest.mark.parametrize("content", ["[" * 100_000, "{", "[]", '{"a": "\\ud800"}', '{"\\udfff": 1}', "\xff"])
def test_json_that_cannot_be_used_is_one_clear_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "file.json").write_text(content, encoding="latin-1")
    with pytest.raises(FormatError, match=r"file\.json is"):
        read_json(tmp_path / "file.json")
    (tmp_path / "file.json").write_text('{"a": "\\ud83d\\ude00"}')  # both halves: a character
    assert read_json(tmp_path / "file.json") == {"a": "\U0001f600"}


def test_toml_that_is_nested_too_deeply_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(ConfigError, match="is not a valid TOML file"):
        read_toml(tmp_path / "file.toml")


def test_a_word_input_config_survives_json() -> None:
    config = BiLMConfig(char_cnn=None, n_words=7, projection_dim=3, hidden_dim=5, cell_clip=None)
    assert from_dict(BiLMConfig, json.loads(json.dumps(to_dict(config))), "here") == config


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"hiden_dim": 3}, "here: unknown key 'hiden_dim'. Did you mean 'hidden_dim'?"),
        ({"char_cnn": {"filter": []}}, "here: unknown key 'char_cnn.filter'. Did you mean 'char_cnn.filters'?"),
        ({"hidden_dim": "many"}, r"here: hidden_dim is 'many'. Expected type: integer"),
        ({"projection_dim": 9, "hidden_dim": 8}, "here: projection_dim is 9"),
        ({"hidden_dim": 1 << 20_000}, "here: hidden_dim holds a whole number of more than 1,000 bits"),
        ({"char_cnn": {"filters": [[1, 1 << 20_000]]}}, "here: char_cnn.filters holds a whole number of more"),
        ([1], "here: expected a table of named values"),
        (None, "here: expected a table of named values"),
    ],
)
def test_wrong_content_is_named_with_its_place(content: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict(BiLMConfig, content, "here")


def test_a_count_is_refused_before_it_is_too_long_to_be_printed() -> None:
    assert parse_count("2K") == 2000
    with pytest.raises(ValueError, match="too long"):
        parse_count("9" * 4300 + "B")
