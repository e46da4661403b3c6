"""bilm-tf's tensors and options, shared by its HDF5 files, its checkpoints and TF-Hub modules.

Layouts: every matrix is stored input-major (``y = x @ W``), convolutions as ``(1, width, char_dim, count)``, and tables
without our zero row for "no token".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.config import read_json
from elmokit.engine.architecture import BiLMConfig, CharCNNConfig, Shape
from elmokit.errors import ConfigError, FormatError, ModelNotFoundError, RaisedAgain
from elmokit.formats.tensor_rows import SAME, TensorLayout, TensorRow
from elmokit.storage.hdf5_files import SIGNATURE
from elmokit.text.characters import N_CHARS

TRANSPOSED = TensorLayout(lambda theirs: theirs.T, lambda ours: ours.T)
CONVOLUTION = TensorLayout(lambda theirs: theirs[0].transpose(2, 1, 0), lambda ours: ours.transpose(2, 1, 0)[None])
WITHOUT_ZERO_ROW = TensorLayout(
    lambda theirs: np.concatenate([np.zeros_like(theirs[:1]), theirs]),
    lambda ours: ours[1:],
)


def bilm_tf_rows(config: BiLMConfig) -> list[TensorRow]:
    """List the tensors of a biLM, with our names and bilm-tf's."""
    rows: list[TensorRow] = []
    if config.char_cnn is None:
        rows.append(TensorRow("token_layer.embedding.weight", "embedding", WITHOUT_ZERO_ROW))
    else:
        cnn = config.char_cnn
        rows.append(TensorRow("token_layer.char_embedding.weight", "char_embed", WITHOUT_ZERO_ROW))
        for k in range(len(cnn.filters)):
            rows.append(TensorRow(f"token_layer.convolutions.{k}.weight", f"CNN/W_cnn_{k}", CONVOLUTION))
            rows.append(TensorRow(f"token_layer.convolutions.{k}.bias", f"CNN/b_cnn_{k}"))
        for k in range(cnn.n_highway):
            for ours, theirs in (("gate", "carry"), ("transform", "transform")):
                prefix = f"token_layer.highways.{k}.{ours}"
                rows.append(TensorRow(f"{prefix}.weight", f"CNN_high_{k}/W_{theirs}", TRANSPOSED))
                rows.append(TensorRow(f"{prefix}.bias", f"CNN_high_{k}/b_{theirs}"))
        if cnn.n_features != config.projection_dim:
            rows.append(TensorRow("token_layer.projection.weight", "CNN_proj/W_proj", TRANSPOSED))
            rows.append(TensorRow("token_layer.projection.bias", "CNN_proj/b_proj"))
    for d in range(config.n_directions):
        for k in range(config.n_layers):
            rows += _lstm_rows(config, d, k)
    return rows


def _lstm_rows(config: BiLMConfig, d: int, k: int) -> list[TensorRow]:
    """List the tensors of one layer in one direction, with the irregular names of bilm-tf's dump script."""
    number = int(config.read_backward[d])  # in the files: 0 forward, 1 backward
    regular = f"RNN_{number}/RNN/MultiRNNCell/Cell{k}/LSTMCell"
    inner = "LSTMCell" if config.n_layers == 1 else f"MultiRNNCell/Cell{k}/LSTMCell"
    parts = [("weight", "W_0", "kernel", TRANSPOSED), ("bias", "B", "bias", SAME)]
    if config.hidden_dim != config.projection_dim:
        parts.append(("projection", "W_P_0", "projection/kernel", TRANSPOSED))
    rows = []
    for ours, theirs, untranslated, layout in parts:
        also = [f"RNN_{number}/RNN/{inner}/{theirs}"]  # without the number if there is one layer
        if not config.bidirectional:
            also.append(f"rnn/{inner}/{untranslated}")
        rows.append(TensorRow(f"directions.{d}.layers.{k}.{ours}", f"{regular}/{theirs}", layout, tuple(also)))
    return rows


def read_options(path: str | Path) -> dict[str, Any]:
    """Read an options file, or raise an error if it is another file."""
    if str(path) in ("", "."):  # tutorials and scripts have an empty string in place of the user's path
        raise ModelNotFoundError("The path of the options file is empty. Pass the file that came with the weights.")
    if Path(path).is_file():
        with Path(path).open("rb") as file:
            if file.read(len(SIGNATURE)) == SIGNATURE:
                raise FormatError(
                    f"{path} is an HDF5 file, but an options file is JSON. Were the options file and the weights "
                    "swapped?"
                )
    options = read_json(path, "options file")
    if not isinstance(options.get("lstm"), dict):
        raise FormatError(f"{path} is not an ELMo options file: it has no table 'lstm'.")
    return options


