"""Find and check the configuration of an ELMoForManyLangs model, and convert it to a ``BiLMConfig``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

from elmokit.config import check_at_least, read_json
from elmokit.engine.config import BiLMConfig, CharCNNConfig, Shape, WordFeaturesConfig
from elmokit.errors import ConfigError, FormatError
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

    @property
    def max_chars(self) -> int:
        """Characters per token, including its begin and end marks. The token embedder "lstm" does not cut tokens."""
        if _kind(self.token_embedder) == "lstm":
            return _MAX_CHARS
        n_chars: Any = self.token_embedder.get("max_characters_per_token")
        with config_errors(self.where):
            check_at_least("max_characters_per_token", n_chars, 1, _MAX_CHARS)
        return int(n_chars)


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
    with config_errors(where):
        encoder, tokens = content["encoder"], content["token_embedder"]
        network, reader = _kind(encoder), _kind(tokens)
        # The encoder "lstm" is not two language models: its second layer reads both directions of the first. The token
        # embedder "lstm" with characters concatenates tensors of two and of three dimensions, which PyTorch refuses.
        is_known = reader == "cnn" or (reader == "lstm" and not tokens.get("char_dim"))
        if network != "elmo" or not is_known:
            raise FormatError(
                f"{where}: the encoder {network!r} with the token_embedder {reader!r} is not supported; expected "
                "'elmo' with 'cnn', or with 'lstm' and char_dim 0."
            )
        return ManyLangsSettings(encoder, tokens, content.get("dropout", 0.0), where, path is None)


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


def _kind(table: Mapping[str, Any]) -> str:
    return str(table.get("name", "")).lower()


def bilm_config(settings: ManyLangsSettings, shapes: Mapping[str, Shape]) -> BiLMConfig:
    """Convert the settings to a config. The numbers of words and characters come from the shapes of the tables."""
    where, encoder, tokens = settings.where, settings.encoder, settings.token_embedder
    words = cnn = None
    with config_errors(where):
        if word_dim := tokens["word_dim"]:
            words = WordFeaturesConfig(n_rows(shapes, WORD_TABLE), word_dim)
        if char_dim := tokens["char_dim"]:
            cnn = CharCNNConfig(
                filters=filters_from(tokens["filters"]),
                char_dim=char_dim,
                n_highway=tokens["n_highway"],
                activation=tokens["activation"].lower(),
                max_chars=settings.max_chars,
                n_chars=n_rows(shapes, CHAR_TABLE),
            )
        config = BiLMConfig(
            char_cnn=cnn,
            word_features=words,
            projection_dim=encoder["projection_dim"],
            hidden_dim=encoder["dim"],
            n_layers=encoder["n_layers"],
            cell_clip=clip_from(encoder.get("cell_clip")),
            projection_clip=clip_from(encoder.get("proj_clip")),
            dropout=settings.dropout,
        )
    _refuse_equal_sizes(config, settings)
    return config


def _refuse_equal_sizes(config: BiLMConfig, settings: ManyLangsSettings) -> None:
    """Refuse equal sizes: ELMoForManyLangs always has a projection there, and our network has none."""
    cnn = config.char_cnn
    if config.hidden_dim == config.projection_dim:
        equal = "encoder.dim"
    elif cnn is not None and config.word_features is None and cnn.n_features == config.projection_dim:
        equal = "the sum of the filters, without words,"
    else:
        return
    raise ConfigError(
        f"{settings.where}: {equal} equals projection_dim ({config.projection_dim}), where elmokit's network has no "
        f"projection and that of {FAMILY} has one."
    )
