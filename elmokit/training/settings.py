"""Build a ``TrainingConfig`` from layers: recipe, preset, config file, keyword arguments or flags.

Each layer overrides the ones before it. Keyword arguments and flags are flat (``hidden_dim=512``), while a config file
and ``TrainingConfig`` nest the sizes in ``model`` and the softmax in ``softmax``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard, get_args, get_type_hints

from elmokit.config import Table, check_choice, deep_merge, did_you_mean, from_dict, read_toml, to_dict
from elmokit.engine.config import PRESETS
from elmokit.engine.softmax import SoftmaxConfig
from elmokit.errors import ConfigError
from elmokit.formats import bilm_tf
from elmokit.formats.model import PretrainedBiLM
from elmokit.text.vocabulary import SPECIALS
from elmokit.training.bilm_tf_options import settings_from_options
from elmokit.training.config import (
    FINETUNING,
    FINETUNING_RATES,
    LENGTHS,
    RECIPES,
    BaseConfig,
    DataConfig,
    DistillationConfig,
    TrainingConfig,
)

MODEL_SETTINGS = ("hidden_dim", "projection_dim", "n_layers", "dropout", "bidirectional")
"""Fields of ``BiLMConfig`` that are flat settings, too."""
SOFTMAX_SETTINGS = {"softmax": "kind", "softmax_inner_dim": "inner_dim"}
"""Flat settings of the softmax, and the fields of ``SoftmaxConfig`` that they set."""
DISTILLATION_SETTINGS = tuple(field.name for field in dataclasses.fields(DistillationConfig))
"""Fields of ``DistillationConfig``, which are flat settings, too."""
DATA_SETTINGS = ("held_out", "held_out_sentences", "vocabulary", "max_words")
"""Fields of ``DataConfig`` that are flags; ``texts`` is an argument."""


ConfigSource = Path | str | Mapping[str, Any]
"""A config file, or its content as a table."""


def training_settings(
    recipe: str | None, preset: str | None, config: ConfigSource | None, settings: Mapping[str, Any]
) -> tuple[TrainingConfig, DataConfig]:
    """Merge the settings of a new training: how to train, and the table ``[data]`` of the config file.

    A model that reads words gets a table of few words: their number is known only when the text has been counted.
    """
    own = nested_settings(settings)
    table, source = read_config(config)
    base = to_dict(_recipe(recipe, table))
    given_preset = table.pop("preset", None)
    preset = preset or given_preset
    if preset is not None:
        base["model"] = to_dict(PRESETS[check_choice("preset", preset, PRESETS)])
    data = from_dict(DataConfig, table.pop("data", {}), f"{source}, data" if source else "")
    merged = _merged_layers(base, table, own)
    inputs = get_args(get_type_hints(BaseConfig)["input"])
    reads = check_choice("input", merged.pop("input", BaseConfig.input), inputs)
    if reads == "words":
        merged = deep_merge(merged, {"model": {"char_cnn": None, "n_words": len(SPECIALS)}})
    elif reads == "both":
        kinds = {_softmax_kind(layer) for layer in (table, own)} - {None, "tied"}
        if kinds:
            raise ConfigError(
                f"The softmax is {kinds.pop()!r}, but with input 'both' it is 'tied': it shares the table of words."
            )
        words = {"n_words": len(SPECIALS), "word_dim": merged["model"]["projection_dim"]}
        merged = deep_merge(merged, {"model": {"word_features": words}, "softmax": {"kind": "tied"}})
    return from_dict(TrainingConfig, merged, source), data


def finetuning_settings(
    model: PretrainedBiLM,
    recipe: str | None,
    keep_optimizer: bool | None,
    config: ConfigSource | None,
    settings: Mapping[str, Any],
) -> tuple[TrainingConfig, bool | None]:
    """Merge the settings of a fine-tuning; the model's sizes and its kind of softmax are the defaults.

    Returns:
        How to train, and whether to keep the optimizer's state: None keeps it where there is one.
    """
    own = nested_settings(settings)
    table, source = read_config(config)
    in_table = from_dict(BaseConfig, {"keep_optimizer": table.pop("keep_optimizer", None)}, source).keep_optimizer
    keeps = in_table if keep_optimizer is None else keep_optimizer
    start = _recipe(recipe, table)
    base = to_dict(start)
    base |= {name: value for name, value in FINETUNING.items() if start.is_modern or name not in FINETUNING_RATES}
    base["model"] = to_dict(model.config)
    base["softmax"] = to_dict(SoftmaxConfig() if model.softmax is None else model.softmax.config)
    if "softmax" in table:
        base["softmax"] = {}  # a table in the file describes the whole softmax
    # bilm-tf's options describe the vocabulary and the input of a new model, too; here the model decides them.
    if is_options_file(config):
        table = {name: value for name, value in table.items() if name not in ("data", "input")}
    training = from_dict(TrainingConfig, _merged_layers(base, table, own), source)
    if dataclasses.replace(training.model, dropout=0.0) != dataclasses.replace(model.config, dropout=0.0):
        problem = "the sizes of a trained model cannot change; only its dropout can."
        raise ConfigError(f"{source}, model: {problem}" if source else problem.capitalize())
    return training, False if keeps is None and start.is_modern else keeps


def _recipe(recipe: str | None, table: Table) -> TrainingConfig:
    """Return the settings of a recipe, which an argument or, taken out of it, the config file names."""
    in_table = table.pop("recipe", "modern")
    return RECIPES[check_choice("recipe", recipe or in_table, RECIPES)]


def is_options_file(config: ConfigSource | None) -> TypeGuard[str | Path]:
    """Check whether a config is bilm-tf's ``options.json``: all other config files are TOML."""
    return isinstance(config, str | Path) and Path(config).suffix == ".json"


def read_config(config: ConfigSource | None) -> tuple[Table, str]:
    """Read a TOML file or bilm-tf's ``options.json``; return the table, and what errors call it (empty for none)."""
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


def _softmax_kind(layer: Table) -> object:
    softmax = layer.get("softmax")
    return softmax.get("kind") if isinstance(softmax, Mapping) else None


def nested_settings(settings: Mapping[str, Any]) -> Table:
    """Sort flat settings into the tables of ``TrainingConfig``."""
    nested = {"model", "softmax", "distillation"}
    flat = {field.name for field in dataclasses.fields(TrainingConfig)} - nested | {"input"}
    table: Table = {}
    for name, value in settings.items():
        if name in MODEL_SETTINGS:
            table.setdefault("model", {})[name] = value
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
