"""The list of evaluations, and what the report and the commands know about each of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elmokit.embedding.elmo import Elmo
    from elmokit.evaluation.result import Result
    from elmokit.storage.part_results import PartResults
    from elmokit.storage.progress import ProgressCallback

Files = dict[str, list[Path]]
"""The data of an evaluation, by its role."""

EVALUATIONS = {
    "perplexity": ("elmokit.evaluation.perplexity", "Compute the perplexity of a text, and each token's surprisal."),
    "minimal-pairs": (
        "elmokit.evaluation.minimal_pairs",
        "Test whether a model prefers acceptable sentences (BLiMP).",
    ),
    "reading-times": (
        "elmokit.evaluation.reading_times",
        "Test how well surprisal explains reading times (Natural Stories).",
    ),
    "similarity": ("elmokit.evaluation.similarity", "Compare cosines of vectors with people's scores (STS benchmark)."),
    "pos": ("elmokit.evaluation.pos", "Probe parts of speech with a linear classifier."),
    "wsd": ("elmokit.evaluation.senses", "Probe word senses with a nearest-mean classifier."),
}
"""By name, in the order of the report: the module whose ``EVALUATION`` it is, and its line in ``elmokit evaluate
--help``. The module is imported when it is needed, so that the help is fast."""


@dataclass(frozen=True)
class EvaluationRun:
    """What an evaluation works with."""

    elmo: Elmo
    work: Path
    """A directory for what it keeps until it has finished, so that an interrupted run can be resumed."""
    parts: PartResults
    progress: ProgressCallback | None


@dataclass(frozen=True)
class Evaluation:
    """How the report and ``elmokit evaluate NAME`` find the data of an evaluation and run it."""

    title: str
    layout: str
    """The files in the directory of data."""
    find: Callable[[Path], Files | None]
    """Returns the files in a directory of data, or None if it has none for this evaluation."""
    run: Callable[[EvaluationRun, Files], Result]
    predicts: bool = False
    """Whether the model needs its softmax and vocabulary."""
    trains: bool = False
    """Whether it trains a classifier, which needs PyTorch."""


def load_evaluation(name: str) -> Evaluation:
    """Import the module of an evaluation."""
    evaluation: Evaluation = importlib.import_module(EVALUATIONS[name][0]).EVALUATION
    return evaluation


def existing_files(data: Path, *patterns: str) -> list[Path]:
    """List the files in a directory of data that match any of the patterns."""
    return sorted({path for pattern in patterns for path in data.glob(pattern) if path.is_file()})
