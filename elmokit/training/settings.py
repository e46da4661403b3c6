"""Build a ``TrainingConfig`` from layers: recipe, preset, config file, keyword arguments or flags.

Each layer overrides the previous ones. Keyword arguments and flags are flat (``hidden_dim=512``), while a config file
and ``TrainingConfig`` nest the sizes in ``model`` and the softmax in ``softmax``.

A config file may be bilm-tf's ``options.json``. Each of its keys has a setting of elmokit with the same meaning:

================================  ================================================================================
``bidirectional``                 ``model.bidirectional``; false if absent
``char_cnn``                      ``model.char_cnn``; if absent, the model reads words
``lstm``                          ``model.hidden_dim``, ``projection_dim``, ``n_layers``, ``cell_clip``,
                                  ``projection_clip``, ``skip_connections``
``dropout``                       ``model.dropout``
``all_clip_norm_val``             ``max_grad_norm``
``n_epochs``, ``n_train_tokens``  ``tokens``: as many batches as in bilm-tf; without ``n_train_tokens``, ``epochs``
``batch_size``, ``unroll_steps``  ``batch_size``, ``window_length``
``n_tokens_vocab``                ``data.max_words``, unless a vocabulary is given
``n_negative_samples_batch``      ``n_samples``; 0 if ``sample_softmax`` is false
``share_embedding_softmax``       ``softmax.kind = "tied"``
``learning_rate``                 ``learning_rate``; 0.2 if absent
================================  ================================================================================

What bilm-tf always does, and the dictionary does not mention, is in the recipe ``bilm-tf``: Adagrad, a constant
learning rate, a loss multiplied by the window length, and separate text orders for the directions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeGuard, get_args, get_type_hints

from elmokit.config import Table, check_at_least, check_choice, deep_merge, did_you_mean, from_dict, read_toml, to_dict
from elmokit.engine.architecture import PRESETS
from elmokit.engine.softmax import SoftmaxConfig
from elmokit.errors import ConfigError
from elmokit.formats import bilm_tf
from elmokit.former_names import SETTINGS
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.characters import N_CHARS
from elmokit.text.vocabulary import SPECIALS
from elmokit.training.training_config import (
    FINETUNING,
    FINETUNING_RATES,
    LENGTHS,
    RECIPES,
    BaseConfig,
    DataConfig,
    DistillationConfig,
    TrainingConfig,
)

RECIPE = "bilm-tf"
LEARNING_RATE = 0.2  # bilm-tf's default
_REQUIRED = ("dropout", "all_clip_norm_val", "n_epochs", "batch_size", "unroll_steps", "n_tokens_vocab", "lstm")
_OPTIONAL = (
    *("bidirectional", "char_cnn", "n_train_tokens", "n_negative_samples_batch", "sample_softmax"),
    *("share_embedding_softmax", "learning_rate"),
)
_OURS = ("card",)  # a model card, which elmokit writes and bilm-tf ignores
_TABLES = {
    "lstm": ("dim", "projection_dim", "n_layers", "cell_clip", "proj_clip", "use_skip_connections"),
    "char_cnn": (
        *("n_characters", "max_characters_per_token", "embedding", "filters", "activation", "n_highway"),
        "projection_after_highway",
    ),
}
# 261 characters in training and 262 at inference, where padding has an id of its own; elmokit reads both.
_CNN_VALUES = {"n_characters": (N_CHARS, N_CHARS + 1), "projection_after_highway": (True,)}


def settings_from_options(options: Mapping[str, Any], where: str, n_gpus: int = 1) -> Table:
    """Convert bilm-tf's options to the content of a config file. ``where`` names them in error messages."""
    check_at_least("n_gpus", n_gpus, 1)
    with bilm_tf.config_errors(where):
        _check_keys(options)
        # A new model has no weights, so the size of the word table comes from the options.
        model = bilm_tf.config_from_options(dict(options), {"embedding": (options["n_tokens_vocab"],)}, where)
        # Each GPU of bilm-tf reads `batch_size` rows, and their gradients are averaged, as in one batch of all rows.
        batch_size = bilm_tf.whole_from(options["batch_size"]) * n_gpus
        window_length = bilm_tf.whole_from(options["unroll_steps"])
        predictions_per_step = batch_size * window_length
        samples = bilm_tf.truth_from(options, "sample_softmax", True)
        table: Table = {
            "recipe": RECIPE,
            "model": to_dict(model),
            "softmax": {"kind": "tied" if bilm_tf.truth_from(options, "share_embedding_softmax") else "full"},
            "data": {"max_words": bilm_tf.whole_from(options["n_tokens_vocab"])},
            "input": "words" if model.char_cnn is None else "characters",
            "batch_size": batch_size,
            "window_length": window_length,
            "n_samples": bilm_tf.whole_from(options["n_negative_samples_batch"]) if samples else 0,
            "max_grad_norm": float(options["all_clip_norm_val"]),
            "learning_rate": float(options.get("learning_rate", LEARNING_RATE)),
        }
        if options.get("n_train_tokens") is None:
            return table | {"epochs": float(options["n_epochs"])}
        # bilm-tf counts whole batches in each epoch, and predictions as if they were tokens.
        n_tokens = bilm_tf.whole_from(options["n_train_tokens"])
        n_batches = n_tokens // predictions_per_step if predictions_per_step > 0 else 0
        check_at_least(f"n_train_tokens in batches of {batch_size} x {window_length}", n_batches, 1)
        return table | {"tokens": bilm_tf.whole_from(options["n_epochs"]) * n_batches * predictions_per_step}


