"""Build a ``TrainingConfig`` from layers: recipe, preset, config file, keyword arguments or flags.

Each layer overrides the ones before it. Keyword arguments and flags are flat (``hidden_dim=512``), while a config file
and ``TrainingConfig`` nest the sizes in ``model`` and the softmax in ``softmax``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from elmokit.bilm import PRESETS
from elmokit.config import Table, check_choice, deep_merge, did_you_mean, from_dict, read_toml, setting, to_dict
from elmokit.errors import ConfigError
from elmokit.nn.softmax_config import SoftmaxConfig, softmax_config
from elmokit.training.config import FINETUNING, LENGTHS, RECIPES, TrainingConfig
from elmokit.training.corpus import HELD_OUT_SENTENCES
from elmokit.weights.model import PretrainedBiLM

MODEL_SETTINGS = ("hidden_dim", "projection_dim", "n_layers", "dropout", "bidirectional")
"""Fields of ``BiLMConfig`` that are flat settings, too."""
SOFTMAX_SETTINGS = {"softmax": "kind", "cutoffs": "cutoffs"}
"""Flat settings of the softmax, and the fields of ``SoftmaxConfig`` that they set."""
DATA_SETTINGS = ("held_out", "held_out_sentences", "vocabulary", "max_words")
"""Fields of ``DataConfig`` that are flags; ``texts`` is an argument."""


@dataclass(frozen=True)
class BaseConfig:
    """What the other settings of a new training start from: keys at the top level of a config file."""

    recipe: str = setting("modern", f"Settings to start from: {' or '.join(RECIPES)}.", "Run")
    preset: str | None = setting(
        None, f"Size of the model: {', '.join(PRESETS)}. By default that of the recipe.", "Model"
    )
    input: Literal["characters", "words"] = setting("characters", "What the model reads.", "Model")


@dataclass(frozen=True)
class DataConfig:
    """The table ``[data]`` of a config file."""

    texts: tuple[str, ...] = setting((), "Text files, directories or patterns to train on.", is_path=True)
    held_out: tuple[str, ...] = setting(
        (),
        "Validation text. The model with the lowest perplexity on it is kept.",
        "Text",
        is_path=True,
    )
    held_out_sentences: int = setting(
        HELD_OUT_SENTENCES, "Largest number of held-out sentences. If there are more, they are sampled.", "Text"
    )
    vocabulary: str | None = setting(None, "Vocabulary file, as written by elmokit vocab.", "Text", is_path=True)
    max_words: int | None = setting(
        None, "Size of the vocabulary, if it is made of the text's most frequent words (alternative).", "Text"
    )


@dataclass(frozen=True)
class TrainingSettings:
    """The merged layers of the settings of a new training, before the size of the vocabulary is known."""

    table: Table
    data: DataConfig
    input: str
    source: str
    """Where the settings come from, for error messages."""

    def config(self, n_words: int) -> TrainingConfig:
        """Check the settings and build the config.

        Args:
            n_words: Size of the vocabulary, which is the size of a word-input model's table.

        Raises:
            ConfigError: A setting is unknown or cannot be used.
        """
        table = self.table
        if self.input == "words":
            table = deep_merge(table, {"model": {"char_cnn": None, "n_words": n_words}})
        return from_dict(TrainingConfig, table, self.source)


def training_settings(
    recipe: str | None, preset: str | None, config: str | Path | None, settings: Mapping[str, Any]
) -> TrainingSettings:
    """Merge the settings of a new training.

    Args:
        recipe: Name of a recipe; None for that of the config file, or ``modern``.
        preset: Name of a model size; None for that of the config file, or the recipe's.
        config: A TOML file.
        settings: Flat settings, which override all others.

    Raises:
        ConfigError: The file cannot be read; a recipe, preset or setting does not exist.
    """
    own = nested_settings(settings)
    table = {} if config is None else read_toml(config)
    recipe = check_choice("recipe", recipe or table.pop("recipe", BaseConfig.recipe), RECIPES)
    preset = preset or table.pop("preset", None)
    for name in ("recipe", "preset"):
        table.pop(name, None)
    base = to_dict(RECIPES[recipe])
    if preset is not None:
        base["model"] = to_dict(PRESETS[check_choice("preset", preset, PRESETS)])
    if any(name in layer for layer in (table, own) for name in LENGTHS):
        base |= dict.fromkeys(LENGTHS)  # a length of one's own replaces the recipe's, whatever its unit
    data = from_dict(DataConfig, table.pop("data", {}), f"{config}, data")
    merged = deep_merge(deep_merge(base, table), own)
    source = "the settings" if config is None else str(config)
    inputs = get_args(get_type_hints(BaseConfig)["input"])
    return TrainingSettings(merged, data, check_choice("input", merged.pop("input", BaseConfig.input), inputs), source)


def finetuning_config(model: PretrainedBiLM, config: str | Path | None, settings: Mapping[str, Any]) -> TrainingConfig:
    """Build the config of a fine-tuning; the model's sizes and its kind of softmax are the defaults.

    Args:
        model: The model to fine-tune.
        config: A TOML file.
        settings: Flat settings, which override those of the file.

    Raises:
        ConfigError: A setting is unknown or cannot be used, or would change the sizes of the model.
    """
    own = nested_settings(settings)
    table = {} if config is None else read_toml(config)
    has_length = any(name in layer for layer in (table, own) for name in LENGTHS)
    base: Table = {name: value for name, value in FINETUNING.items() if not (name in LENGTHS and has_length)}
    base["model"] = to_dict(model.bilm.config)
    if "softmax" not in table:  # a table in the file describes the whole softmax
        base["softmax"] = to_dict(SoftmaxConfig() if model.softmax is None else softmax_config(model.softmax))
    built = from_dict(TrainingConfig, deep_merge(deep_merge(base, table), own), str(config or "the settings"))
    if dataclasses.replace(built.model, dropout=0.0) != dataclasses.replace(model.bilm.config, dropout=0.0):
        raise ConfigError(
            f"{config or 'the settings'}, model: the sizes of a trained model cannot change; only its dropout can."
        )
    return built


def nested_settings(settings: Mapping[str, Any]) -> Table:
    """Sort flat settings into the tables of ``TrainingConfig``.

    Raises:
        ConfigError: There is no such setting.
    """
    flat = {field.name for field in dataclasses.fields(TrainingConfig)} - {"model", "softmax"} | {"input"}
    table: Table = {}
    for name, value in settings.items():
        if name in MODEL_SETTINGS:
            table.setdefault("model", {})[name] = value
        elif name in SOFTMAX_SETTINGS:
            table.setdefault("softmax", {})[SOFTMAX_SETTINGS[name]] = value
        elif name in flat:
            table[name] = value
        else:
            known = {*flat, *MODEL_SETTINGS, *SOFTMAX_SETTINGS}
            raise ConfigError(f"There is no setting {name!r}. {did_you_mean(name, known)}")
    return table
