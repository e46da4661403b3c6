from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from elmokit.config import (
    check_at_least,
    check_choice,
    check_fraction,
    check_not_negative,
    check_positive,
    check_ratio,
    from_dict,
    parse_count,
    read_json,
    read_toml,
    to_dict,
    token_index,
    whole_number,
)
from elmokit.engine.architecture import PRESETS, BiLMConfig
from elmokit.errors import ConfigError, FormatError, SettingError

WORD_INPUT = BiLMConfig(char_cnn=None, n_words=7, projection_dim=3, hidden_dim=5, cell_clip=None)


@pytest.mark.parametrize("config", [*PRESETS.values(), WORD_INPUT])
def test_config_survives_json(config: BiLMConfig) -> None:
    assert from_dict(BiLMConfig, json.loads(json.dumps(to_dict(config))), "here") == config


@pytest.mark.parametrize("content", ["[" * 100_000, "{", "[]", '{"a": "\\ud800"}', '{"\\udfff": 1}', "\xff"])
def test_json_that_cannot_be_used_is_one_clear_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "file.json").write_text(content, encoding="latin-1")
    with pytest.raises(FormatError, match=r"file\.json is"):
        read_json(tmp_path / "file.json")
    (tmp_path / "file.json").write_text('{"a": "\\ud83d\\ude00"}')  # both halves: a character
    assert read_json(tmp_path / "file.json") == {"a": "\U0001f600"}


def test_toml_that_cannot_be_used_is_one_clear_error(tmp_path: Path) -> None:
    for content in (b"a = " + b"[" * 100_000, b"a =", b"a = '\xff'"):
        (tmp_path / "file.toml").write_bytes(content)
        with pytest.raises(ConfigError, match=r"file\.toml is not a readable TOML file"):
            read_toml(tmp_path / "file.toml")
    with pytest.raises(ConfigError, match=r"gone\.toml"):
        read_toml(tmp_path / "gone.toml")


@pytest.mark.parametrize(
    ("content", "mentions"),
    [
        ({"hiden_dim": 3}, "'hiden_dim'. Did you mean 'hidden_dim'?"),
        ({"char_cnn": {"filter": []}}, "'char_cnn.filter'. Did you mean 'char_cnn.filters'?"),
        ({"hidden_dim": "many"}, "hidden_dim is 'many'.*integer"),
        ({"projection_dim": 9, "hidden_dim": 8}, "projection_dim is 9"),
        ({"char_cnn": 3}, "char_cnn is 3"),
        ([1], r"a table of named values, found \[1\]"),
        (None, "a table of named values, found None"),
    ],
)
def test_wrong_content_is_named_with_its_place(content: object, mentions: str) -> None:
    with pytest.raises(ConfigError, match=f"here: .*{mentions}"):
        from_dict(BiLMConfig, content, "here")


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (partial(check_at_least, minimum=2, maximum=4), [2, 4, np.int64(3)], [1, 5, True, 2.0, None, "2"]),
        (partial(check_at_least, minimum=2, optional=True), [None, 2], [1]),
        (check_positive, [None, 0.1], [0, -1, float("inf"), float("nan")]),
        (check_not_negative, [0, 0.1], [-0.1, float("inf"), float("nan")]),
        (check_fraction, [0, 0.9], [-0.1, 1, float("nan")]),
        (check_ratio, [0.1, 1], [0, 1.1, float("nan")]),
        (partial(check_choice, choices=["a", "b"]), ["a"], ["c", ["a"], None]),
        (partial(token_index, n_tokens=2), [-2, 1], [-3, 2, True, 1.0]),
    ],
)
def test_a_value_outside_of_its_range_is_named_with_its_setting(
    check: Callable[[str, object], object], right: list[object], wrong: list[object]
) -> None:
    for value in right:
        check("size", value)
    for value in wrong:
        with pytest.raises(SettingError, match=f"^size is {re.escape(repr(value))}"):
            check("size", value)


def test_a_whole_number_has_at_most_18_digits() -> None:
    assert [whole_number(text) for text in ("0", "007", "9" * 18)] == [0, 7, 10**18 - 1]
    assert not any(map(whole_number, ("1" * 19, "1" * 5000, "²", "-1", "")))


def test_counts_can_have_units() -> None:
    assert parse_count("2K") == 2000
