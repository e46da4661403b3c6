"""Tiny ELMoForManyLangs folders with random tensors, and the slow formulas over them."""

from __future__ import annotations

import copy
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.reference import many_langs_numpy

SETTINGS: dict[str, Any] = {
    "encoder": {"name": "elmo", "projection_dim": 4, "dim": 7, "n_layers": 2, "cell_clip": 0.8, "proj_clip": 0.5},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 3], [2, 4], [3, 2]],
        "n_highway": 2,
        "word_dim": 5,
        "char_dim": 3,
        "max_characters_per_token": 9,
    },
    "classifier": {"name": "sampled_softmax", "n_samples": 8},
    "dropout": 0.1,
}
WORDS = ["<oov>", "<bos>", "<eos>", "<pad>", "das", "Haus", "ist", "Überläu", "\u3000", "北"]
CHARS = [*"adeHistuÜäläu北\u3000", "<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]
CHARS = list(dict.fromkeys(CHARS))
SENTENCES = [
    ["das", "Haus"],
    ["Überläufer", "ist", "北", "<bos>", "Überläu", "", "zzz"],
    ["\u3000", "<pad>", "das", "das"],
    ["ist"],
]


def dic_of(entries: list[str]) -> str:
    return "".join(f"{entry}\t{row}\n" for row, entry in enumerate(entries))


@dataclass
class ToyModel:
    """A model of this family as its files hold it."""

    settings: dict[str, Any]
    token_embedder: OrderedDict[str, Tensor]
    encoder: OrderedDict[str, Tensor]
    word_dic: str = field(default_factory=lambda: dic_of(WORDS))
    char_dic: str = field(default_factory=lambda: dic_of(CHARS))
    config_path: str = "/home/author/configs/sizes.json"

    def write(self, folder: Path, zipped: bool = True) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        run = {"seed": 1, "gpu": 0, "config_path": self.config_path, "max_epoch": 10}
        (folder / "config.json").write_text(json.dumps(run), encoding="utf-8")
        (folder / "sizes.json").write_text(json.dumps(self.settings), encoding="utf-8")
        (folder / "word.dic").write_text(self.word_dic, encoding="utf-8", newline="\n")
        (folder / "char.dic").write_text(self.char_dic, encoding="utf-8", newline="\n")
        for name, tensors in (("token_embedder", self.token_embedder), ("encoder", self.encoder)):
            torch.save(tensors, folder / f"{name}.pkl", _use_new_zipfile_serialization=zipped)
        return folder

    def layers(self, sentence: list[str]) -> NDArray[np.float64]:
        """``(layers, tokens, dim)`` by the formulas, from the zero state."""
        return many_langs_numpy.sentence_layers(
            sentence,
            self.settings,
            many_langs_numpy.read_dic(self.word_dic),
            many_langs_numpy.read_dic(self.char_dic),
            {name: tensor.double().numpy() for name, tensor in self.token_embedder.items()},
            {name: tensor.double().numpy() for name, tensor in self.encoder.items()},
        )


def random_tensors(seed: int) -> Callable[..., Tensor]:
    """Return a function that draws a tensor of a shape."""
    generator = np.random.RandomState(seed)  # numpy keeps this stream for good, and the vectors of the models with it
    return lambda *shape: torch.from_numpy(generator.standard_normal(shape).astype(np.float32) * np.float32(0.7))


def random_lstm(
    random: Callable[..., Tensor], places: list[str], dim: int, projection_dim: int
) -> OrderedDict[str, Tensor]:
    tensors: OrderedDict[str, Tensor] = OrderedDict()
    for place in places:
        tensors[f"{place}.input_linearity.weight"] = random(4 * dim, projection_dim)
        tensors[f"{place}.state_linearity.weight"] = random(4 * dim, projection_dim)
        tensors[f"{place}.state_linearity.bias"] = random(4 * dim)
        tensors[f"{place}.state_projection.weight"] = random(projection_dim, dim)
    return tensors


def toy_model(seed: int = 0, encoder: dict[str, Any] | None = None, **tokens: Any) -> ToyModel:
    """A model of random tensors; ``tokens`` and ``encoder`` change the settings."""
    settings = copy.deepcopy(SETTINGS)
    settings["token_embedder"].update(tokens)
    settings["encoder"].update(encoder or {})
    random = random_tensors(seed)
    spec, lstm = settings["token_embedder"], settings["encoder"]
    embedder: OrderedDict[str, Tensor] = OrderedDict()
    n_features = 0
    if spec["word_dim"]:
        embedder["word_emb_layer.embedding.weight"] = random(len(WORDS), spec["word_dim"])
    if spec["char_dim"]:
        embedder["char_emb_layer.embedding.weight"] = random(len(CHARS), spec["char_dim"])
        for k, (width, count) in enumerate(spec["filters"]):
            embedder[f"convolutions.{k}.weight"] = random(count, spec["char_dim"], width)
            embedder[f"convolutions.{k}.bias"] = random(count)
            n_features += count
        for k in range(spec["n_highway"]):
            embedder[f"highways._layers.{k}.weight"] = random(2 * n_features, n_features)
            embedder[f"highways._layers.{k}.bias"] = random(2 * n_features)
    embedder["projection.weight"] = random(lstm["projection_dim"], spec["word_dim"] + n_features)
    embedder["projection.bias"] = random(lstm["projection_dim"])
    places = [f"{direction}_layer_{k}" for direction in ("forward", "backward") for k in range(lstm["n_layers"])]
    return ToyModel(settings, embedder, random_lstm(random, places, lstm["dim"], lstm["projection_dim"]))
