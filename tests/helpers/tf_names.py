"""The tensors of a model of ours under the names that TensorFlow programs gave them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit.formats.bilm_tf import bilm_tf_rows
from elmokit.formats.tensor_rows import to_theirs
from elmokit.pretrained.model import PretrainedBiLM

Tensors = dict[str, NDArray[Any]]
_CELL = re.compile(r"RNN_(\d)/RNN/MultiRNNCell/Cell(\d)/LSTMCell/(.*)")
_PARTS = {"W_0": "kernel", "B": "bias", "W_P_0": "projection/kernel"}


def checkpoint_tensors(model: PretrainedBiLM) -> Tensors:
    """As in bilm-tf's checkpoints: shorter names where there is one layer or one direction."""
    config = model.config
    tensors: Tensors = {"global_step": np.float32(207) * np.ones((), np.float32)}
    for name, array in to_theirs(model.arrays, bilm_tf_rows(config)):
        if match := _CELL.fullmatch(name):
            direction = f"RNN_{match[1]}/" if config.bidirectional else ""
            layer = f"multi_rnn_cell/cell_{match[2]}/" if config.n_layers > 1 else ""
            name = f"{direction}rnn/{layer}lstm_cell/{_PARTS[match[3]]}"
        tensors[f"lm/{name}"] = array
    if model.softmax is not None:
        tensors["lm/softmax/W"] = model.softmax.weight
        tensors["lm/softmax/b"] = model.softmax.arrays["bias"]
    return tensors


def module_tensors(model: PretrainedBiLM, zero_row: bool = False) -> Tensors:
    """As in TF-Hub modules, without mixing scalars.

    Args:
        zero_row: with the row that stands for no token, as in DeepPavlov's exports.
    """
    tensors: Tensors = {}
    for name, array in to_theirs(model.arrays, bilm_tf_rows(model.config)):
        if match := _CELL.fullmatch(name):
            name = f"RNN_{match[1]}/RNN/MultiRNNCell/Cell{match[2]}/rnn/lstm_cell/{_PARTS[match[3]]}"
        tensors[f"bilm/{name}"] = array
    if zero_row:
        tensors["bilm/char_embed"] = np.pad(tensors["bilm/char_embed"], ((1, 0), (0, 0)))
    return tensors
