"""The published format: ``options.json`` and ``weights.hdf5``, as bilm-tf wrote and AllenNLP read them.

Layouts: every matrix is stored input-major (``y = x @ W``), convolutions as ``(1, width, char_dim, count)``, and tables
without our zero row for "no token".

bilm-tf's dump script gave one-layer and one-direction models names that no old loader can read. They are read under
these names, and written under the regular ones. The old loaders require tensors that some models do not have (a
backward direction, a projection): these are written as placeholders that change nothing, and dropped when the file is
read again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from elmokit.config import read_json
from elmokit.engine.config import BiLMConfig, CharCNNConfig, Shape, tensor_shapes
from elmokit.engine.state import Floats
from elmokit.errors import ConfigError, FormatError, ModelNotFoundError, OutputError, TensorMismatchError
from elmokit.formats.model import PretrainedBiLM, Weights
from elmokit.formats.table import SAME, Layout, TensorRow, read_through, to_theirs
from elmokit.storage.atomic import atomic_write
from elmokit.storage.hdf5 import check_dataset, create_hdf5, damage_as_format_error, read_dataset
from elmokit.text.characters import N_CHARS

FAMILY = "bilm-tf"

TRANSPOSED = Layout(lambda theirs: theirs.T, lambda ours: ours.T)
CONVOLUTION = Layout(lambda theirs: theirs[0].transpose(2, 1, 0), lambda ours: ours.transpose(2, 1, 0)[None])
WITHOUT_ZERO_ROW = Layout(
    lambda theirs: np.concatenate([np.zeros_like(theirs[:1]), theirs]),
    lambda ours: ours[1:],
)

# What a training checkpoint may leave in a file besides the biLM.
_LEFTOVERS = ("softmax/", "global_step", "train_perplexity")
_LEFTOVER_SUFFIXES = ("/Adagrad", "/Adam", "/Adam_1")


def table(config: BiLMConfig) -> list[TensorRow]:
    """List the tensors of a biLM by our names and bilm-tf's."""
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
    number = _number(config, d)
    regular = f"RNN_{number}/RNN/MultiRNNCell/Cell{k}/LSTMCell"
    odd: list[str] = []
    if config.n_layers == 1:
        odd.append(f"RNN_{number}/RNN/LSTMCell")
    if config.backward_only:  # bilm-tf gives a single direction no number, which the checkpoint reader takes for 0
        odd.append(f"RNN_0/RNN/MultiRNNCell/Cell{k}/LSTMCell")
    if not config.bidirectional:
        odd.append("rnn/LSTMCell" if config.n_layers == 1 else f"rnn/MultiRNNCell/Cell{k}/LSTMCell")
    rows = []
    for ours, theirs, untranslated, layout in (
        ("weight", "W_0", "kernel", TRANSPOSED),
        ("bias", "B", "bias", SAME),
        ("projection", "W_P_0", "projection/kernel", TRANSPOSED),
    ):
        if ours == "projection" and config.hidden_dim == config.projection_dim:
            continue
        also = tuple(f"{cell}/{untranslated if cell.startswith('rnn') else theirs}" for cell in odd)
        rows.append(TensorRow(f"directions.{d}.layers.{k}.{ours}", f"{regular}/{theirs}", layout, also))
    return rows


def _number(config: BiLMConfig, d: int) -> int:
    """Return the number of a direction in the files: 0 forward, 1 backward."""
    return int(config.read_backward[d])


def placeholders(config: BiLMConfig) -> dict[str, Shape]:
    """List the placeholder tensors that AllenNLP's and bilm-tf's loaders require besides the model's own."""
    shapes: dict[str, Shape] = {}
    cnn, dim, hidden_dim = config.char_cnn, config.projection_dim, config.hidden_dim
    if cnn is not None and cnn.n_features == dim:
        shapes |= {"CNN_proj/W_proj": (dim, dim), "CNN_proj/b_proj": (dim,)}
    whole = {"W_0": (2 * dim, 4 * hidden_dim), "B": (4 * hidden_dim,), "W_P_0": (hidden_dim, dim)}
    for number in range(2):
        for k in range(config.n_layers):
            cell = f"RNN_{number}/RNN/MultiRNNCell/Cell{k}/LSTMCell"
            if bool(number) not in config.read_backward:
                shapes |= {f"{cell}/{name}": shape for name, shape in whole.items()}
            elif hidden_dim == dim:
                shapes[f"{cell}/W_P_0"] = whole["W_P_0"]
    return shapes


