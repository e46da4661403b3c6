"""AllenNLP's names and layouts of ELMo parameters, as in its checkpoints (``weights.th``).

Differences from ours: an LSTM cell's matrix is split into ``input_linearity`` and ``state_linearity``, its gates are in
the order i, f, g, o, and the stored bias includes the 1 that TensorFlow adds to the forget gate; a highway layer is one
matrix, first the transformed branch, then the gate of the *carried* branch (the negative of ours). Projections between
equal sizes, which our network does not have, are the identity there.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from elmokit.engine.architecture import DIRECTIONS, FORGET_OFFSET, BiLMConfig, CharCNNConfig
from elmokit.errors import ConfigError, TensorMismatchError
from elmokit.network.bilm import BiLM

ENCODER = "_token_embedder"
LSTM = "_elmo_lstm"


def char_cnn_of(config: BiLMConfig) -> CharCNNConfig:
    """Return the config of the char CNN, or raise a ConfigError if AllenNLP's ELMo cannot represent the model."""
    if config.char_cnn is None or config.word_features is not None or not config.bidirectional:
        what = "words" if config.bidirectional else "in one direction"
        raise ConfigError(
            f"AllenNLP's ELMo reads only characters, in both directions, but this model reads {what}. Open it with "
            "elmokit.Elmo."
        )
    return config.char_cnn


def swap_gates(tensor: Tensor) -> Tensor:
    """Swap the second and third gate block: i, f, g, o becomes i, g, f, o, and vice versa."""
    first, second, third, fourth = tensor.chunk(4)
    return torch.cat([first, third, second, fourth])


def gate_bias_from_allennlp(bias: Tensor) -> Tensor:
    """Convert a bias to our gate order, without the 1 of the forget gate."""
    i, f, g, o = bias.chunk(4)
    return torch.cat([i, g, f - FORGET_OFFSET, o])


def gate_bias_to_allennlp(bias: Tensor) -> Tensor:
    """Convert one of our biases; the inverse of :func:`gate_bias_from_allennlp`."""
    i, g, f, o = bias.chunk(4)
    return torch.cat([i, f + FORGET_OFFSET, g, o])


def encoder_to_allennlp(bilm: BiLM) -> dict[str, Tensor]:
    """Convert the char CNN's tensors to those of AllenNLP's ``_ElmoCharacterEncoder``."""
    config = bilm.config
    cnn = char_cnn_of(config)
    ours = bilm.state_dict()
    theirs = {"_char_embedding_weights": ours["token_layer.char_embedding.weight"]}
    for parameter in ("weight", "bias"):
        for k in range(len(cnn.filters)):
            theirs[f"char_conv_{k}.{parameter}"] = ours[f"token_layer.convolutions.{k}.{parameter}"]
        for k in range(cnn.n_highway):
            prefix = f"token_layer.highways.{k}"
            both = [ours[f"{prefix}.transform.{parameter}"], -ours[f"{prefix}.gate.{parameter}"]]
            theirs[f"_highways._layers.{k}.{parameter}"] = torch.cat(both)
    if cnn.n_features != config.projection_dim:
        theirs["_projection.weight"] = ours["token_layer.projection.weight"]
        theirs["_projection.bias"] = ours["token_layer.projection.bias"]
    else:
        theirs["_projection.weight"] = torch.eye(config.projection_dim).to(bilm.device, bilm.dtype)
        theirs["_projection.bias"] = torch.zeros_like(theirs["_projection.weight"][0])
    return theirs


def lstm_to_allennlp(bilm: BiLM) -> dict[str, Tensor]:
    """Convert the LSTM layers' tensors to those of AllenNLP's ``ElmoLstm``."""
    config = bilm.config
    ours = bilm.state_dict()
    theirs: dict[str, Tensor] = {}
    for cell, prefix in _cells(config):
        weight = swap_gates(ours[f"{prefix}.weight"])
        theirs[f"{cell}.input_linearity.weight"] = weight[:, : config.projection_dim].contiguous()
        theirs[f"{cell}.state_linearity.weight"] = weight[:, config.projection_dim :].contiguous()
        theirs[f"{cell}.state_linearity.bias"] = gate_bias_to_allennlp(ours[f"{prefix}.bias"])
        if config.hidden_dim != config.projection_dim:
            theirs[f"{cell}.state_projection.weight"] = ours[f"{prefix}.projection"]
        else:
            theirs[f"{cell}.state_projection.weight"] = torch.eye(config.hidden_dim).to(bilm.device, bilm.dtype)
    return theirs


def from_allennlp(theirs: Mapping[str, Tensor], config: BiLMConfig) -> BiLM:
    """Build a biLM from the tensors of AllenNLP's ``_ElmoBiLm``, the inverse of the two functions above."""
    cnn = char_cnn_of(config)
    ours = {"token_layer.char_embedding.weight": theirs[f"{ENCODER}._char_embedding_weights"]}
    for parameter in ("weight", "bias"):
        for k in range(len(cnn.filters)):
            ours[f"token_layer.convolutions.{k}.{parameter}"] = theirs[f"{ENCODER}.char_conv_{k}.{parameter}"]
        for k in range(cnn.n_highway):
            transform, carry = theirs[f"{ENCODER}._highways._layers.{k}.{parameter}"].chunk(2)
            ours[f"token_layer.highways.{k}.transform.{parameter}"] = transform
            ours[f"token_layer.highways.{k}.gate.{parameter}"] = -carry
        projection = theirs[f"{ENCODER}._projection.{parameter}"]
        if cnn.n_features != config.projection_dim:
            ours[f"token_layer.projection.{parameter}"] = projection
        else:
            _check_placeholder(projection, f"{ENCODER}._projection.{parameter}")
    for cell, prefix in ((f"{LSTM}.{cell}", prefix) for cell, prefix in _cells(config)):
        parts = [theirs[f"{cell}.{name}_linearity.weight"] for name in ("input", "state")]
        ours[f"{prefix}.weight"] = swap_gates(torch.cat(parts, dim=1))
        ours[f"{prefix}.bias"] = gate_bias_from_allennlp(theirs[f"{cell}.state_linearity.bias"])
        if config.hidden_dim != config.projection_dim:
            ours[f"{prefix}.projection"] = theirs[f"{cell}.state_projection.weight"]
        else:
            _check_placeholder(theirs[f"{cell}.state_projection.weight"], f"{cell}.state_projection.weight")
    with torch.device("meta"):
        bilm = BiLM(config)
    bilm.load_state_dict({name: tensor.detach().clone() for name, tensor in ours.items()}, assign=True)
    return bilm


def _cells(config: BiLMConfig) -> list[tuple[str, str]]:
    """List the LSTM layers, with AllenNLP's names and ours."""
    return [
        (f"{direction}_layer_{k}", f"directions.{d}.layers.{k}")
        for d, direction in enumerate(DIRECTIONS[: config.n_directions])
        for k in range(config.n_layers)
    ]


def _check_placeholder(projection: Tensor, name: str) -> None:
    """Check that a projection that our network does not have is still the identity, or its bias zero."""
    placeholder = torch.eye(len(projection)) if projection.ndim == 2 else torch.zeros(len(projection))
    if not torch.equal(projection, placeholder.to(projection)):
        raise TensorMismatchError(
            f"{name} is no longer {'the identity' if projection.ndim == 2 else 'zero'}, but a model with equal sizes "
            "has no such projection. Keep it as an AllenNLP checkpoint (state_dict)."
        )
