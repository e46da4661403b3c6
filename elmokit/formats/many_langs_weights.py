"""The format of ELMoForManyLangs (Che et al. 2018): a directory with two lexicons and two pickled state dicts.

======================  ==================================================================================
``config.json``         the arguments of a training run. Only ``config_path`` is used: the file with the sizes,
                        often a path on the author's machine
``word.dic``            ``word<TAB>row`` per line; absent if ``word_dim`` is 0
``char.dic``            ``character<TAB>row`` per line; absent if ``char_dim`` is 0
``token_embedder.pkl``  word table, char CNN, projection
``encoder.pkl``         the LSTMs
``classifier.pkl``      the softmax over the training words; not read
``meta.json``           in the NLPL repository: corpus and author; copied to the model card
======================  ==================================================================================

Differences from our network: gates are in the order i, f, g, o, and the forget bias includes the 1 that our network
adds itself; input and recurrent weights are two matrices, and the two branches of a highway layer are one; the
highway's gate opens for the carried branch instead of the transformed one; and the names of the marks for the begin and
end of a token are swapped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np

from elmokit.config import check_at_least, read_json
from elmokit.engine.architecture import BiLMConfig, CharCNNConfig, Shape, WordFeaturesConfig, tensor_shapes
from elmokit.errors import ConfigError, FormatError, TensorMismatchError, reading
from elmokit.formats.bilm_tf import WITHOUT_ZERO_ROW, clip_from, config_errors, filters_from, n_rows
from elmokit.formats.format import Format
from elmokit.formats.sidecars import with_meta, with_words
from elmokit.formats.tensor_rows import GATE_BIAS, GATES, Array, TensorLayout, TensorRow, read_through, same_shape
from elmokit.formats.torch_save import read_state_dict
from elmokit.pretrained.model import PretrainedBiLM, Weights
from elmokit.text.lexicon import Lexicon, Marks

FAMILY = "ELMoForManyLangs"
WORD_TABLE = "token_embedder.word_emb_layer.embedding.weight"
CHAR_TABLE = "token_embedder.char_emb_layer.embedding.weight"
_MAX_CHARS = 10_000  # 50 in published models; limits the memory per token
# The training code put <eow> before each token and <bow> after it, so a reader must do the same.
MARKS = Marks(
    unknown="<oov>",
    begin_sentence="<bos>",
    end_sentence="<eos>",
    begin_token="<eow>",
    end_token="<bow>",
    padding="<pad>",
)
_HIGHWAY = re.compile(r"token_embedder\.highways\._layers\.\d+\.(weight|bias)")
_ENTRY = re.compile(r"(?:(?P<token>[^\t]*)\t)?(?P<row>[0-9]{1,9})")
_NAMELESS = "\u3000"  # a .dic line without a token means the ideographic space


NEGATED = TensorLayout(np.negative, np.negative, same_shape)


class ManyLangs(Format):
    """A directory of ELMoForManyLangs."""

    name = FAMILY
    description = "a directory of ELMoForManyLangs"
    reads_options = False
    files = ("*.json", "*.dic", "*.pkl")

    def recognizes(self, path: Path) -> bool:
        if not (path / "encoder.pkl").is_file():
            return False
        companions = ("token_embedder.pkl", "word.dic", "char.dic")  # some of them may be missing
        return any((path / name).is_file() for name in companions)

    def guess(self, folder: Path) -> str | None:
        return "an ELMoForManyLangs model" if (folder / "encoder.pkl").is_file() else None

    def load(self, path: Path, options: Path | None = None, words: Path | None = None) -> PretrainedBiLM:
        settings = read_settings(path)
        stored: dict[str, Array] = {}
        for part in ("token_embedder", "encoder"):
            for name, tensor in read_state_dict(path / f"{part}.pkl").items():
                stored[f"{part}.{name}"] = tensor.numpy()
        tensors = parts_by_name(stored)
        for array in tensors.values():
            array.flags.writeable = False  # the model keeps it
        shapes = {name: array.shape for name, array in tensors.items()}
        config = bilm_config(settings, shapes)
        what = f"{path} (sizes from {settings.where})"
        arrays = read_through(many_langs_rows(config), tensor_shapes(config), shapes, tensors.__getitem__, what)
        word_entries = char_entries = None
        if config.word_features is not None:
            word_entries = read_entries(path / "word.dic", config.word_features.n_words)
        if config.char_cnn is not None:
            char_entries = read_entries(path / "char.dic", config.char_cnn.n_chars)
        lexicon = Lexicon(MARKS, settings.max_chars, words=word_entries, chars=char_entries)
        card: dict[str, Any] = {}
        if settings.is_stock:
            card["sizes"] = settings.where
        if (path / "classifier.pkl").is_file():
            card["left out"] = (
                "classifier.pkl, the softmax: it has a column for all unlisted words, which our softmax does not have"
            )
        model = PretrainedBiLM(Weights(config, arrays), self.name, source=path, card=card, lexicon=lexicon)
        return with_words(with_meta(model, path), words)


def many_langs_rows(config: BiLMConfig) -> list[TensorRow]:
    """List the tensors of a biLM, with both names. See ``parts_by_name`` for joined and split tensors."""
    rows: list[TensorRow] = []
    if config.word_features is not None:
        rows.append(TensorRow("token_layer.word_embedding.weight", WORD_TABLE, WITHOUT_ZERO_ROW))
    if config.char_cnn is not None:
        ours = "token_layer" if config.word_features is None else "token_layer.chars"
        rows += _char_rows(config.char_cnn, ours)
    for kind in ("weight", "bias"):
        rows.append(TensorRow(f"token_layer.projection.{kind}", f"token_embedder.projection.{kind}"))
    for d, direction in enumerate(("forward", "backward")):
        for k in range(config.n_layers):
            ours, theirs = f"directions.{d}.layers.{k}", f"encoder.{direction}_layer_{k}"
            rows.append(TensorRow(f"{ours}.weight", f"{theirs}.[input|state]_linearity.weight", GATES))
            rows.append(TensorRow(f"{ours}.bias", f"{theirs}.state_linearity.bias", GATE_BIAS))
            rows.append(TensorRow(f"{ours}.projection", f"{theirs}.state_projection.weight"))
    return rows


def _char_rows(cnn: CharCNNConfig, ours: str) -> list[TensorRow]:
    """List the tensors of the char CNN, except the projection."""
    rows = [TensorRow(f"{ours}.char_embedding.weight", CHAR_TABLE, WITHOUT_ZERO_ROW)]
    for k in range(len(cnn.filters)):
        for kind in ("weight", "bias"):
            rows.append(TensorRow(f"{ours}.convolutions.{k}.{kind}", f"token_embedder.convolutions.{k}.{kind}"))
    for k in range(cnn.n_highway):
        for kind in ("weight", "bias"):
            theirs = f"token_embedder.highways._layers.{k}.{kind}"
            rows.append(TensorRow(f"{ours}.highways.{k}.transform.{kind}", f"{theirs}[first half]"))
            rows.append(TensorRow(f"{ours}.highways.{k}.gate.{kind}", f"{theirs}[second half]", NEGATED))
    return rows


def parts_by_name(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Split and join tensors to match ours: ``x[first half]``, ``[input|state]_linearity``."""
    # Tensors that do not fit together keep their names, so they are reported as unexpected.
    parts = dict(tensors)
    for name, array in tensors.items():
        if _HIGHWAY.fullmatch(name) and array.ndim:
            first, second = np.array_split(parts.pop(name), 2)
            parts[f"{name}[first half]"] = first
            parts[f"{name}[second half]"] = second
        elif name.endswith(".input_linearity.weight"):
            cell = name.removesuffix(".input_linearity.weight")
            state = tensors.get(f"{cell}.state_linearity.weight")
            if state is not None and array.ndim == state.ndim == 2 and len(array) == len(state):
                del parts[name], parts[f"{cell}.state_linearity.weight"]
                parts[f"{cell}.[input|state]_linearity.weight"] = np.concatenate([array, state], axis=1)
    return parts