def _placeholder(name: str, shape: Shape) -> Floats:
    """Return a placeholder: the identity for a projection, otherwise zeros, because an LSTM of zeros outputs zeros."""
    is_square = len(shape) == 2 and shape[0] == shape[1]
    is_projection = is_square and name.endswith(("W_P_0", "W_proj"))
    return np.eye(shape[0], dtype=np.float32) if is_projection else np.zeros(shape, np.float32)


def load(options_path: str | Path, weights_path: str | Path) -> PretrainedBiLM:
    """Open a published model.

    Raises:
        ModelNotFoundError: A file is missing.
        FormatError, TensorMismatchError, ConfigError: A file is damaged or of another format, or the two do not
            belong together.
    """
    options = read_options(options_path)
    try:
        file = h5py.File(weights_path, "r")
    except FileNotFoundError:
        raise ModelNotFoundError(f"There is no weight file {weights_path}.") from None
    except OSError as error:
        raise FormatError(
            f"{weights_path} is not a readable HDF5 file ({error}). It may be truncated: download or copy it again."
        ) from None
    with contextlib.ExitStack() as on_error:
        on_error.enter_context(file)
        shapes = _shapes(file)
        config = config_from_options(options, shapes, str(options_path))
        read = _reader(file, weights_path)
        extra = {name: shape for name, shape in placeholders(config).items() if shapes.get(name) == shape}
        if all(np.array_equal(read(name), _placeholder(name, shape)) for name, shape in extra.items()):
            shapes = {name: shape for name, shape in shapes.items() if name not in extra}
        what = f"{weights_path} (sizes from {options_path})"
        arrays = read_through(table(config), tensor_shapes(config), shapes, read, what)
        on_error.pop_all()  # the arrays read from the open file; it is closed with them
    card = options.get("card")
    card = card if isinstance(card, dict) else {}
    return PretrainedBiLM(Weights(config, arrays), FAMILY, source=Path(weights_path), card=card)


def save(model: PretrainedBiLM, options_path: str | Path, weights_path: str | Path, overwrite: bool = False) -> None:
    """Write a biLM for AllenNLP's and bilm-tf's loaders, with its model card in the options file.

    The format cannot hold anything else: the softmax, its words and the start state are left out.

    Raises:
        OutputError: A file exists and may not be overwritten, or cannot be written; or the model has word and character
            tables of its own, which the format cannot hold.
    """
    config = model.config
    if model.lexicon is not None or config.word_features is not None:
        raise OutputError(
            f"{weights_path}: the HDF5 format cannot hold a word or character lexicon, and this model needs one. "
            "Write a directory instead: a path without .hdf5 or .h5."
        )
    with atomic_write(options_path, overwrite) as options, atomic_write(weights_path, overwrite) as weights:
        card = {name: fact for name, fact in model.card.items() if name != "warm_state"}  # describes what is left out
        content = options_from_config(config) | ({"card": card} if card else {})
        options.write_text(json.dumps(content) + "\n", encoding="utf-8")
        with create_hdf5(weights) as (file, _):
            for name, array in to_theirs(model.arrays, table(config)):
                file.create_dataset(name, data=array)
            for name, shape in placeholders(config).items():
                file.create_dataset(name, data=_placeholder(name, shape))


def read_options(path: str | Path) -> dict[str, Any]:
    """Read an options file.

    Raises:
        ModelNotFoundError, FormatError: The file is missing, or not an options file.
    """
    options = read_json(path, f"There is no options file {path}.", max_bytes=1 << 24)
    if not isinstance(options.get("lstm"), dict):
        raise FormatError(f"{path} is JSON but not an ELMo options file: it has no table 'lstm'.")
    return options