def options_from_settings(config: TrainingConfig, n_words: int, n_predictions: int | None = None) -> dict[str, Any]:
    """Convert settings to the options that bilm-tf's trainer would write, without those that it cannot express."""
    options = bilm_tf.options_from_config(config.model)
    options["lstm"]["proj_clip"] = config.model.projection_clip  # without what only loaders of HDF5 files need
    if config.model.char_cnn is not None:
        options["char_cnn"]["n_characters"] = config.model.char_cnn.n_chars  # one less than at inference
    if n_predictions is None:
        length = {"n_epochs": config.epochs or 1}
    else:
        length = {"n_epochs": 1, "n_train_tokens": n_predictions}
    return {
        **options,
        **length,
        "all_clip_norm_val": config.max_grad_norm,
        "batch_size": config.batch_size,
        "unroll_steps": config.window_length,
        "n_tokens_vocab": n_words,
        "sample_softmax": config.n_samples > 0,
        "n_negative_samples_batch": config.n_samples,
        "share_embedding_softmax": config.softmax.kind == "tied",
        "learning_rate": config.learning_rate,
    }


def _check_keys(options: Mapping[str, Any]) -> None:
    """Check that all required keys are present, without unknown ones, which bilm-tf would silently ignore."""
    missing = [name for name in _REQUIRED if name not in options]
    if missing:
        raise ConfigError(
            f"training also needs {', '.join(missing)}. Use the options.json written by bilm-tf's trainer; the file "
            "published with a model is often for inference only."
        )
    _check_known(options, (*_REQUIRED, *_OPTIONAL, *_OURS))
    for name, known in _TABLES.items():
        _check_known(options.get(name, {}), known, f"{name}.")
    for name, values in _CNN_VALUES.items():
        value = options.get("char_cnn", {}).get(name, values[0])
        if value not in values:
            raise ConfigError(f"char_cnn.{name} is {value!r}; in bilm-tf's trainer it is {values[0]!r}.")


