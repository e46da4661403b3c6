"""What the tests share: tiny models, and the shared reference data where it is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from elmokit.bilm import PRESETS, BiLM, BiLMConfig
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.vocabulary import SPECIALS, Vocabulary
from elmokit.weights.model import PretrainedBiLM

SHARED = Path(os.environ.get("ELMOKIT_SHARED", Path(__file__).parents[2] / "shared"))
settings.register_profile("ci", derandomize=True)  # a build that passed once passes again; at home examples differ
if os.environ.get("CI"):
    settings.load_profile("ci")
WORDS = [*SPECIALS, "the", ".", "cat", "sat", "on", "mat", "dog", "ran"]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data; the test is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("no shared reference data (set ELMOKIT_SHARED)")
    return SHARED


def random_model(config: BiLMConfig = PRESETS["tiny"], seed: int = 0, scale: float = 3.0) -> PretrainedBiLM:
    """A model of random weights with a softmax; ``scale`` makes the LSTM's matter more than a fresh model's do."""
    bilm = BiLM(config)
    bilm.reset_parameters(seed)
    with torch.no_grad():
        for parameter in bilm.directions.parameters():
            parameter.mul_(scale)
    softmax = FullSoftmax(len(WORDS), config.projection_dim)
    softmax.reset_parameters(torch.Generator().manual_seed(seed))
    return PretrainedBiLM(
        bilm.eval(), "elmokit", softmax=softmax, vocabulary=Vocabulary(WORDS), card={"note": "random"}
    )


@pytest.fixture
def model() -> PretrainedBiLM:
    return random_model()
