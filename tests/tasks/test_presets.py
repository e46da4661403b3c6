"""Every preset, at its own sizes and with its own optimizer, learns a few written examples by heart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elmokit.tasks.loop import TaskEvaluation
from elmokit.tasks.run import train_task
from elmokit.tasks.table import TASKS, config_of
from tests.helpers.task_examples import TEXTS

PRESETS = [(name, preset) for name, task in TASKS.items() for preset in task.presets]
EPOCHS = {
    "nli": 100,
    "srl": 60,
    "coref": 150,
    "qa": 100,
    "sst": 100,
    "sst-published": 30,
    "coref-small": 250,
}  # else 40


class Learned(Exception):
    """The examples are learned, so the rest of the training would only take time."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "preset"), PRESETS, ids=lambda part: part)
def test_a_preset_learns_its_examples_by_heart(name: str, preset: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(TEXTS[name], encoding="utf-8")
    epochs = EPOCHS.get(f"{name}-{preset}", EPOCHS.get(name, 40))
    batch_size = 8 if (name, preset) == ("sst", "published") else 2
    content: dict[str, Any] = {
        "task": name,
        "preset": preset,
        "data": {"train": str(text), "dev": str(text)},
        "words": {"min_count": 1},
        "train": {
            "epochs": epochs,
            "batch_size": batch_size,
            "eval_every": 5,
            "patience": False,
            "plateau": False,
            "average": False,
        },
    }
    if name == "coref":
        content["model"] = {"keep": 0.9}  # of texts so short, so that spans need not be found by chance
    task, config = config_of(content, "the test")

    def stop_when_learned(evaluation: TaskEvaluation) -> None:
        if evaluation.scores[task.metric] >= 90:
            raise Learned

    with pytest.raises(Learned):
        train_task(task, config, tmp_path / "run", on_evaluation=stop_when_learned)