def _check_known(table: Mapping[str, Any], known: Collection[str], prefix: str = "") -> None:
    for name in table:
        if name not in known:
            raise ConfigError(f"bilm-tf has no option '{prefix}{name}'.{did_you_mean(name, known)}")


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

    A model that reads words first gets a small table, because their number is only known after counting the text.
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
        for layer in (table, own):
            kind = _softmax_kind(layer)
            if kind not in (None, "tied"):
                raise ConfigError(
                    f"The softmax is {kind!r}, but with input 'both', it must be 'tied' to the word table."
                )
        words = {"n_words": len(SPECIALS), "word_dim": merged["model"]["projection_dim"]}
        merged = deep_merge(merged, {"model": {"word_features": words}, "softmax": {"kind": "tied"}})
    return from_dict(TrainingConfig, merged, source, SETTINGS), data


def finetuning_settings(
    model: PretrainedBiLM,
    recipe: str | None,
    keep_optimizer: bool | None,
    config: ConfigSource | None,
    settings: Mapping[str, Any],
) -> tuple[TrainingConfig, bool | None]:
    """Merge the settings for fine-tuning; the model's sizes and kind of softmax are the defaults.

    Returns:
        How to train, and whether to keep the optimizer state: None keeps it if there is one.
    """
    own = nested_settings(settings)
    table, source = read_config(config)
    in_table = from_dict(BaseConfig, {"keep_optimizer": table.pop("keep_optimizer", None)}, source).keep_optimizer
    start = _recipe(recipe, table)
    base = _finetuning_base(model, start)
    if "softmax" in table:
        base["softmax"] = {}  # a table in the file describes the whole softmax
    if is_options_file(config):
        # bilm-tf's options also describe the vocabulary and input of a new model; here, the model determines them.
        table.pop("data", None)
        table.pop("input", None)
    training = from_dict(TrainingConfig, _merged_layers(base, table, own), source, SETTINGS)
    if dataclasses.replace(training.model, dropout=0.0) != dataclasses.replace(model.config, dropout=0.0):
        problem = "the sizes of a trained model cannot be changed, only its dropout."
        raise ConfigError(f"{source}, model: {problem}" if source else problem.capitalize())
    if keep_optimizer is None:
        keep_optimizer = in_table
    if keep_optimizer is None and start.is_modern:
        keep_optimizer = False
    return training, keep_optimizer


def _finetuning_base(model: PretrainedBiLM, recipe: TrainingConfig) -> Table:
    """Return the default settings for fine-tuning a model."""
    base = to_dict(recipe)
    for name, value in FINETUNING.items():
        if not recipe.is_modern and name in FINETUNING_RATES:
            continue  # bilm-tf's recipe has rates of its own
        if recipe.is_modern and model.softmax is None and name == "learning_rate":
            continue  # a new softmax learns its words at the rate of a training
        base[name] = value
    base["model"] = to_dict(model.config)
    base["softmax"] = to_dict(SoftmaxConfig() if model.softmax is None else model.softmax.config)
    return base


def _recipe(recipe: str | None, table: Table) -> TrainingConfig:
    """Return the settings of a recipe, named by an argument or by the config file (from which it is removed)."""
    in_table = table.pop("recipe", "modern")
    return RECIPES[check_choice("recipe", recipe or in_table, RECIPES)]


def is_options_file(config: ConfigSource | None) -> TypeGuard[str | Path]:
    """Check whether a config is bilm-tf's ``options.json``: all other config files are TOML."""
    return isinstance(config, str | Path) and Path(config).suffix == ".json"


def read_config(config: ConfigSource | None) -> tuple[Table, str]:
    """Read a TOML file or bilm-tf's ``options.json``; return the table, and its name for errors (empty for none)."""
    if config is None:
        return {}, ""
    if isinstance(config, Mapping):
        return dict(config), "the config"
    if is_options_file(config):
        return settings_from_options(bilm_tf.read_options(config), str(config)), str(config)
    return read_toml(config), str(config)


def _merged_layers(base: Table, table: Table, own: Table) -> Table:
    """Merge base values, a config file and explicit settings; a length replaces that of previous layers."""
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
            raise ConfigError(f"There is no setting {name!r}.{did_you_mean(name, known, SETTINGS)}")
    return table
