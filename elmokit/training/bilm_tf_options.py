"""bilm-tf's ``options.json`` as the settings of a training, and back.

bilm-tf's trainer reads all its settings from one dictionary, which it also writes to ``options.json`` next to its
checkpoints. Each key has a setting of elmokit with the same meaning:

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

What the dictionary does not say, because bilm-tf does it always, is in the recipe ``bilm-tf``: Adagrad, a constant
learning rate, a loss that is multiplied by the window length, and an order of the text for each direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elmokit.config import Table, check_at_least, did_you_mean, to_dict
from elmokit.errors import ConfigError
from elmokit.formats import bilm_tf
from elmokit.text.characters import N_CHARS
from elmokit.training.config import TrainingConfig

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
        # Of a new model there are no weights, so the size of the word table comes from the options.
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
    """Convert settings to the options that bilm-tf's trainer would have written; what it cannot express is left out."""
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
    """Check that all required keys are there, and no unknown ones, which bilm-tf would silently ignore."""
    if missing := [name for name in _REQUIRED if name not in options]:
        raise ConfigError(
            f"training needs {', '.join(missing)}, too. Use the options.json that bilm-tf's trainer wrote; the file "
            "that is published with a model is often for inference only."
        )
    tables: dict[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {"": (options, (*_REQUIRED, *_OPTIONAL, *_OURS))}
    tables |= {f"{name}.": (options.get(name, {}), inner) for name, inner in _TABLES.items()}
    for prefix, (table, known) in tables.items():
        if unknown := [name for name in table if name not in known]:
            raise ConfigError(f"bilm-tf has no option '{prefix}{unknown[0]}'. {did_you_mean(unknown[0], known)}")
    for name, values in _CNN_VALUES.items():
        value = options.get("char_cnn", {}).get(name, values[0])
        if value not in values:
            raise ConfigError(f"char_cnn.{name} is {value!r}; in bilm-tf's trainer it is {values[0]!r}.")
