"""Find and check the configuration of an ELMoForManyLangs model, and convert it to a ``BiLMConfig``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

from elmokit.config import read_json
from elmokit.engine.config import BiLMConfig, CharCNNConfig, Shape, WordFeaturesConfig
from elmokit.errors import ConfigError, FormatError, TensorMismatchError
from elmokit.formats.bilm_tf import clip_from, config_errors, filters_from, n_rows
from elmokit.storage.bounded import is_file

FAMILY = "ELMoForManyLangs"
WORD_TABLE = "token_embedder.word_emb_layer.embedding.weight"
CHAR_TABLE = "token_embedder.char_emb_layer.embedding.weight"
_MAX_CHARS = 10_000  # 50 in published models; a forged size must not make every token a huge row


class ManyLangsSettings(NamedTuple):
    """The configuration of the network as it is in the file."""

    encoder: dict[str, Any]
    token_embedder: dict[str, Any]
    dropout: Any
    where: str
    is_stock: bool = False
    family: str = FAMILY
    """The program whose network it is, for error messages."""

    @property
    def max_chars(self) -> int:
        """Characters per token, including its begin and end marks. The token embedder "lstm" does not cut tokens."""
        if _kind(self.token_embedder) == "lstm":
            return _MAX_CHARS
        return _count(self.token_embedder, "max_characters_per_token", self.where, most=_MAX_CHARS)


def read_settings(folder: Path) -> ManyLangsSettings:
    """Find the configuration of the network."""
    # config.json names it in `config_path`, often by a path on the author's machine. It is only searched for inside the
    # model's directory, under that path and under its file name. If it is not there, it is the stock configuration.
    run = read_json(folder / "config.json")
    named = run.get("config_path")
    if not isinstance(named, str) or not named:
        raise FormatError(f"{folder / 'config.json'} has no 'config_path': it is not a configuration of {FAMILY}.")
    windows = PureWindowsPath(named)  # splits at either kind of slash
    is_inside = not windows.anchor and ".." not in windows.parts
    candidates = [folder / named, folder / windows.name] if is_inside else [folder / windows.name]
    path = next((path for path in candidates if is_file(path)), None)
    content = stock_settings(windows.name) if path is None else read_json(path)
    where = f"the stock configuration, as {folder} holds no {windows.name!r}" if path is None else str(path)
    for table in ("encoder", "token_embedder"):
        if not isinstance(content.get(table), dict):
            raise FormatError(f"{where} has no table {table!r}: it is not a configuration of {FAMILY}.")
    settings = ManyLangsSettings(
        content["encoder"], content["token_embedder"], content.get("dropout", 0.0), where, path is None
    )
    _refuse_other_networks(settings)
    return settings


def stock_settings(name: str) -> dict[str, Any]:
    """Make the configuration that the published models share."""
    # A name such as `cnn_50_100_512_4096_sample.json` gives the sizes of characters, words, projection and cell; those
    # of this example are the default.
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


def _refuse_other_networks(settings: ManyLangsSettings) -> None:
    encoder, tokens = (_kind(table) for table in (settings.encoder, settings.token_embedder))
    if encoder != "elmo":
        because = (
            ": its second layer reads both directions of the first, so they are not two independent language models"
            if encoder == "lstm"
            else ""
        )
        raise FormatError(
            f"{settings.where}: the encoder {encoder!r} is not supported{because}. Only 'elmo' can be opened."
        )
    if tokens == "lstm" and settings.token_embedder.get("char_dim"):
        # It concatenates tensors of two and of three dimensions, which PyTorch refuses.
        raise FormatError(
            f"{settings.where}: the token_embedder 'lstm' with characters is not supported: {FAMILY} itself stops with "
            "an error in it, so its vectors are undefined. With char_dim 0 it can be opened."
        )
    if tokens not in ("cnn", "lstm"):
        raise FormatError(
            f"{settings.where}: the token_embedder {tokens!r} is not supported. Only 'cnn', and 'lstm' without "
            "characters, can be opened."
        )


def _kind(table: Mapping[str, Any]) -> str:
    return str(table.get("name", "")).lower()


def bilm_config(settings: ManyLangsSettings, shapes: Mapping[str, Shape]) -> BiLMConfig:
    """Convert the settings to a config. The numbers of words and characters come from the shapes of the tables."""
    where, encoder, tokens = settings.where, settings.encoder, settings.token_embedder
    word_dim, char_dim = (_count(tokens, name, where, least=0) for name in ("word_dim", "char_dim"))
    n_layers = _count(encoder, "n_layers", where)
    _check_number(shapes, r"encoder\.forward_layer_(\d+)\..*", n_layers, f"{where}: n_layers")
    words = cnn = None
    with config_errors(where):
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
    _refuse_equal_sizes(config, settings)
    return config


def _refuse_equal_sizes(config: BiLMConfig, settings: ManyLangsSettings) -> None:
    """Refuse equal sizes: ELMoForManyLangs and fastNLP always have a projection there, and our network has none."""
    cnn = config.char_cnn
    if config.hidden_dim == config.projection_dim:
        equal = "encoder.dim"
    elif cnn is not None and config.word_features is None and cnn.n_features == config.projection_dim:
        equal = "the sum of the filters, without words,"
    else:
        return
    raise ConfigError(
        f"{settings.where}: {equal} equals projection_dim ({config.projection_dim}). {settings.family} has a "
        "projection there and elmokit's network has none, so such a model is not supported."
    )


def _count(settings: Mapping[str, Any], name: str, where: str, least: int = 1, most: int = 2**31) -> int:
    value = settings.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{where}: {name} is {value!r}; it is a whole number from {least} to {most}.")
    return value


def _check_number(shapes: Mapping[str, Shape], pattern: str, given: int, name: str) -> None:
    """Compare with the number of layers in the tensors, so that a huge number is refused before a network is built."""
    numbers = {match[1] for tensor in shapes if (match := re.fullmatch(pattern, tensor))}
    if len(numbers) != given:
        raise TensorMismatchError(
            f"{name} says {given}, and the tensors have {len(numbers)}. Configuration and weights are of "
            "different models."
        )
