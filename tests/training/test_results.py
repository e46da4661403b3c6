"""A run's log in TensorBoard: what the log says, under names that group, and once where a run was stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elmokit.errors import MissingExtraError
from elmokit.training.reports import TrainingProgress
from elmokit.training.results import TensorBoardLog


def line(n_steps: int, held_out: tuple[float, ...] | None = None) -> TrainingProgress:
    return TrainingProgress(n_steps, 10 * n_steps, 0.5, 0.5, 100.0, 1.0, 0.01, 2.0, (5.0 + n_steps, 6.0), held_out)


def test_tensorboard_has_a_series_per_value_and_hides_repeated_steps(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    first = TensorBoardLog(tmp_path, 0)
    for progress in (line(1), line(2, (30.0, 20.0)), line(3)):
        first(progress)
    first.close()
    resumed = TensorBoardLog(tmp_path, 2)
    resumed(line(3, (29.0, 19.0)))
    resumed.close()
    found = accumulators.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    names = {"learning rate", "gradient norm", "tokens per second"}
    names |= {f"{what}/{way}" for what in ("training loss", "held-out perplexity") for way in ("forward", "backward")}
    assert set(found.Tags()["scalars"]) == names
    assert [(event.step, event.value) for event in found.Scalars("training loss/forward")] == [(1, 6), (2, 7), (3, 8)]
    assert [event.step for event in found.Scalars("held-out perplexity/backward")] == [2, 3]


def test_a_missing_tensorboard_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match="tensorboard"):
        TensorBoardLog(tmp_path, 0)
