"""Build a ``TrainingConfig`` from layers: recipe, preset, config file, keyword arguments or flags.

Each layer overrides the ones before it. Keyword arguments and flags are flat (``hidden_dim=512``), while a config file
and ``TrainingConfig`` nest the sizes in ``model`` and the softmax in ``softmax``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard, get_args, get_type_hints

from elmokit.config import Table, check_choice, deep_merge, did_you_mean, from_dict, read_toml, setting, to_dict
from elmokit.engine.config import PRESETS
from elmokit.engine.softmax import SoftmaxConfig
from elmokit.errors import ConfigError
from elmokit.formats import bilm_tf
from elmokit.formats.model import PretrainedBiLM
from elmokit.training.bilm_tf_options import settings_from_options
from elmokit.training.config import FINETUNING, LENGTHS, RECIPES, DistillationConfig, TrainingConfig
from elmokit.training.corpus import HELD_OUT_SENTENCES

MODEL_SETTINGS = ("hidden_dim", "projection_dim", "n_layers", "dropout", "bidirectional", "backward_only")
"""Fields of ``BiLMConfig`` that are flat settings, too."""
SOFTMAX_SETTINGS = {"softmax": "kind", "cutoffs": "cutoffs"}
"""Flat settings of the softmax, and the fields of ``SoftmaxConfig`` that they set."""
DISTILLATION_SETTINGS = tuple(field.name for field in dataclasses.fields(DistillationConfig))
"""Fields of ``DistillationConfig``, which are flat settings, too."""
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
class ContinuationConfig:
    """What the other settings of a fine-tuning start from: keys at the top level of a config file."""

    recipe: str = setting(
        "modern",
        f"Settings to start from: {' or '.join(RECIPES)}. bilm-tf continues a training as bilm-tf's restart.py does.",
        "Run",
    )
    keep_optimizer: bool | None = setting(
        None,
        "Continue with the optimizer's state of the checkpoint that the model is from. By default, the recipe bilm-tf "
        "keeps it where there is one, and others start with a new optimizer.",
        "Optimization",
    )


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
        None, "Vocabulary size: keep the text's N most frequent words (instead of `vocabulary`).", "Text"
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


ConfigSource = str | Path | Mapping[str, Any]
"""A config file, or its content as a table."""


def training_settings(
    recipe: str | None, preset: str | None, config: ConfigSource | None, settings: Mapping[str, Any]
) -> TrainingSettings:
    """Merge the settings of a new training.

    Args:
        recipe: Name of a recipe; None for that of the config file, or ``modern``.
        preset: Name of a model size; None for that of the config file, or the recipe's.
        config: A config file or its content, as in :func:`read_config`.
        settings: Flat settings, which override all others.

    Raises:
        ConfigError: The file cannot be read; a recipe, preset or setting does not exist.
    """
    own = nested_settings(settings)
    table, source = read_config(config)
    recipe = check_choice("recipe", recipe or table.pop("recipe", BaseConfig.recipe), RECIPES)
    preset = preset or table.pop("preset", None)
    for name in ("recipe", "preset"):
        table.pop(name, None)
    base = to_dict(RECIPES[recipe])
    if preset is not None:
        base["model"] = to_dict(PRESETS[check_choice("preset", preset, PRESETS)])
    data = from_dict(DataConfig, table.pop("data", {}), f"{source}, data" if source else "")
    merged = _merged_layers(base, table, own)
    inputs = get_args(get_type_hints(BaseConfig)["input"])
    return TrainingSettings(merged, data, check_choice("input", merged.pop("input", BaseConfig.input), inputs), source)


def finetuning_settings(
    model: PretrainedBiLM,
    recipe: str | None,
    keep_optimizer: bool | None,
    config: ConfigSource | None,
    settings: Mapping[str, Any],
) -> tuple[TrainingConfig, ContinuationConfig]:
    """Build the settings of a fine-tuning; the model's sizes and its kind of softmax are the defaults.

    Args:
        model: The model to fine-tune.
        recipe: Name of a recipe; None for that of the config file, or ``modern``.
        keep_optimizer: As in ``ContinuationConfig``; None for the value in the config file.
        config: A config file or its content, as in :func:`read_config`.
        settings: Flat settings, which override those of the file.

    Raises:
        ConfigError: A setting is unknown or cannot be used, or would change the sizes of the model.
    """
    own = nested_settings(settings)
    table, source = read_config(config)
    given = {"recipe": recipe, "keep_optimizer": keep_optimizer}
    given = {name: table.get(name) if value is None else value for name, value in given.items()}
    chosen = from_dict(ContinuationConfig, {name: value for name, value in given.items() if value is not None}, source)
    base = to_dict(RECIPES[check_choice("recipe", chosen.recipe, RECIPES)])
    # The learning rate of FINETUNING is for Adam; another recipe brings its own.
    base |= {name: value for name, value in FINETUNING.items() if chosen.recipe == "modern" or name != "learning_rate"}
    base["model"] = to_dict(model.config)
    base["softmax"] = to_dict(SoftmaxConfig() if model.softmax is None else model.softmax.config)
    if "softmax" in table:
        base["softmax"] = {}  # a table in the file describes the whole softmax
    # bilm-tf's options describe the vocabulary and the input of a new model, too; here the model decides them.
    left_out = {*given, "data", "input"} if is_options_file(config) else set(given)
    table = {name: value for name, value in table.items() if name not in left_out}
    built = from_dict(TrainingConfig, _merged_layers(base, table, own), source)
    if dataclasses.replace(built.model, dropout=0.0) != dataclasses.replace(model.config, dropout=0.0):
        problem = "the sizes of a trained model cannot change; only its dropout can."
        raise ConfigError(f"{source}, model: {problem}" if source else problem.capitalize())
    return built, chosen


def is_options_file(config: ConfigSource | None) -> TypeGuard[str | Path]:
    """Check whether a config is bilm-tf's ``options.json``: all other config files are TOML."""
    return isinstance(config, str | Path) and Path(config).suffix == ".json"


