"""A small published model of random weights, for the tests of the AllenNLP names."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from elmokit.engine.architecture import BiLMConfig, CharCNNConfig
from elmokit.formats.bilm_tf_hdf5 import write_hdf5
from elmokit.network.bilm import BiLM
from elmokit.pretrained.model import PretrainedBiLM

CONFIG = BiLMConfig(
    CharCNNConfig(((1, 4), (2, 8), (3, 12)), char_dim=4), projection_dim=8, hidden_dim=14, cell_clip=2.0
)
DIM = CONFIG.output_dim


class Files(NamedTuple):
    """Paths of a published model, as its users write them, and the network in it."""

    options: str
    weights: str
    bilm: BiLM


def random_bilm(config: BiLMConfig = CONFIG, seed: int = 0) -> BiLM:
    """A biLM whose every weight matters, biases too."""
    bilm = BiLM(config)
    bilm.reset_parameters(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in bilm.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.5, generator=generator)
            elif "convolutions" in name:
                parameter.mul_(10)
    return bilm.eval()


def write_files(folder: Path, config: BiLMConfig = CONFIG, seed: int = 0) -> Files:
    """Write ``options.json`` and ``weights.hdf5``."""
    bilm = random_bilm(config, seed)
    folder.mkdir(parents=True, exist_ok=True)
    options, weights = folder / "options.json", folder / "weights.hdf5"
    write_hdf5(PretrainedBiLM.from_modules(bilm, family="bilm-tf"), options, weights)
    return Files(str(options), str(weights), bilm)