def config_from_options(options: dict[str, Any], shapes: dict[str, Shape], where: str) -> BiLMConfig:
    """Convert the content of an options file (``where``) to a config. Training settings are ignored."""
    # The numbers of characters and words come from the tensor shapes, because options files for the same weights say
    # 261 or 262 characters. The number of directions also does if the options omit it.
    lstm = options["lstm"]
    with config_errors(where):
        char_cnn = n_words = None
        if "char_cnn" in options:
            cnn = options["char_cnn"]
            if (n_chars := n_rows(shapes, "char_embed", N_CHARS)) < N_CHARS:
                raise ConfigError(
                    f"char_embed has {n_chars} rows; expected {N_CHARS}, for UTF-8 bytes and special characters."
                )
            char_cnn = CharCNNConfig(
                filters=filters_from(cnn["filters"]),
                char_dim=cnn["embedding"]["dim"],
                n_highway=cnn.get("n_highway") or 0,
                activation=cnn["activation"],
                max_chars=cnn["max_characters_per_token"],
                n_chars=n_chars,
            )
        else:
            n_words = n_rows(shapes, "embedding")
        bidirectional = truth_from(options, "bidirectional", any(name.startswith("RNN_1/") for name in shapes))
        return BiLMConfig(
            char_cnn=char_cnn,
            n_words=n_words,
            projection_dim=lstm["projection_dim"],
            hidden_dim=lstm["dim"],
            n_layers=lstm.get("n_layers", 1),
            cell_clip=clip_from(lstm.get("cell_clip")),
            projection_clip=clip_from(lstm.get("proj_clip")),
            skip_connections=truth_from(lstm, "use_skip_connections"),
            bidirectional=bidirectional,
            dropout=options.get("dropout", 0.0),
        )


def options_from_config(config: BiLMConfig) -> dict[str, Any]:
    """Convert a config to the content of an options file for inference."""
    options: dict[str, Any] = {
        "bidirectional": config.bidirectional,
        "dropout": config.dropout,
        "lstm": {
            "dim": config.hidden_dim,
            "projection_dim": config.projection_dim,
            "n_layers": config.n_layers,
            "use_skip_connections": config.skip_connections,
            # AllenNLP requires both keys. A missing clip is null, because bilm-tf would clip to 0 if it were 0.
            "cell_clip": config.cell_clip,
            "proj_clip": config.projection_clip,
        },
    }
    clip = config.projection_clip
    if config.hidden_dim == config.projection_dim and clip is not None and clip < 1:
        options["lstm"]["proj_clip"] = None  # a placeholder projection must not clip; LSTM outputs are below 1
    if config.char_cnn is not None:
        cnn = config.char_cnn
        options["char_cnn"] = {
            "activation": cnn.activation,
            "embedding": {"dim": cnn.char_dim},
            "filters": [list(spec) for spec in cnn.filters],
            "max_characters_per_token": cnn.max_chars,
            "n_characters": cnn.n_chars + 1,
            "n_highway": cnn.n_highway,
        }
    return options


def config_errors(where: str) -> RaisedAgain:
    """Turn errors caused by missing keys or values of the wrong type into a ConfigError that names the file."""

    def raise_again(error: Exception) -> None:
        if isinstance(error, ConfigError):
            raise ConfigError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None
        if isinstance(error, KeyError):
            raise ConfigError(f"{where}: the key {error} is missing.") from None
        if isinstance(error, IndexError | TypeError | ValueError | AttributeError | OverflowError):
            raise ConfigError(f"{where}: a value has the wrong type ({error}).") from None

    return RaisedAgain(raise_again)


def filters_from(value: Any) -> tuple[tuple[int, int], ...]:
    """Convert the pairs ``(width, count)`` of a configuration."""
    return tuple((whole_from(width), whole_from(count)) for width, count in value)


def whole_from(value: Any) -> int:
    """Convert a whole number, which a file may hold as 20.0; raise a ValueError instead of rounding others."""
    number = int(value)
    if number != value:
        raise ValueError(f"{value!r} is not a whole number")
    return number


def truth_from(table: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """Read ``true`` or ``false``; anything else is a ConfigError, because the text ``"false"`` would be true."""
    value = table.get(name, default)
    if value not in (None, False, True):
        raise ConfigError(f"{name} is {value!r}. Expected true or false.")
    return bool(value)


def clip_from(value: Any) -> float | None:
    """Convert a clip; 0 and None both disable it, as in AllenNLP."""
    return float(value) if value else None


def n_rows(shapes: Mapping[str, Shape], name: str, default: int = 1) -> int:
    """Return a table's number of rows, or the default if the table is missing or a scalar."""
    return (*shapes.get(name, ()), default)[0]
