"""Small models of all kinds that the engine computes, with random weights, ids and a batch of sentences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from elmokit.engine.architecture import BiLMConfig, CharCNNConfig, WordFeaturesConfig
from elmokit.engine.state import Floats, Ids
from elmokit.network.bilm import BiLM
from elmokit.network.lstm_module import LSTMStack, ProjectedLSTM

CHARS = CharCNNConfig(((1, 5), (2, 16), (3, 30)), char_dim=6, max_chars=12, n_chars=40)
SIZES = {"projection_dim": 24, "hidden_dim": 40}
CONFIGS = {
    "characters": BiLMConfig(CHARS, **SIZES),
    "tanh": BiLMConfig(replace(CHARS, activation="tanh"), **SIZES),
    "no highways": BiLMConfig(replace(CHARS, n_highway=0), **SIZES),
    "as many features as outputs": BiLMConfig(replace(CHARS, filters=((1, 4), (3, 20))), **SIZES),
    "too many characters for a table of all": BiLMConfig(replace(CHARS, n_chars=260_000), **SIZES),
    "words": BiLMConfig(None, n_words=30, **SIZES),
    "words and characters": BiLMConfig(CHARS, word_features=WordFeaturesConfig(30, 7), **SIZES),
    "words and too many characters": BiLMConfig(
        replace(CHARS, n_chars=260_000), word_features=WordFeaturesConfig(30, 7), **SIZES
    ),
    "a projected word table": BiLMConfig(None, word_features=WordFeaturesConfig(30, 7), **SIZES),
    "forward only": BiLMConfig(CHARS, bidirectional=False, **SIZES),
    "no projection": BiLMConfig(CHARS, projection_dim=24, hidden_dim=24),
    "a projection of equal size": BiLMConfig(CHARS, projection_dim=24, hidden_dim=24),
    "one layer": BiLMConfig(CHARS, n_layers=1, **SIZES),
    "three plain layers": BiLMConfig(
        CHARS, n_layers=3, cell_clip=None, projection_clip=None, skip_connections=False, **SIZES
    ),
}
WORDS = np.array([3, 0, 7, 7, 1, 4, 2, 9, 9, 0, 5, 8, 6, 3, 11, 10, 2, 1])
LENGTHS = np.array([5, 0, 1, 9, 3])


def random_bilm(name: str) -> BiLM:
    bilm = BiLM(CONFIGS[name])
    bilm.reset_parameters(seed=0)
    generator = torch.Generator().manual_seed(0)
    for stack in bilm.directions:
        assert isinstance(stack, LSTMStack)
        for layer in stack.layers:
            assert isinstance(layer, ProjectedLSTM)
            if name == "a projection of equal size":
                layer.projection = torch.nn.Parameter(torch.randn(24, 24, generator=generator) / 5)
            torch.nn.init.normal_(layer.bias, generator=generator)
    return bilm.requires_grad_(False).eval()


def arrays_of(bilm: BiLM) -> dict[str, Floats]:
    return {name: tensor.numpy() for name, tensor in bilm.state_dict().items()}


def random_ids(config: BiLMConfig, n_tokens: int) -> Ids:
    """Return ids of tokens of all lengths, as ``TokenLayer`` takes them."""
    generator = np.random.default_rng(0)
    parts = []
    if config.n_words is not None or config.word_features is not None:
        parts.append(generator.integers(0, 31, (n_tokens, 1)))
    if config.char_cnn is not None:
        last, columns = config.char_cnn.n_chars, np.arange(config.char_cnn.max_chars)
        lengths = generator.integers(0, config.char_cnn.max_chars + 1, (n_tokens, 1))
        parts.append(np.where(columns < lengths, generator.integers(0, last, (n_tokens, len(columns))), last))
    ids = np.concatenate(parts, axis=1)
    return ids[:, 0] if config.n_words is not None else ids
