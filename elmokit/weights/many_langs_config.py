"""The configuration of an ELMoForManyLangs model: found, checked, and in our words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

from elmokit.bilm import BiLMConfig, CharCNNConfig, WordFeaturesConfig
from elmokit.config import read_json
from elmokit.errors import ConfigError, FormatError, TensorMismatchError
from elmokit.weights.bilm_tf import WRONG_KINDS, clip_from, filters_from, n_rows
from elmokit.weights.table import Shape

FAMILY = "ELMoForManyLangs"
WORD_TABLE = "token_embedder.word_emb_layer.embedding.weight"
CHAR_TABLE = "token_embedder.char_emb_layer.embedding.weight"
_MAX_CHARS = 10_000  # published: 50; a forged size must not make every token a huge row


class Settings(NamedTuple):
    """The configuration of the network as it stands in a file."""

    encoder: dict[str, Any]
    token_embedder: dict[str, Any]
    dropout: Any
    where: str
    is_stock: bool = False

    @property
    def max_chars(self) -> int:
        """Characters in a token's row, its begin and end marks included."""
        return _count(self.token_embedder, "max_characters_per_token", self.where, most=_MAX_CHARS)


def read_settings(folder: Path) -> Settings:
    """Find the configuration of the network.

    ``config.json`` names it in ``config_path``, often by a path on the author's machine. It is looked for in the
    folder alone, under that path where it leads nowhere else, and under its bare name; else it is the stock
    configuration of the published models.

    Raises:
        ModelNotFoundError: there is no ``config.json``.
        FormatError: a file is damaged, or describes a network that is not supported.
    """
    run = read_json(folder / "config.json")
    named = run.get("config_path")
    if not isinstance(named, str) or not named:
        raise FormatError(f"{folder / 'config.json'} has no 'config_path': it is no configuration of {FAMILY}.")
    windows = PureWindowsPath(named)  # parts end at slashes of either kind
    is_inside = not windows.anchor and ".." not in windows.parts
    places = [folder / named, folder / windows.name] if is_inside else [folder / windows.name]
    place = next((place for place in places if _is_file(place)), None)
    content = stock_settings(windows.name) if place is None else read_json(place)
    where = f"the stock configuration, as {folder} holds no {windows.name!r}" if place is None else str(place)
    for part in ("encoder", "token_embedder"):
        if not isinstance(content.get(part), dict):
            raise FormatError(f"{where} has no table {part!r}: it is no configuration of {FAMILY}.")
    settings = Settings(
        content["encoder"], content["token_embedder"], content.get("dropout", 0.0), where, place is None
    )
    _refuse_other_networks(settings)
    return settings


def stock_settings(name: str) -> dict[str, Any]:
    """The configuration that the published models share.

    A name such as ``cnn_50_100_512_4096_sample.json`` tells the sizes of characters, words, projection and cell;
    those are also the sizes where a name tells none.
    """
    match = re.match(r"cnn_(\d{1,9})_(\d{1,9})_(\d{1,9})_(\d{1,9})", name)
    char_dim, word_dim, projection_dim, dim = (int(size) for size in match.groups()) if match else (50, 100, 512, 4096)
    return {
        "encoder": {
            "name": "elmo",
            "projection_dim": projection_dim,
            "dim": dim,
            "n_layers": 2,
            "cell_clip": 3,
            "proj_clip": 3,
        },
        "token_embedder": {
            "name": "cnn",
            "activation": "relu",
            "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
            "n_highway": 2,
            "word_dim": word_dim,
            "char_dim": char_dim,
            "max_characters_per_token": 50,
        },
        "dropout": 0.1,
    }


def _refuse_other_networks(settings: Settings) -> None:
    for part, given, known, reason in (
        (
            "encoder",
            settings.encoder,
            "elmo",
            "its second layer reads both directions of the first, so that they are no two independent language models",
        ),
        ("token_embedder", settings.token_embedder, "cnn", "it reads characters with an LSTM, not with a char CNN"),
    ):
        name = str(given.get("name", "")).lower()
        if name != known:
            because = f": {reason}" if name == "lstm" else ""
            raise FormatError(
                f"{settings.where}: the {part} {name!r} is not supported{because}. Only {known!r} can be opened."
            )


