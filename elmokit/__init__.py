"""ELMo for modern Python: contextual embeddings from bidirectional LSTM language models.

Public names are loaded when they are first used, so ``import elmokit`` and ``elmokit --help`` are instant. PyTorch is
imported only by what needs it: training, GPUs, and modules for other networks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from elmokit.errors import needs_torch

if TYPE_CHECKING:
    from elmokit.embedding.corpus import embed_file
    from elmokit.embedding.elmo import Elmo
    from elmokit.embedding.elmo_module import ElmoModule, ElmoOutput
    from elmokit.embedding.outputs.layout import Layout
    from elmokit.embedding.sentence_vectors import SentenceEmbedder
    from elmokit.engine.architecture import PRESETS, BiLMConfig, CharCNNConfig
    from elmokit.errors import ElmoError
    from elmokit.formats.open import open_model
    from elmokit.formats.save import save_model
    from elmokit.lm.language_model import LanguageModel
    from elmokit.network.bilm import BiLM, BiLMOutput, BiLMState
    from elmokit.network.scalar_mix import ScalarMix
    from elmokit.pretrained.model import PretrainedBiLM, describe
    from elmokit.pretrained.sentence_pooling import SentencePooling
    from elmokit.text.text import Text
    from elmokit.text.tokenize import tokenize
    from elmokit.text.vocabulary import Vocabulary
    from elmokit.training.api import distill, finetune, train
    from elmokit.training.results import TrainingResult
    from elmokit.version import __version__ as __version__

_MODULES = {
    "PRESETS": "elmokit.engine.architecture",
    "BiLM": "elmokit.network.bilm",
    "BiLMConfig": "elmokit.engine.architecture",
    "BiLMOutput": "elmokit.network.bilm",
    "BiLMState": "elmokit.network.bilm",
    "CharCNNConfig": "elmokit.engine.architecture",
    "Elmo": "elmokit.embedding.elmo",
    "ElmoError": "elmokit.errors",
    "ElmoModule": "elmokit.embedding.elmo_module",
    "ElmoOutput": "elmokit.embedding.elmo_module",
    "LanguageModel": "elmokit.lm.language_model",
    "Layout": "elmokit.embedding.outputs.layout",
    "PretrainedBiLM": "elmokit.pretrained.model",
    "ScalarMix": "elmokit.network.scalar_mix",
    "SentenceEmbedder": "elmokit.embedding.sentence_vectors",
    "SentencePooling": "elmokit.pretrained.sentence_pooling",
    "Text": "elmokit.text.text",
    "TrainingResult": "elmokit.training.results",
    "Vocabulary": "elmokit.text.vocabulary",
    "describe": "elmokit.pretrained.model",
    "distill": "elmokit.training.api",
    "embed_file": "elmokit.embedding.corpus",
    "finetune": "elmokit.training.api",
    "open_model": "elmokit.formats.open",
    "save_model": "elmokit.formats.save",
    "tokenize": "elmokit.text.tokenize",
    "train": "elmokit.training.api",
    "__version__": "elmokit.version",
}
"""The module of each public name."""

__all__ = [
    "PRESETS",
    "BiLM",
    "BiLMConfig",
    "BiLMOutput",
    "BiLMState",
    "CharCNNConfig",
    "Elmo",
    "ElmoError",
    "ElmoModule",
    "ElmoOutput",
    "LanguageModel",
    "Layout",
    "PretrainedBiLM",
    "ScalarMix",
    "SentenceEmbedder",
    "SentencePooling",
    "Text",
    "TrainingResult",
    "Vocabulary",
    "describe",
    "distill",
    "embed_file",
    "finetune",
    "open_model",
    "save_model",
    "tokenize",
    "train",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        from elmokit.former_names import PYTHON, replacement

        raise AttributeError(f"module 'elmokit' has no attribute {name!r}.{replacement(PYTHON, name)}")
    with needs_torch(f"elmokit.{name}"):
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
