"""Read an archive of AllenNLP: config, weights, vocabulary, and the ELMo inside.

::

    config.json              the training config
    weights.th               a pickled state dict
    vocabulary/              one list per namespace, and non_padded_namespaces.txt
    files_to_archive.json    before version 1.0: files that the config names ...
    fta/KEY                  ... by their key in the config
    meta.json                since version 2.6: the version of AllenNLP

The archive may come from anywhere: only these files are unpacked, and only tensors are read from the pickle.

AllenNLP saves all parameters of its ELMo with those of the task model. The sizes follow from the tensors. What they do
not show, the clips and the activation, comes from the options file: the user may give it, the archive may have it, or
the config names one that exists. Otherwise it is as in the published models, and the user is told so unless the config
names one of these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmokit.config import read_json
from elmokit.engine.config import BiLMConfig, CharCNNConfig
from elmokit.errors import ConfigError, FormatError, ModelError, ModelNotFoundError, TensorMismatchError, TextError
from elmokit.formats.allennlp import encoder_to_allennlp, from_allennlp, lstm_to_allennlp
from elmokit.formats.archives import is_archive, unpacked
from elmokit.formats.bilm_tf import config_from_options, read_options
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.sidecars import visible_files
from elmokit.formats.sources import published_models
from elmokit.formats.torch_save import read_state_dict
from elmokit.network.bilm import BiLM
from elmokit.storage.bounded import is_file
from elmokit.storage.text_files import expand_user, read_lines

CONFIG, WEIGHTS, VOCABULARY = "config.json", "weights.th", "vocabulary"
UNPACKED = (CONFIG, WEIGHTS, "meta.json", "*.txt", "*options_file")
NON_PADDED = "non_padded_namespaces.txt"
PADDING_ROW, UNKNOWN = "@@PADDING@@", "@@UNKNOWN@@"
NEWLINE = "@@NEWLINE@@"  # AllenNLP writes it for a line break inside an entry
ENCODER, LSTM = "_token_embedder.", "_elmo_lstm."
PUBLISHED = ("small", "medium", "original", "original-5.5b")
"""The models of the paper's authors, whose options are the defaults of ``BiLMConfig``."""
CACHE = "_word_embedding.weight"  # context-free vectors of the vocabulary, computed from the other tensors
VERSION = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True)
class TaskArchive:
    """The content of an archive."""

    source: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    namespaces: dict[str, list[str]]
    """The vocabulary: the entries of each namespace by their row. Padded namespaces have an entry for padding."""
    options: dict[str, Any] | None
    """The options of the ELMo inside, if the archive has them."""
    version: str | None
    """The version of AllenNLP that saved it; None before 2.6, which did not record it."""

    @property
    def is_from_before_1(self) -> bool:
        """Whether AllenNLP 0.x trained the model: it needed an iterator, and knew similarity functions."""
        model = self.config.get("model", {})
        return "iterator" in self.config or (isinstance(model, dict) and "similarity_function" in model)


def is_task_archive(path: Path) -> bool:
    """Check whether a path is an archive of AllenNLP or the unpacked directory of one."""
    if path.is_dir():
        return (path / CONFIG).is_file() and (path / WEIGHTS).is_file()
    return path.is_file() and is_archive(path)


def read_archive(source: str | Path) -> TaskArchive:
    """Read an archive, or the directory of an unpacked one."""
    path = expand_user(source, ModelNotFoundError)
    if path.is_dir():
        return _read_folder(path, path)
    if not path.is_file() or not is_archive(path):
        raise ModelNotFoundError(f"{path} is not an archive of AllenNLP (model.tar.gz), nor the directory of one.")
    with unpacked(path, UNPACKED, lambda folder: (folder / CONFIG).is_file()) as archive:
        try:
            return _read_folder(archive.folder, path)
        except (ModelError, TextError) as error:
            raise type(error)(str(error).replace(str(archive.folder), str(path))) from None


def _read_folder(folder: Path, source: Path) -> TaskArchive:
    config = read_json(folder / CONFIG, "configuration of AllenNLP's archive")
    tensors = read_state_dict(folder / WEIGHTS)
    options = visible_files(folder / "fta", "*options_file")
    version = None
    if (folder / "meta.json").is_file():
        stated = read_json(folder / "meta.json").get("version")
        version = stated if isinstance(stated, str) and VERSION.match(stated) else None
    return TaskArchive(
        source,
        config,
        tensors,
        _read_vocabulary(folder / VOCABULARY),
        read_options(options[0]) if options else None,
        version,
    )


def _read_vocabulary(folder: Path) -> dict[str, list[str]]:
    patterns = list(read_lines(folder / NON_PADDED)) if (folder / NON_PADDED).is_file() else ["*labels", "*tags"]
    namespaces = {}
    for file in visible_files(folder, "**/*.txt"):
        if file.name == NON_PADDED:
            continue
        name = file.relative_to(folder).as_posix().removesuffix(".txt")
        entries = [line.replace(NEWLINE, "\n") for line in read_lines(file)]
        is_padded = not any(_matches(pattern, name) for pattern in patterns)
        namespaces[name] = [PADDING_ROW, *entries] if is_padded else entries
    return namespaces


