"""bilm-tf's options.json as training settings: every key has an effect, or is refused by name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from elmokit.engine.architecture import PRESETS
from elmokit.engine.softmax import SoftmaxConfig
from elmokit.errors import ConfigError
from elmokit.formats.open import open_model
from elmokit.training.settings import options_from_settings, settings_from_options, training_settings
from elmokit.training.training_config import RECIPES, TrainingConfig

# What bilm-tf's train_elmo.py has written into it.
SHIPPED: dict[str, Any] = {
    "bidirectional": True,
    "char_cnn": {
        "activation": "relu",
        "embedding": {"dim": 16},
        "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        "max_characters_per_token": 50,
        "n_characters": 261,
        "n_highway": 2,
    },
    "dropout": 0.1,
    "lstm": {
        "cell_clip": 3,
        "dim": 4096,
        "n_layers": 2,
        "proj_clip": 3,
        "projection_dim": 512,
        "use_skip_connections": True,
    },
    "all_clip_norm_val": 10.0,
    "n_epochs": 10,
    "n_train_tokens": 768648884,
    "batch_size": 128,
    "n_tokens_vocab": 793471,
    "unroll_steps": 20,
    "n_negative_samples_batch": 8192,
}
WORDS = {name: value for name, value in SHIPPED.items() if name != "char_cnn"}


def config_of(options: dict[str, Any], tmp_path: Path, **settings: Any) -> TrainingConfig:
    path = tmp_path / "options.json"
    path.write_text(json.dumps(options))
    config, data = training_settings(None, None, path, settings)
    return of_size(config, data.max_words or 0)


def of_size(config: TrainingConfig, n_words: int) -> TrainingConfig:
    """Give a word-input model the size of its table, as when the text has been counted."""
    if config.model.n_words is None:
        return config
    return dataclasses.replace(config, model=dataclasses.replace(config.model, n_words=n_words))


def test_the_shipped_options_are_the_recipe(tmp_path: Path) -> None:
    config = config_of(SHIPPED, tmp_path)
    # 300,253 batches of 128 x 20 in each epoch: floor(768,648,884 / 2,560).
    assert config.tokens == 10 * 300_253 * 2_560
    recipe = RECIPES["bilm-tf"]
    assert config == TrainingConfig(**{**vars(recipe), "epochs": None, "tokens": config.tokens})


def test_the_options_of_the_test_run_describe_its_model(bilm_tf_run: Path) -> None:
    config, data = training_settings(None, None, bilm_tf_run / "options.json", {})
    assert config.model == open_model(bilm_tf_run).config
    assert (config.batch_size, config.window_length, config.n_samples) == (16, 10, 128)
    assert config.tokens == 207 * 160  # the checkpoint's 207 steps
    assert data.max_words == 603


def test_optional_keys_have_the_defaults_of_bilm_tf(tmp_path: Path) -> None:
    lstm = {"dim": 64, "projection_dim": 32}
    config = config_of({**WORDS, "lstm": lstm, "bidirectional": False}, tmp_path)
    assert (config.model.char_cnn, config.model.n_words) == (None, 793471)
    assert (config.model.n_layers, config.model.cell_clip, config.model.projection_clip) == (1, None, None)
    assert (config.model.skip_connections, config.model.bidirectional) == (False, False)
    assert not config_of(
        {name: value for name, value in SHIPPED.items() if name != "bidirectional"}, tmp_path
    ).model.bidirectional
    without_tokens = {name: value for name, value in SHIPPED.items() if name != "n_train_tokens"}
    config = config_of(without_tokens, tmp_path)
    assert (config.epochs, config.tokens) == (10, None)


def test_each_other_key_has_an_effect(tmp_path: Path) -> None:
    assert config_of({**SHIPPED, "sample_softmax": False}, tmp_path).n_samples == 0
    assert config_of({**WORDS, "share_embedding_softmax": True}, tmp_path).softmax == SoftmaxConfig("tied")
    assert config_of({**SHIPPED, "learning_rate": 0.1}, tmp_path).learning_rate == 0.1
    assert config_of({**SHIPPED, "all_clip_norm_val": 1.0}, tmp_path).max_grad_norm == 1.0
    assert config_of({**SHIPPED, "dropout": 0.3}, tmp_path).model.dropout == 0.3
    assert config_of({**SHIPPED, "unroll_steps": 10}, tmp_path).window_length == 10
    # Settings of your own override the file, whatever the unit of the length.
    config = config_of(SHIPPED, tmp_path, epochs=2.0, hidden_dim=1024)
    assert (config.epochs, config.tokens, config.model.hidden_dim) == (2.0, None, 1024)


def test_gpus_multiply_the_rows() -> None:
    table = settings_from_options({**SHIPPED, "n_epochs": 1}, "options.json", n_gpus=3)
    assert (table["batch_size"], table["tokens"]) == (384, 100_084 * 7_680)  # bilm-tf: 100,084 batches


@pytest.mark.parametrize("name", ["original", "tiny"])
def test_settings_become_the_options_of_bilm_tf(name: str) -> None:
    config = dataclasses.replace(RECIPES["bilm-tf"], model=PRESETS[name])
    options = options_from_settings(config, 793471, 7_680_000)
    if name == "original":
        added = {"sample_softmax": True, "share_embedding_softmax": False, "learning_rate": 0.2}
        assert options == {**SHIPPED, **added, "n_epochs": 1, "n_train_tokens": 7_680_000}
    again, _ = training_settings(None, None, settings_from_options(options, "options"), {})
    assert of_size(again, 793471) == dataclasses.replace(config, epochs=None, tokens=7_680_000)
    again, _ = training_settings(None, None, settings_from_options(options_from_settings(config, 9), "options"), {})
    assert of_size(again, 9) == config


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in SHIPPED.items() if name not in names}


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (SHIPPED | {"unroll_step": 3}, "'unroll_step'.*'unroll_steps'"),
        (SHIPPED | {"lstm": {**SHIPPED["lstm"], "n_layer": 3}}, r"'lstm\.n_layer'.*'n_layers'"),
        (SHIPPED | {"lstm": {"dim": 4096}}, "projection_dim"),
        (SHIPPED | {"char_cnn": {**SHIPPED["char_cnn"], "n_characters": 300}}, "n_characters"),
        (
            SHIPPED | {"char_cnn": {**SHIPPED["char_cnn"], "projection_after_highway": False}},
            "projection_after_highway",
        ),
        (SHIPPED | {"char_cnn": None}, "NoneType"),
        (SHIPPED | {"char_cnn": [1]}, "char_cnn"),
        (SHIPPED | {"n_train_tokens": 100}, "n_train_tokens"),
        (SHIPPED | {"batch_size": 0, "n_train_tokens": None}, "batch_size"),
        (SHIPPED | {"batch_size": "many"}, "many"),
        (SHIPPED | {"batch_size": 2.9}, "2.9"),
        (SHIPPED | {"n_epochs": 2.9}, "2.9"),
        (SHIPPED | {"n_negative_samples_batch": "7"}, "'7'"),
        (SHIPPED | {"bidirectional": "false"}, "bidirectional"),
        (without("batch_size", "n_epochs"), "n_epochs, batch_size"),
        (without("n_negative_samples_batch"), "n_negative_samples_batch"),
    ],
)
def test_unsupported_options_are_refused_by_name(options: dict[str, Any], name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"options\.json.*{name}"):
        config_of(options, tmp_path)