def config_from_options(options: dict[str, Any], shapes: dict[str, Shape], where: str) -> BiLMConfig:
    """Convert the content of an options file to a config. Training settings in it are ignored.

    The numbers of characters and words come from the weights: both 261 and 262 characters occur in options files of the
    same weights. So does the number of directions if the options do not give it.

    Args:
        shapes: The shape of every tensor in the weights, by its name there.
        where: The options file, for error messages.

    Raises:
        ConfigError: A required key is missing or has an invalid value.
    """
    lstm = options["lstm"]
    with config_errors(where):
        char_cnn = n_words = None
        if "char_cnn" in options:
            cnn = options["char_cnn"]
            if (n_chars := n_rows(shapes, "char_embed", N_CHARS)) < N_CHARS:
                raise ConfigError(
                    f"char_embed has {n_chars} rows; the bytes of UTF-8 and the special characters are {N_CHARS}."
                )
            char_cnn = CharCNNConfig(
                filters=filters_from(cnn["filters"]),
                char_dim=cnn["embedding"]["dim"],
                n_highway=cnn.get("n_highway") or 0,
                activation=cnn["activation"],
                max_chars=cnn["max_characters_per_token"],
                n_chars=n_chars,
            )
        elif "embedding" in shapes:
            n_words = n_rows(shapes, "embedding")
        else:
            raise TensorMismatchError(
                f"{where} has no 'char_cnn' and the weights have no 'embedding': nothing says how tokens are read."
            )
        bidirectional = bool(options.get("bidirectional", any(name.startswith("RNN_1/") for name in shapes)))
        return BiLMConfig(
            char_cnn=char_cnn,
            n_words=n_words,
            projection_dim=lstm["projection_dim"],
            hidden_dim=lstm["dim"],
            n_layers=lstm.get("n_layers", 1),
            cell_clip=clip_from(lstm.get("cell_clip")),
            projection_clip=clip_from(lstm.get("proj_clip")),
            skip_connections=bool(lstm.get("use_skip_connections", False)),
            bidirectional=bidirectional,
            backward_only=bool(options.get("reverse")) and not bidirectional,
            dropout=options.get("dropout", 0.0),
        )


def options_from_config(config: BiLMConfig) -> dict[str, Any]:
    """Convert a config to the content of an options file for inference."""
    options: dict[str, Any] = {
        "bidirectional": config.bidirectional,
        **({"reverse": True} if config.backward_only else {}),
        "dropout": config.dropout,
        "lstm": {
            "dim": config.hidden_dim,
            "projection_dim": config.projection_dim,
            "n_layers": config.n_layers,
            "use_skip_connections": config.skip_connections,
            # AllenNLP requires both keys. No clip is null, because bilm-tf clips to 0 if it reads 0.
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


@contextlib.contextmanager
def config_errors(where: str) -> Iterator[None]:
    """Turn whatever a missing key or a value of the wrong type raises into a ConfigError that names the file.

    Raises:
        ConfigError: A key is missing, or a value has the wrong type or is out of range.
    """
    try:
        yield
    except KeyError as error:
        raise ConfigError(
            f"{where}: there is no key {error}. Use the configuration file that came with the weights."
        ) from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ConfigError(f"{where}: a value has the wrong type ({error}).") from None
    except ConfigError as error:
        raise ConfigError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None


def filters_from(value: Any) -> tuple[tuple[int, int], ...]:
    """Convert the pairs ``(width, count)`` of a configuration."""
    return tuple((int(width), int(count)) for width, count in value)


def clip_from(value: Any) -> float | None:
    """Convert a clip; 0 and None both mean none, as in AllenNLP."""
    return float(value) if value else None


def n_rows(shapes: Mapping[str, Shape], name: str, default: int = 1) -> int:
    """Return the number of rows of a table, or the default if the table is missing.

    Raises:
        ConfigError: The tensor is a scalar.
    """
    shape = shapes.get(name, (default,))
    if not shape:
        raise ConfigError(f"the tensor {name} is a single number; expected a table with one row per entry.")
    return shape[0]


def _shapes(file: h5py.File) -> dict[str, Shape]:
    """Return the shape of each dataset but training leftovers, and check that each is stored completely."""
    shapes: dict[str, Shape] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not name.startswith(_LEFTOVERS) and not name.endswith(_LEFTOVER_SUFFIXES):
            check_dataset(item, file.filename)
            shapes[name] = item.shape

    with damage_as_format_error(file.filename):
        file.visititems(note)
    return shapes


def _reader(file: h5py.File, path: str | Path) -> Callable[[str], Floats]:
    def read(name: str) -> Floats:
        with damage_as_format_error(path):
            return read_dataset(file[name], path)

    return read