def _matches(pattern: str, namespace: str) -> bool:
    """Match as AllenNLP does, where only a star at the beginning of a pattern is special."""
    return namespace.endswith(pattern[1:]) if pattern.startswith("*") else namespace == pattern


def known_entries(archive: TaskArchive, name: str, unknown: str) -> tuple[list[str], int]:
    """Return the entries of a padded namespace without padding and "unknown", and the row of "unknown"."""
    entries = entries_of(archive, name, unknown)
    row = entries.index(unknown)
    return [entry for index, entry in enumerate(entries) if index not in (0, row)], row


def entries_of(archive: TaskArchive, name: str, needed: str | None = None) -> list[str]:
    """Return the entries of a namespace, one of which may be needed."""
    entries = archive.namespaces.get(name, [])
    if not entries or needed not in (None, *entries):
        expected = f"namespace {name!r}" if needed is None else f"namespace {name!r} with an entry {needed}"
        raise FormatError(
            f"{archive.source}: expected a {expected} in the vocabulary, whose namespaces are: "
            f"{', '.join(archive.namespaces) or 'none'}."
        )
    return entries


def config_of_tensors(tensors: Mapping[str, Tensor], options: dict[str, Any] | None, where: str) -> BiLMConfig:
    """Return the architecture of an ELMo."""
    if options is not None:
        # AllenNLP's ELMo has two directions, and the options of the published models do not say so.
        return config_from_options({**options, "bidirectional": True}, {}, where)
    filters: list[tuple[int, int]] = []
    while (name := f"{ENCODER}char_conv_{len(filters)}.weight") in tensors:
        count, _, width = shape_of(tensors, name, 3, where)
        filters.append((width, count))
    n_highway = 0
    while f"{ENCODER}_highways._layers.{n_highway}.weight" in tensors:
        n_highway += 1
    n_layers = 0
    while f"{LSTM}forward_layer_{n_layers}.state_linearity.weight" in tensors:
        n_layers += 1
    n_chars, char_dim = shape_of(tensors, f"{ENCODER}_char_embedding_weights", 2, where)
    projection_dim, _ = shape_of(tensors, f"{ENCODER}_projection.weight", 2, where)
    gates, _ = shape_of(tensors, f"{LSTM}forward_layer_0.state_linearity.weight", 2, where)
    try:
        return BiLMConfig(
            CharCNNConfig(tuple(filters), char_dim, n_highway, n_chars=n_chars - 1),
            projection_dim=projection_dim,
            hidden_dim=gates // 4,
            n_layers=n_layers,
        )
    except ConfigError as error:
        raise TensorMismatchError(f"{where}: the ELMo inside has tensors of unusual sizes: {error}") from None


def shape_of(tensors: Mapping[str, Tensor], name: str, n_axes: int, where: str) -> tuple[int, ...]:
    """Return the shape of a tensor that must have a number of axes."""
    if name not in tensors or tensors[name].dim() != n_axes:
        found = f"one of shape {tuple(tensors[name].shape)}" if name in tensors else "none"
        raise TensorMismatchError(f"{where}: expected a tensor {name} with {n_axes} axes, found {found}.")
    return tuple(tensors[name].shape)


def tensors_of(config: BiLMConfig) -> dict[str, Tensor]:
    """Return AllenNLP's tensors of an ELMo on the meta device: names and shapes without content."""
    with torch.device("meta"):
        bilm = BiLM(config)
        # Inside the block, because what is made here has no content either.
        encoder, lstm = encoder_to_allennlp(bilm), lstm_to_allennlp(bilm)
    return {f"{ENCODER}{name}": part for name, part in encoder.items()} | {
        f"{LSTM}{name}": part for name, part in lstm.items()
    }


def bilm_of(tensors: Mapping[str, Tensor], config: BiLMConfig, source: Path) -> PretrainedBiLM:
    """Build the biLM of an ELMo from its tensors."""
    bilm = from_allennlp(tensors, config).eval()
    return PretrainedBiLM(bilm, "allennlp", source, card={"from": f"the ELMo inside {source.name}"}, exact_marks=True)


def has_published_options(elmo: Mapping[str, Any]) -> bool:
    """Check whether a config's table names the options of one of the authors' models, AllenNLP's default included."""
    name = elmo.get("options_file")
    models = (model for model in published_models() if model.name in PUBLISHED)
    return name is None or any(location.options == name for model in models for location in model.locations)


def assumed_options(config: BiLMConfig, elmo: Mapping[str, Any]) -> str:
    """Return a sentence that says what was assumed about an ELMo whose options are unknown."""
    assert config.char_cnn is not None
    named = f", and {elmo['options_file']!r} does not exist here" if elmo.get("options_file") else ""
    return (
        f"the archive does not hold the options file of its ELMo{named}: assumed are activation = "
        f"{config.char_cnn.activation}, cell_clip = {config.cell_clip} and proj_clip = {config.projection_clip}, as "
        "in the published models. If it was trained with others, give the file: elmokit task open --options FILE"
    )


def options_named_by(elmo: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read the options file that a config names, if it is a file of this machine."""
    name = elmo.get("options_file")
    if not isinstance(name, str) or "://" in name or not is_file(Path(name)):
        return None
    return read_options(name)
