"""How a model is opened: the keywords of ``from_pretrained``, and command options with the same names and defaults.

``Elmo.from_pretrained`` documents them. Public signatures spell them out, because editors based on Jedi, such as
Jupyter, do not complete the keywords of a ``TypedDict``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from elmokit.config import setting
from elmokit.engine.precision import Precision

if TYPE_CHECKING:
    import torch

OPTIONS = "The options file of an HDF5 file, if it is not next to the weights."
DEVICE = "Where to compute, such as cuda or cuda:1 (needs PyTorch).  [default: the CPU]"
PRECISION = (
    "Lowest precision of the LSTM weights. Lower precision is faster but less accurate.  [default: the model's own, "
    "which is int8 for en-mini]"
)
EXACT_MARKS = "Read typographic marks unchanged, like bilm-tf and AllenNLP, instead of as ASCII."


@dataclass(frozen=True)
class ElmoOpening:
    """How :meth:`Elmo.from_pretrained <elmokit.embedding.elmo.Elmo.from_pretrained>` opens a model."""

    options: str | None = setting(None, OPTIONS)
    token_embeddings: str | None = setting(
        None, "HDF5 file of precomputed token vectors, one row per word of the vocabulary."
    )
    vocabulary: str | None = setting(None, "Word list for precomputed token vectors or a word-input model.")
    start: Literal["warm", "zero", "stateful"] = setting(
        "warm",
        "LSTM state that each sentence starts from: the model's start state (warm), zeros, or the state after the "
        "previous batch, as in AllenNLP (stateful); vectors then depend on preceding lines.",
    )
    precision: Precision | None = setting(None, PRECISION)
    device: str | None = setting(None, DEVICE)
    exact_marks: bool = setting(False, EXACT_MARKS)


@dataclass(frozen=True)
class LanguageModelOpening:
    """How ``LanguageModel.from_pretrained`` opens a model; commands set their own defaults for precision and start."""

    options: str | None = setting(None, OPTIONS)
    vocabulary: str | None = setting(None, "File with the words of the softmax, if it is not next to the weights.")
    device: str | None = setting(None, DEVICE)
    exact_marks: bool = setting(False, EXACT_MARKS)
    spelling: Literal["model", "vocabulary"] = setting(
        "model",
        "How spelling_nats of unknown words is computed: by the model's letter model, or from the words in its "
        "vocabulary, as in 0.3 and for models without a letter model.",
    )


class ElmoKeywords(TypedDict, total=False):
    """The keywords of ``Elmo.from_pretrained``, for functions that pass them on."""

    options: str | Path | None
    token_embeddings: str | Path | None
    vocabulary: str | Path | None
    start: Literal["warm", "zero", "stateful"]
    token_cache_mib: int
    precision: Precision | None
    device: str | torch.device | None
    exact_marks: bool
