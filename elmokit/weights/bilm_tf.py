"""The published format: ``options.json`` and ``weights.hdf5`` as bilm-tf wrote and AllenNLP read them.

Names and layouts: every matrix is stored input-major (``y = x @ W``), convolutions as ``(1, width,
char_dim, count)``, tables without the zero row that stands for "no token". One-layer and one-direction
models left bilm-tf's dump script under names that no old loader reads; they are read here as they are,
and written under the regular names. What the old loaders ask for and a model has not (a backward direction, a
projection) is written as a stand-in that changes nothing, and left out when it is read again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import torch
from torch import Tensor

from elmokit.bilm import BiLM, BiLMConfig, CharCNNConfig
from elmokit.config import read_json
from elmokit.errors import ConfigError, FormatError, ModelNotFoundError, OutputError, TensorMismatchError
from elmokit.io.atomic import atomic_write
from elmokit.io.hdf5 import check_dataset, create_hdf5, damage_as_format_error, read_dataset
from elmokit.text.characters import N_CHARS
from elmokit.weights.model import PretrainedBiLM
from elmokit.weights.table import SAME, Layout, Shape, TensorRow, fill, to_theirs

FAMILY = "bilm-tf"

TRANSPOSED = Layout(lambda theirs: theirs.t(), lambda ours: ours.t())
CONVOLUTION = Layout(lambda theirs: theirs[0].permute(2, 1, 0), lambda ours: ours.permute(2, 1, 0)[None])
WITHOUT_ZERO_ROW = Layout(
    lambda theirs: torch.cat([torch.zeros_like(theirs[:1]), theirs]),
    lambda ours: ours[1:],
)

# What a whole training checkpoint may leave in a file beside the biLM.
_LEFTOVERS = ("softmax/", "global_step", "train_perplexity")
_LEFTOVER_SUFFIXES = ("/Adagrad", "/Adam", "/Adam_1")


def table(config: BiLMConfig) -> list[TensorRow]:
    """The tensors of a biLM by our names and theirs."""
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
                place = f"token_layer.highways.{k}.{ours}"
                rows.append(TensorRow(f"{place}.weight", f"CNN_high_{k}/W_{theirs}", TRANSPOSED))
                rows.append(TensorRow(f"{place}.bias", f"CNN_high_{k}/b_{theirs}"))
        if cnn.n_features != config.projection_dim:
            rows.append(TensorRow("token_layer.projection.weight", "CNN_proj/W_proj", TRANSPOSED))
            rows.append(TensorRow("token_layer.projection.bias", "CNN_proj/b_proj"))
    for d in range(config.n_directions):
        for k in range(config.n_layers):
            rows += _lstm_rows(config, d, k)
    return rows


def _lstm_rows(config: BiLMConfig, d: int, k: int) -> list[TensorRow]:
    """One layer in one direction: the regular names, and what bilm-tf's dump made of odd shapes."""
    regular = f"RNN_{d}/RNN/MultiRNNCell/Cell{k}/LSTMCell"
    odd: list[str] = []
    if config.n_layers == 1:
        odd.append(f"RNN_{d}/RNN/LSTMCell")
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


def stand_ins(config: BiLMConfig) -> dict[str, Shape]:
    """What AllenNLP's and bilm-tf's loaders ask for beyond the model's own tensors, by their names."""
    shapes: dict[str, Shape] = {}
    cnn, dim, hidden_dim = config.char_cnn, config.projection_dim, config.hidden_dim
    if cnn is not None and cnn.n_features == dim:
        shapes |= {"CNN_proj/W_proj": (dim, dim), "CNN_proj/b_proj": (dim,)}
    whole = {"W_0": (2 * dim, 4 * hidden_dim), "B": (4 * hidden_dim,), "W_P_0": (hidden_dim, dim)}
    for d in range(2):
        for k in range(config.n_layers):
            cell = f"RNN_{d}/RNN/MultiRNNCell/Cell{k}/LSTMCell"
            if d >= config.n_directions:
                shapes |= {f"{cell}/{name}": shape for name, shape in whole.items()}
            elif hidden_dim == dim:
                shapes[f"{cell}/W_P_0"] = whole["W_P_0"]
    return shapes


