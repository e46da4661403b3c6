"""The ELMo inside an archive: AllenNLP saves all its parameters with those of the task model.

Its sizes follow from the tensors. What they do not show, the clips and the activation, comes from the options file: the
user may give it, the archive may have it (``fta/`` before version 1.0), or the config names one that exists. Otherwise
it is as in the published models, and the user is told so unless the config names one of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmokit.engine.config import BiLMConfig, CharCNNConfig
from elmokit.errors import ConfigError, TensorMismatchError
from elmokit.formats import published
from elmokit.formats.allennlp import encoder_to_allennlp, from_allennlp, lstm_to_allennlp
from elmokit.formats.bilm_tf import config_from_options, read_options
from elmokit.formats.model import PretrainedBiLM
from elmokit.network.bilm import BiLM
from elmokit.storage.bounded import is_file

ENCODER, LSTM = "_token_embedder.", "_elmo_lstm."
PUBLISHED = ("small", "medium", "original", "original-5.5b")
"""The models of the paper's authors, whose options are the defaults of ``BiLMConfig``."""
CACHE = "_word_embedding.weight"  # context-free vectors of the vocabulary, computed from the other tensors


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
    models = (model for model in published.models() if model.name in PUBLISHED)
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
