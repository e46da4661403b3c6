"""Tiny fastNLP directories: the network of ELMoForManyLangs without words, under fastNLP's names."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.helpers.many_langs_files import dic_of, random_lstm, random_tensors
from tests.reference import fast_nlp_numpy

CONFIG: dict[str, Any] = {
    "char_cnn": {
        "activation": "tanh",
        "embedding": {"dim": 3},
        "filters": [[1, 3], [2, 4], [3, 2]],
        "max_characters_per_token": 9,
        "n_characters": 20,
        "n_highway": 2,
    },
    "lstm": {"cell_clip": 0.8, "dim": 7, "n_layers": 2, "proj_clip": 0.5, "projection_dim": 4},
}
CHARS = [*"adeHistuÜäläu北", "<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]
CHARS = list(dict.fromkeys(CHARS))


@dataclass
class ToyModel:
    """A model as fastNLP's files hold it."""

    config: dict[str, Any]
    char_cnn: OrderedDict[str, Tensor]
    lstm: OrderedDict[str, Tensor]
    chars: list[str]

    def write(self, folder: Path, zipped: bool = True) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "elmo_options.json").write_text(json.dumps(self.config), encoding="utf-8")
        (folder / "char.dic").write_text(dic_of(self.chars), encoding="utf-8", newline="\n")
        content = {"char_cnn": self.char_cnn, "lstm": self.lstm}
        torch.save(content, folder / "elmo_weights.pkl", _use_new_zipfile_serialization=zipped)
        return folder

    def layers(self, sentence: list[str]) -> NDArray[np.float64]:
        """``(layers, tokens, dim)`` by the formulas, from the zero state."""
        return fast_nlp_numpy.sentence_layers(
            sentence,
            self.config,
            {char: row for row, char in enumerate(self.chars)},
            {name: tensor.double().numpy() for name, tensor in self.char_cnn.items()},
            {name: tensor.double().numpy() for name, tensor in self.lstm.items()},
        )


def toy_model(chars: list[str] = CHARS) -> ToyModel:
    """A model of random tensors."""
    random = random_tensors(seed=0)
    spec, lstm = CONFIG["char_cnn"], CONFIG["lstm"]
    n_features = sum(count for _, count in spec["filters"])
    char_cnn: OrderedDict[str, Tensor] = OrderedDict()
    char_cnn["char_emb_layer.weight"] = random(len(chars), spec["embedding"]["dim"])
    for k, (width, count) in enumerate(spec["filters"]):
        char_cnn[f"char_conv_{k}.weight"] = random(count, spec["embedding"]["dim"], width)
        char_cnn[f"char_conv_{k}.bias"] = random(count)
    for k in range(spec["n_highway"]):
        char_cnn[f"_highways._layers.{k}.weight"] = random(2 * n_features, n_features)
        char_cnn[f"_highways._layers.{k}.bias"] = random(2 * n_features)
    char_cnn["_projection.weight"] = random(lstm["projection_dim"], n_features)
    char_cnn["_projection.bias"] = random(lstm["projection_dim"])
    places = [f"{direction}_layer_{k}" for k in range(lstm["n_layers"]) for direction in ("forward", "backward")]
    return ToyModel(CONFIG, char_cnn, random_lstm(random, places, lstm["dim"], lstm["projection_dim"]), chars)