def read_entries(path: Path, n_rows: int) -> tuple[str | None, ...]:
    """Read the entry of each table row from a .dic file."""
    # Lines are stripped as in the training code. Tokens that only differ in surrounding white space become one; the
    # last of them counts, and the rows of the others are unused.
    rows: dict[str, int] = {}
    named: set[int] = set()
    with reading(path, "list of words or characters"):
        lines = path.read_bytes().decode("utf-8").split("\n")
    if not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, 1):
        match = _ENTRY.fullmatch(line.strip())
        if match is None:
            raise FormatError(f"{path}, line {number}: expected a token, a tab and its row; found {line[:40]!r}.")
        row = int(match["row"])
        named.add(row)
        rows[_NAMELESS if match["token"] is None else match["token"]] = row
    if named != set(range(n_rows)):
        raise TensorMismatchError(
            f"{path} names {len(named)} rows, the last of them {max(named, default=-1)}; the table in "
            f"token_embedder.pkl has {n_rows}, from 0 to {n_rows - 1}."
        )
    by_row = {row: token for token, row in rows.items()}
    return tuple(by_row.get(row) for row in range(n_rows))


class ManyLangsSettings(NamedTuple):
    """The network's configuration as in the file."""

    encoder: dict[str, Any]
    token_embedder: dict[str, Any]
    dropout: Any
    where: str
    is_stock: bool = False

    @property
    def max_chars(self) -> int:
        """Characters per token, including begin and end marks. The token embedder "lstm" does not truncate tokens."""
        if _kind(self.token_embedder) == "lstm":
            return _MAX_CHARS
        n_chars: Any = self.token_embedder.get("max_characters_per_token")
        with config_errors(self.where):
            check_at_least("max_characters_per_token", n_chars, 1, _MAX_CHARS)
        return int(n_chars)


