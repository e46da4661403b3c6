"""A tiny model whose weights follow from a formula, so that other programs and PyTorch versions get the same one."""

from __future__ import annotations

import torch
from torch import Tensor

from elmokit.engine.architecture import BiLMConfig, CharCNNConfig
from elmokit.network.bilm import BiLM
from elmokit.pretrained.model import PretrainedBiLM

CONFIG = BiLMConfig(
    CharCNNConfig(filters=((1, 4), (2, 6), (3, 6)), char_dim=5, n_highway=1), projection_dim=6, hidden_dim=12
)


def wave(*shape: int, scale: float = 1.0) -> Tensor:
    """Return numbers between -scale and scale that look irregular."""
    steps = torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float64)
    return (scale * torch.sin(steps * steps * 0.7)).float().view(shape)


def wave_model() -> PretrainedBiLM:
    """Return the model, whose cells reach the bound of 3 on ordinary sentences."""
    bilm = BiLM(CONFIG)
    with torch.no_grad():
        for number, parameter in enumerate(bilm.parameters(), start=1):
            parameter.copy_(wave(number + parameter.numel(), scale=1.2)[number:].view_as(parameter))
        bilm.token_layer.char_embedding.weight[0] = 0.0  # type: ignore[union-attr, operator, index]
    return PretrainedBiLM.from_modules(bilm)