def _stand_in(name: str, shape: Shape) -> Tensor:
    """A unit matrix for a projection, which changes nothing; else zeros: an LSTM of zeros puts out zeros."""
    is_square = len(shape) == 2 and shape[0] == shape[1]
    return torch.eye(shape[0]) if is_square and name.endswith(("W_P_0", "W_proj")) else torch.zeros(shape)


def load(options_path: str | Path, weights_path: str | Path) -> PretrainedBiLM:
    """Open a published model.

    Raises:
        ModelNotFoundError: a file is missing.
        FormatError, TensorMismatchError, ConfigError: a file is damaged or of another kind, or the two do not
            belong together.
    """
    options = read_options(options_path)
    try:
        file = h5py.File(weights_path, "r")
    except FileNotFoundError:
        raise ModelNotFoundError(f"There is no weight file {weights_path}.") from None
    except OSError as error:
        raise FormatError(
            f"{weights_path} is no readable HDF5 file ({error}). It may be cut short: download or copy it again."
        ) from None
    with file:
        shapes = _shapes(file)
        config = config_from_options(options, shapes, str(options_path))
        read = _reader(file, weights_path)
        extra = {name: shape for name, shape in stand_ins(config).items() if shapes.get(name) == shape}
        if all(torch.equal(read(name), _stand_in(name, shape)) for name, shape in extra.items()):
            shapes = {name: shape for name, shape in shapes.items() if name not in extra}
        with torch.device("meta"):
            bilm = BiLM(config)
        fill(bilm, table(config), shapes, read, f"{weights_path} (sizes from {options_path})")
    card = options.get("card")
    return PretrainedBiLM(bilm, FAMILY, source=Path(weights_path), card=card if isinstance(card, dict) else {})


def save(model: PretrainedBiLM, options_path: str | Path, weights_path: str | Path, overwrite: bool = False) -> None:
    """Write a model's biLM for AllenNLP's and bilm-tf's loaders, its card in the options; there is no place for more.

    Raises:
        OutputError: a file exists and may not be overwritten, or cannot be written; or the model has word and character
            tables of its own, for which the format has no place.
    """
    config = model.bilm.config
    if model.lexicon is not None or config.word_features is not None:
        raise OutputError(
            f"{weights_path}: the HDF5 format holds no word or character lexicon, and this model needs one. "
            "Write a folder instead: a path without .hdf5 or .h5."
        )
    with atomic_write(options_path, overwrite) as options, atomic_write(weights_path, overwrite) as weights:
        card = {name: fact for name, fact in model.card.items() if name != "warm_state"}  # there is no place for it
        content = options_from_config(config) | ({"card": card} if card else {})
        options.write_text(json.dumps(content) + "\n", encoding="utf-8")
        with create_hdf5(weights) as (file, _):
            extra = {name: _stand_in(name, shape) for name, shape in stand_ins(config).items()}
            for name, tensor in (to_theirs(model.bilm, table(config)) | extra).items():
                file.create_dataset(name, data=tensor.float().numpy())


def read_options(path: str | Path) -> dict[str, Any]:
    """The content of an options file.

    Raises:
        ModelNotFoundError, FormatError: it is missing, or no options file.
    """
    options = read_json(path, f"There is no options file {path}.", max_bytes=1 << 24)
    if not isinstance(options.get("lstm"), dict):
        raise FormatError(f"{path} is JSON but no ELMo options file: it has no table 'lstm'.")
    return options


