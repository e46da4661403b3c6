from __future__ import annotations

import json

import pytest

from elmokit.bilm import PRESETS, BiLMConfig
from elmokit.config import from_dict, to_dict
from elmokit.errors import ConfigError


@pytest.mark.parametrize("name", PRESETS)
def test_config_survives_json(name: str) -> None:
    assert from_dict(BiLMConfig, json.loads(json.dumps(to_dict(PRESETS[name]))), "here") == PRESETS[name]


def test_a_word_input_config_survives_json() -> None:
    config = BiLMConfig(char_cnn=None, n_words=7, projection_dim=3, hidden_dim=5, cell_clip=None)
    assert from_dict(BiLMConfig, json.loads(json.dumps(to_dict(config))), "here") == config


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"hiden_dim": 3}, "here: unknown key 'hiden_dim'. Did you mean 'hidden_dim'?"),
        ({"char_cnn": {"filter": []}}, "here.char_cnn: unknown key 'filter'. Did you mean 'filters'?"),
        ({"hidden_dim": "many"}, r"here: Expected `int`, got `str` - at `\$.hidden_dim`"),
        ({"projection_dim": 9, "hidden_dim": 8}, "here: projection_dim is 9, more than hidden_dim"),
        ([1], "here: expected a table of named values"),
        (None, "here: expected a table of named values"),
    ],
)
def test_wrong_content_is_named_with_its_place(content: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict(BiLMConfig, content, "here")
