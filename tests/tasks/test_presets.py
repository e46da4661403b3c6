"""The presets: small ones learn a few written examples by heart; the large ones, at their own sizes, begin to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elmokit.tasks.run import train_task
from elmokit.tasks.task_loop import TaskEvaluation, TaskTrainingState
from elmokit.tasks.task_table import TASKS, config_of
from tests.helpers.task_examples import TEXTS

LARGE = [(name, preset) for name, task in TASKS.items() for preset in task.presets if preset != "small"]
EPOCHS = {"nli": 100, "srl": 60, "coref": 250, "qa": 100, "sst": 100, "ner": 40}


class Learned(Exception):
    """The examples are learned, so the rest of the training would only take time."""


@pytest.fixture(autouse=True)
def nothing_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out checkpoints: to write a model of published size takes longer than to train it for some steps."""
    monkeypatch.setattr(TaskTrainingState, "save", lambda state, run: None)
    monkeypatch.setattr("elmokit.tasks.task_loop.save_if_best", lambda state, folder, task: None)


def train(name: str, preset: str, folder: Path, epochs: int, batch_size: int, on_evaluation: Any) -> None:
    text = folder / "text"
    text.write_text(TEXTS[name], encoding="utf-8")
    off = dict.fromkeys(("patience", "plateau", "average", "eval_every"), False)
    content: dict[str, Any] = {
        "task": name,
        "preset": preset,
        "data": {"train": str(text), "dev": str(text)},
        "words": {"min_count": 1},
        "train": {"epochs": epochs, "batch_size": batch_size, **off},
    }
    if name == "coref":
        content["model"] = {"keep": 0.9}  # of texts so short, so that spans need not be found by chance
    train_task(*config_of(content, "the test"), folder / "run", on_evaluation=on_evaluation)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_a_small_preset_learns_its_examples_by_heart(name: str, tmp_path: Path) -> None:
    def stop_when_learned(evaluation: TaskEvaluation) -> None:
        if evaluation.scores[TASKS[name].metric] >= 90:
            raise Learned

    with pytest.raises(Learned):
        train(name, "small", tmp_path, EPOCHS[name], 2, stop_when_learned)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "preset"), LARGE, ids=lambda part: part)
def test_a_large_preset_lowers_its_loss(name: str, preset: str, tmp_path: Path) -> None:
    losses: list[float] = []

    def stop_when_lower(evaluation: TaskEvaluation) -> None:
        losses.append(evaluation.loss)
        if losses[-1] < 0.95 * losses[0]:
            raise Learned

    with pytest.raises(Learned):
        train(name, preset, tmp_path, 60, 8, stop_when_lower)