def config_from_options(options: dict[str, Any], shapes: dict[str, Shape], where: str) -> BiLMConfig:
    """Sizes and switches from an options file; training leftovers in it are ignored.

    How many characters or words there are, and where the options are silent how many directions, is read off the
    weights: both 261 and 262 characters occur in options files of the same weights.

    Raises:
        ConfigError: a needed key is missing or its value cannot be.
    """
    lstm = options["lstm"]
    try:
        char_cnn = n_words = None
        if "char_cnn" in options:
            cnn = options["char_cnn"]
            if (n_chars := n_rows(shapes, "char_embed", N_CHARS)) < N_CHARS:
                raise ConfigError(f"char_embed has {n_chars} rows; the bytes of UTF-8 and the marks are {N_CHARS}.")
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
                f"{where} has no 'char_cnn' and the weights have no 'embedding': nothing says how tokens come in."
            )
        return BiLMConfig(
            char_cnn=char_cnn,
            n_words=n_words,
            projection_dim=lstm["projection_dim"],
            hidden_dim=lstm["dim"],
            n_layers=lstm.get("n_layers", 1),
            cell_clip=clip_from(lstm.get("cell_clip")),
            projection_clip=clip_from(lstm.get("proj_clip")),
            skip_connections=bool(lstm.get("use_skip_connections", False)),
            bidirectional=bool(options.get("bidirectional", any(name.startswith("RNN_1/") for name in shapes))),
            dropout=options.get("dropout", 0.0),
        )
    except KeyError as error:
        raise ConfigError(
            f"{where}: there is no key {error}. Use the options file that came with the weights."
        ) from None
    except WRONG_KINDS as error:
        raise ConfigError(f"{where}: a value is of the wrong kind ({error}).") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def options_from_config(config: BiLMConfig) -> dict[str, Any]:
    """An options file for inference, in bilm-tf's words."""
    options: dict[str, Any] = {
        "bidirectional": config.bidirectional,
        "dropout": config.dropout,
        "lstm": {
            "dim": config.hidden_dim,
            "projection_dim": config.projection_dim,
            "n_layers": config.n_layers,
            "use_skip_connections": config.skip_connections,
            # AllenNLP wants both keys; bilm-tf takes 0 for a bound, so that no clip is null.
            "cell_clip": config.cell_clip,
            "proj_clip": config.projection_clip,
        },
    }
    clip = config.projection_clip
    if config.hidden_dim == config.projection_dim and clip is not None and clip < 1:
        options["lstm"]["proj_clip"] = None  # a stand-in for the projection must not be clipped; outputs are below 1
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


WRONG_KINDS = (TypeError, ValueError, AttributeError, OverflowError)
"""What reading sizes raises where a value is of the wrong kind."""


def filters_from(value: Any) -> tuple[tuple[int, int], ...]:
    """The pairs ``(width, count)`` of a configuration; raises one of ``WRONG_KINDS`` where there are none."""
    return tuple((int(width), int(count)) for width, count in value)


def clip_from(value: Any) -> float | None:
    """0 and absent both mean no clip, as in AllenNLP; raises one of ``WRONG_KINDS`` where it is no number."""
    return float(value) if value else None


def n_rows(shapes: Mapping[str, Shape], name: str, default: int = 1) -> int:
    """The rows of a table of weights, or the default where there is no such table.

    Raises:
        ConfigError: it is a single number.
    """
    shape = shapes.get(name, (default,))
    if not shape:
        raise ConfigError(f"the tensor {name} is a single number, where a table with one row for each entry belongs.")
    return shape[0]


def _shapes(file: h5py.File) -> dict[str, Shape]:
    """The shape of each dataset by its name, training leftovers apart; each must be stored as large as it says."""
    shapes: dict[str, Shape] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not name.startswith(_LEFTOVERS) and not name.endswith(_LEFTOVER_SUFFIXES):
            check_dataset(item, file.filename)
            shapes[name] = item.shape

    with damage_as_format_error(file.filename):
        file.visititems(note)
    return shapes


def _reader(file: h5py.File, path: str | Path) -> Callable[[str], Tensor]:
    def read(name: str) -> Tensor:
        with damage_as_format_error(path):
            return torch.from_numpy(read_dataset(file[name], path))

    return read