def read_settings(folder: Path) -> ManyLangsSettings:
    """Find the network's configuration."""
    run = read_json(folder / "config.json")
    named = run.get("config_path")
    if not isinstance(named, str) or not named:
        raise FormatError(f"{folder / 'config.json'} has no 'config_path', so it is not a configuration of {FAMILY}.")
    path = _find_config(folder, named)
    if path is None:
        name = PureWindowsPath(named).name
        content, where = stock_settings(name), f"the stock configuration, as {folder} holds no {name!r}"
    else:
        content, where = read_json(path), str(path)
    with config_errors(where):
        encoder, tokens = content["encoder"], content["token_embedder"]
        _check_kinds(encoder, tokens, where)
        return ManyLangsSettings(encoder, tokens, content.get("dropout", 0.0), where, path is None)


def _find_config(folder: Path, named: str) -> Path | None:
    """Find the configuration that ``config_path`` names, which is often a path on the author's machine."""
    # Only searched for inside the model's directory, under that path and its file name.
    windows = PureWindowsPath(named)  # splits at both kinds of slashes
    candidates = [folder / windows.name]
    if not windows.anchor and ".." not in windows.parts:
        candidates.insert(0, folder / named)
    for path in candidates:
        if path.is_file():
            return path
    return None


def _check_kinds(encoder: Mapping[str, Any], tokens: Mapping[str, Any], where: str) -> None:
    """Raise a FormatError if it is not the network of the paper."""
    # The encoder "lstm" is not a pair of language models: its second layer reads both directions of the first. The
    # token embedder "lstm" with characters concatenates tensors of two and three dimensions, which PyTorch refuses.
    network, reader = _kind(encoder), _kind(tokens)
    reads_words_alone = reader == "lstm" and not tokens.get("char_dim")
    if network != "elmo" or not (reader == "cnn" or reads_words_alone):
        raise FormatError(
            f"{where}: the encoder {network!r} with the token_embedder {reader!r} is not supported; expected "
            "'elmo' with 'cnn', or with 'lstm' and char_dim 0."
        )


def stock_settings(name: str) -> dict[str, Any]:
    """Make the configuration that the published models share."""
    char_dim, word_dim, projection_dim, dim = 50, 100, 512, 4096
    # The sizes in names such as `cnn_50_100_512_4096_sample.json`.
    match = re.match(r"cnn_(\d{1,9})_(\d{1,9})_(\d{1,9})_(\d{1,9})", name)
    if match is not None:
        char_dim, word_dim, projection_dim, dim = map(int, match.groups())
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
    """Convert the settings to a config. The numbers of words and characters come from the tables' shapes."""
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
    """Refuse equal sizes: ELMoForManyLangs then still has a projection, and our network does not."""
    cnn = config.char_cnn
    if config.hidden_dim == config.projection_dim:
        equal = "encoder.dim"
    elif cnn is not None and config.word_features is None and cnn.n_features == config.projection_dim:
        equal = "the sum of the filters, without words,"
    else:
        return
    raise ConfigError(
        f"{settings.where}: {equal} equals projection_dim ({config.projection_dim}); elmokit's network then has no "
        f"projection, but that of {FAMILY} has one."
    )


FORMAT = ManyLangs()
