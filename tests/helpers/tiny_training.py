"""A text and settings with which a training takes a moment, and what tests ask of a training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from elmokit.lm.perplexity import Perplexity
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.training.bilm_run import TrainingSetup
from elmokit.training.loop import run_training
from elmokit.training.reports import TrainingNotice, TrainingProgress, TrainingReport
from elmokit.training.training_config import TrainingConfig
from elmokit.training.training_run import LOG, Run, RunCheckpoint, checkpoints
from tests.helpers.killing import Killed

TEXT = "the cat sat on the mat .\nthe dog ran .\n" * 20
SETTINGS: dict[str, Any] = {
    "preset": "tiny",
    "max_words": 9,
    "batch_size": 2,
    "window_length": 5,
    "tokens": 60,
    "eval_every": 3,
    "device": "cpu",
}


class Reports(list[TrainingReport]):
    """A callback that keeps everything that a training reports."""

    __call__ = list.append

    @property
    def lines(self) -> list[TrainingProgress]:
        """The lines of the log."""
        return [report for report in self if isinstance(report, TrainingProgress)]

    @property
    def notices(self) -> list[str]:
        """What was said besides."""
        return [report.message for report in self if isinstance(report, TrainingNotice)]


def kill_after(n_steps: int) -> Callable[[TrainingReport], None]:
    """Return a callback that ends a training at the line of the log after some steps."""

    def report(content: TrainingReport) -> None:
        if isinstance(content, TrainingProgress) and content.n_steps >= n_steps:
            raise Killed

    return report


def train_in(
    folder: Path, setup: TrainingSetup, report: Callable[[TrainingReport], None] = lambda _: None
) -> Perplexity:
    """Train in a directory what was not started by a public call, or continue it."""
    with Run(folder, {}) as run:
        return run_training(setup, run, report)


def newest_checkpoint(run: str | Path) -> RunCheckpoint:
    """Return the last checkpoint of a run."""
    return checkpoints(Path(run))[-1]


def config_of(run: str | Path) -> TrainingConfig:
    """Return what a run is trained with."""
    return TrainingSetup.open(Path(run)).config


def weights(model: PretrainedBiLM) -> dict[str, torch.Tensor]:
    """Return the tensors of the biLM and of its softmax."""
    assert model.softmax is not None
    arrays = {**model.arrays, **model.softmax.arrays}
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}


def assert_same_weights(one: PretrainedBiLM, other: PretrainedBiLM) -> None:
    """Compare two models bit by bit."""
    found, expected = weights(one), weights(other)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


def log_lines(run: Path) -> list[dict[str, Any]]:
    """Read the log of a run."""
    return [json.loads(line) for line in (run / LOG).read_text(encoding="utf-8").splitlines()]
