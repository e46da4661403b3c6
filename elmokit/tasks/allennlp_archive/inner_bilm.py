"""The ELMo inside an archive: AllenNLP saves all its parameters with those of the task model.

Its sizes follow from the tensors. What they do not show, the clips and the activation, comes from the options file if
the archive has it (``fta/`` before version 1.0) or the config names one that exists. Otherwise it is as in the
published models.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmokit.bilm import BiLM, BiLMConfig, CharCNNConfig
from elmokit.errors import ConfigError, TensorMismatchError
from elmokit.weights.allennlp import encoder_to_allennlp, from_allennlp, lstm_to_allennlp
from elmokit.weights.bilm_tf import config_from_options, read_options
from elmokit.weights.model import PretrainedBiLM

ENCODER, LSTM = "_token_embedder.", "_elmo_lstm."
CACHE = "_word_embedding.weight"  # context-free vectors of the vocabulary, computed from the other tensors


def config_of_tensors(tensors: Mapping[str, Tensor], options: dict[str, Any] | None, where: str) -> BiLMConfig:
    """Return the architecture of an ELMo.

    Args:
        tensors: Its tensors, by their names inside ``_ElmoBiLm``.
        options: The content of its options file, if it is known.
        where: The archive, for errors.

    Raises:
        TensorMismatchError: The sizes do not follow from the tensors, because some are missing or have a wrong shape.
    """
    if options is not None:
        # AllenNLP's ELMo has two directions, and the options of the published models do not say so.
        return config_from_options({**options, "bidirectional": True}, {}, where)
    filters: list[tuple[int, int]] = []
    while (name := f"{ENCODER}char_conv_{len(filters)}.weight") in tensors:
        count, _, width = _shape(tensors, name, 3, where)
        filters.append((width, count))
    n_highway = 0
    while f"{ENCODER}_highways._layers.{n_highway}.weight" in tensors:
        n_highway += 1
    n_layers = 0
    while f"{LSTM}forward_layer_{n_layers}.state_linearity.weight" in tensors:
        n_layers += 1
    n_chars, char_dim = _shape(tensors, f"{ENCODER}_char_embedding_weights", 2, where)
    projection_dim, _ = _shape(tensors, f"{ENCODER}_projection.weight", 2, where)
    gates, _ = _shape(tensors, f"{LSTM}forward_layer_0.state_linearity.weight", 2, where)
    try:
        return BiLMConfig(
            CharCNNConfig(tuple(filters), char_dim, n_highway, n_chars=n_chars - 1),
            projection_dim=projection_dim,
            hidden_dim=gates // 4,
            n_layers=n_layers,
        )
    except ConfigError as error:
        raise TensorMismatchError(f"{where}: the ELMo inside has tensors of unusual sizes. {error}") from None


def _shape(tensors: Mapping[str, Tensor], name: str, n_axes: int, where: str) -> tuple[int, ...]:
    if name not in tensors or tensors[name].dim() != n_axes:
        found = f"has the shape {tuple(tensors[name].shape)}" if name in tensors else "is missing"
        raise TensorMismatchError(f"{where}: {name}, a tensor of the ELMo inside, {found}; expected {n_axes} axes.")
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
    """Build the biLM of an ELMo from its tensors.

    Raises:
        ConfigError, TensorMismatchError: Our network cannot represent it.
    """
    bilm = from_allennlp(tensors, config).eval()
    return PretrainedBiLM(bilm, "allennlp", source, card={"from": f"the ELMo inside {source.name}"})


def options_named_by(elmo: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read the options file that a config names, if it is a file of this machine."""
    name = elmo.get("options_file")
    if not isinstance(name, str) or "://" in name or not Path(name).is_file():
        return None
    return read_options(name)
