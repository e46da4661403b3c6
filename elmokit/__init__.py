"""ELMo for modern Python: contextual embeddings from bidirectional LSTM language models.

Public names are loaded when they are first used, so ``import elmokit`` and ``elmokit --help`` are instant. PyTorch is
imported only by what needs it: training, GPUs, and modules for other networks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from elmokit.errors import needs_torch

if TYPE_CHECKING:
    from elmokit.alignment import AlignmentResult, align
    from elmokit.corpus.embed import embed_file
    from elmokit.elmo_module import ElmoModule, ElmoOutput
    from elmokit.embedder import Elmo
    from elmokit.engine.config import PRESETS, BiLMConfig, CharCNNConfig
    from elmokit.errors import ElmoError
    from elmokit.nn.bilm import BiLM, BiLMOutput, BiLMState
    from elmokit.nn.scalar_mix import ScalarMix
    from elmokit.scoring.heat_map import HeatMap, show
    from elmokit.scoring.language_model import LanguageModel
    from elmokit.sentence_pooling import SentencePooling
    from elmokit.sentence_vectors import SentenceEmbedder
    from elmokit.text.tokenize import tokenize
    from elmokit.text.vocabulary import Vocabulary
    from elmokit.training.api import distill, finetune, resume, train
    from elmokit.training.results import TrainingResult
    from elmokit.version import __version__ as __version__
    from elmokit.weights.model import PretrainedBiLM, describe
    from elmokit.weights.open import open_model
    from elmokit.weights.save import save_model

_MODULES = {
    "PRESETS": "elmokit.engine.config",
    "AlignmentResult": "elmokit.alignment",
    "BiLM": "elmokit.nn.bilm",
    "BiLMConfig": "elmokit.engine.config",
    "BiLMOutput": "elmokit.nn.bilm",
    "BiLMState": "elmokit.nn.bilm",
    "CharCNNConfig": "elmokit.engine.config",
    "Elmo": "elmokit.embedder",
    "ElmoError": "elmokit.errors",
    "ElmoModule": "elmokit.elmo_module",
    "ElmoOutput": "elmokit.elmo_module",
    "HeatMap": "elmokit.scoring.heat_map",
    "LanguageModel": "elmokit.scoring.language_model",
    "PretrainedBiLM": "elmokit.weights.model",
    "ScalarMix": "elmokit.nn.scalar_mix",
    "SentenceEmbedder": "elmokit.sentence_vectors",
    "SentencePooling": "elmokit.sentence_pooling",
    "TrainingResult": "elmokit.training.results",
    "Vocabulary": "elmokit.text.vocabulary",
    "align": "elmokit.alignment",
    "describe": "elmokit.weights.model",
    "distill": "elmokit.training.api",
    "embed_file": "elmokit.corpus.embed",
    "finetune": "elmokit.training.api",
    "open_model": "elmokit.weights.open",
    "resume": "elmokit.training.api",
    "save_model": "elmokit.weights.save",
    "show": "elmokit.scoring.heat_map",
    "tokenize": "elmokit.text.tokenize",
    "train": "elmokit.training.api",
    "__version__": "elmokit.version",
}
"""The module of each public name."""

__all__ = [
    "PRESETS",
    "AlignmentResult",
    "BiLM",
    "BiLMConfig",
    "BiLMOutput",
    "BiLMState",
    "CharCNNConfig",
    "Elmo",
    "ElmoError",
    "ElmoModule",
    "ElmoOutput",
    "HeatMap",
    "LanguageModel",
    "PretrainedBiLM",
    "ScalarMix",
    "SentenceEmbedder",
    "SentencePooling",
    "TrainingResult",
    "Vocabulary",
    "align",
    "describe",
    "distill",
    "embed_file",
    "finetune",
    "open_model",
    "resume",
    "save_model",
    "show",
    "tokenize",
    "train",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'elmokit' has no attribute {name!r}")
    with needs_torch(f"elmokit.{name}"):
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