def bilm_config(settings: Settings, shapes: Mapping[str, Shape]) -> BiLMConfig:
    """Sizes and switches of the network; how many words and characters there are is read off the tables.

    Args:
        shapes: the shape of every tensor by its name, the file's stem in front.

    Raises:
        ConfigError: a key is missing, a value cannot be, or our network has no such projection.
        TensorMismatchError: layers in the tensors and in the configuration differ in number.
    """
    where, encoder, tokens = settings.where, settings.encoder, settings.token_embedder
    word_dim, char_dim = (_count(tokens, name, where, least=0) for name in ("word_dim", "char_dim"))
    n_layers = _count(encoder, "n_layers", where)
    _check_number(shapes, r"encoder\.forward_layer_(\d+)\..*", n_layers, f"{where}: n_layers")
    words = cnn = None
    try:
        if word_dim:
            words = WordFeaturesConfig(n_rows(shapes, WORD_TABLE), word_dim)
        if char_dim:
            filters = filters_from(tokens["filters"])
            n_highway = _count(tokens, "n_highway", where, least=0)
            _check_number(shapes, r"token_embedder\.convolutions\.(\d+)\.bias", len(filters), f"{where}: filters")
            _check_number(shapes, r"token_embedder\.highways\._layers\.(\d+)\..*", n_highway, f"{where}: n_highway")
            cnn = CharCNNConfig(
                filters=filters,
                char_dim=char_dim,
                n_highway=n_highway,
                activation=tokens["activation"].lower(),
                max_chars=settings.max_chars,
                n_chars=n_rows(shapes, CHAR_TABLE),
            )
        config = BiLMConfig(
            char_cnn=cnn,
            word_features=words,
            projection_dim=_count(encoder, "projection_dim", where),
            hidden_dim=_count(encoder, "dim", where),
            n_layers=n_layers,
            cell_clip=clip_from(encoder.get("cell_clip")),
            projection_clip=clip_from(encoder.get("proj_clip")),
            dropout=settings.dropout,
        )
    except KeyError as error:
        raise ConfigError(f"{where}: there is no key {error}.") from None
    except WRONG_KINDS as error:
        raise ConfigError(f"{where}: a value is of the wrong kind ({error}).") from None
    except ConfigError as error:
        raise ConfigError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None
    _refuse_equal_sizes(config, where)
    return config


def _refuse_equal_sizes(config: BiLMConfig, where: str) -> None:
    """There every projection is a tensor of its own; here there is none between equal sizes."""
    cnn = config.char_cnn
    if config.hidden_dim == config.projection_dim:
        equal = "encoder.dim"
    elif cnn is not None and config.word_features is None and cnn.n_features == config.projection_dim:
        equal = "the sum of the filters, without words beside it,"
    else:
        return
    raise ConfigError(
        f"{where}: {equal} equals projection_dim ({config.projection_dim}). {FAMILY} projects there all the same and "
        "this network does not, so that such a model is not supported."
    )


def _count(settings: Mapping[str, Any], name: str, where: str, least: int = 1, most: int = 2**31) -> int:
    value = settings.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{where}: {name} is {value!r}; it is a whole number from {least} to {most}.")
    return value


def _is_file(place: Path) -> bool:
    try:
        return place.is_file()
    except OSError:  # a name that no file can have
        return False


def _check_number(shapes: Mapping[str, Shape], pattern: str, given: int, name: str) -> None:
    """So many layers as the tensors have: an absurd number is refused before a network of it is built."""
    found = {match[1] for tensor in shapes if (match := re.fullmatch(pattern, tensor))}
    if len(found) != given:
        raise TensorMismatchError(
            f"{name} says {given}, and the tensors are of {len(found)}. Configuration and weights are not of one model."
        )
