"""elmokit: ELMo on today's Python.

The public names are loaded when they are first used, so that ``import elmokit`` and ``elmokit --help``
do not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elmokit.bilm import PRESETS, BiLM, BiLMConfig, BiLMOutput, BiLMState, CharCNNConfig
    from elmokit.embedder import Elmo, ElmoOutput
    from elmokit.errors import ElmoError
    from elmokit.nn.scalar_mix import ScalarMix
    from elmokit.text.vocabulary import Vocabulary
    from elmokit.weights.model import PretrainedBiLM
    from elmokit.weights.open import open_model, save_model

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "BiLM",
    "BiLMConfig",
    "BiLMOutput",
    "BiLMState",
    "CharCNNConfig",
    "Elmo",
    "ElmoError",
    "ElmoOutput",
    "PretrainedBiLM",
    "ScalarMix",
    "Vocabulary",
    "open_model",
    "save_model",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'elmokit' has no attribute {name!r}")
    from elmokit import bilm, embedder, errors
    from elmokit.nn import scalar_mix
    from elmokit.text import vocabulary
    from elmokit.weights import model
    from elmokit.weights import open as opening

    homes = (embedder, bilm, errors, scalar_mix, vocabulary, model, opening)
    return next(getattr(home, name) for home in homes if hasattr(home, name))


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
