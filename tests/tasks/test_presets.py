"""The presets: each learns a few written examples by heart, with fewer units, less dropout and faster steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elmokit.tasks.config_file import config_of
from elmokit.tasks.run import train_task
from elmokit.tasks.task_loop import TaskEvaluation, TaskTrainingState
from elmokit.tasks.task_table import TASKS
from tests.helpers.task_examples import TEXTS

PRESETS = [(name, preset) for name, task in TASKS.items() for preset in task.presets]
EPOCHS = {"nli": 100, "srl": 100, "coref": 150, "qa": 100, "sst": 100, "ner": 60}
QUICK: dict[str, dict[str, Any]] = {
    "ner": {"hidden": [24, 24], "dropout": 0.1},
    "sst": {"projection_dim": 24, "hidden": 24, "output_hidden": [24], "input_dropout": 0.1, "output_dropout": [0.1]},
    "nli": {"hidden": 24},
    "srl": {"predicate_dim": 8, "hidden": 24, "layers": 4},
    # Of texts so short, nearly all spans are kept, so that those of entities need not be found by chance.
    "coref": {"hidden": 24, "scorer_hidden": 24, "feature_dim": 8, "keep": 0.9, "max_width": 3},
    "qa": {"hidden": 24, "dropout": 0.0},
}


class Learned(Exception):
    """The examples are learned, so the rest of the training would only take time."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "preset"), PRESETS, ids=lambda part: part)
def test_a_preset_learns_its_examples_by_heart(
    name: str, preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskTrainingState, "save", lambda state, run: None)
    monkeypatch.setattr("elmokit.tasks.task_loop.save_if_best", lambda state, folder, task: None)
    text = tmp_path / "text"
    text.write_text(TEXTS[name], encoding="utf-8")
    off = dict.fromkeys(("patience", "plateau", "average", "eval_every"), False)
    content: dict[str, Any] = {
        "task": name,
        "preset": preset,
        "data": {"train": str(text), "dev": str(text)},
        "words": {"min_count": 1, "dim": 24},
        "model": QUICK[name],
        "train": {"epochs": EPOCHS[name], "batch_size": 1 if name == "coref" else 2, **off},
    }
    optimizer = TASKS[name].presets[preset].train.optimizer.name
    content["train"]["optimizer"] = {"learning_rate": {"adam": 0.01, "adadelta": 3.0}[optimizer]}

    def stop_when_learned(evaluation: TaskEvaluation) -> None:
        if evaluation.scores[TASKS[name].metric] >= 90:
            raise Learned

    with pytest.raises(Learned):
        train_task(*config_of(content, "the test"), tmp_path / "run", on_evaluation=stop_when_learned)