def read_config(config: ConfigSource | None) -> tuple[Table, str]:
    """Read a config file of a training.

    Args:
        config: A TOML file; bilm-tf's ``options.json`` (any name that ends in ``.json``), which is converted; the
            content of a TOML file as a table; or None for no settings.

    Returns:
        The table, and what to call it in error messages: empty without a file.

    Raises:
        ConfigError: The file cannot be read.
        ModelError: A JSON file cannot be read, or is not an options file.
    """
    if config is None:
        return {}, ""
    if isinstance(config, Mapping):
        return dict(config), "the config"
    if is_options_file(config):
        return settings_from_options(bilm_tf.read_options(config), str(config)), str(config)
    return read_toml(config), str(config)


def _merged_layers(base: Table, table: Table, own: Table) -> Table:
    """Merge base values, a config file and explicit settings; a length replaces that of the layers before it."""
    for layer in (table, own):
        if any(name in layer for name in LENGTHS):
            base = base | dict.fromkeys(LENGTHS)  # whatever its unit: epochs replace tokens
        base = deep_merge(base, layer)
    return base


def nested_settings(settings: Mapping[str, Any]) -> Table:
    """Sort flat settings into the tables of ``TrainingConfig``.

    Raises:
        ConfigError: The setting does not exist.
    """
    nested = {"model", "softmax", "distillation"}
    flat = {field.name for field in dataclasses.fields(TrainingConfig)} - nested | {"input"}
    table: Table = {}
    for name, value in settings.items():
        if name in MODEL_SETTINGS:
            model = table.setdefault("model", {})
            model[name] = value
            if name == "backward_only" and value:
                model.setdefault("bidirectional", False)
        elif name in SOFTMAX_SETTINGS:
            table.setdefault("softmax", {})[SOFTMAX_SETTINGS[name]] = value
        elif name in DISTILLATION_SETTINGS:
            table.setdefault("distillation", {})[name] = value
        elif name in flat:
            table[name] = value
        else:
            known = {*flat, *MODEL_SETTINGS, *SOFTMAX_SETTINGS}
            raise ConfigError(f"There is no setting {name!r}. {did_you_mean(name, known)}")
    return table
