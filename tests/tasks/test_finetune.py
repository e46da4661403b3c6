"""``elmo.finetune``: the biLM learns a task's text before the task does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from elmokit.errors import TextError
from elmokit.formats.folder import load_folder, save_folder
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from elmokit.lm.perplexity import perplexity
from elmokit.tasks.bilm_training import finetune_for_task
from elmokit.tasks.task_config import FinetuneConfig
from tests.conftest import random_model
from tests.helpers.shell import Shell
from tests.helpers.task_examples import write_config

pytestmark = pytest.mark.usefixtures("unrendered_curves")

CPU = torch.device("cpu")
SENTENCES = [["the", "cat", "sat", "on", "the", "mat", "."], ["the", "dog", "ran", "."], ["the", "zebra", "ran"]] * 20


@pytest.mark.slow
def test_a_task_can_use_a_bilm_fine_tuned_on_its_text(task_shell: Shell) -> None:
    save_folder(random_model(), Path("bilm"))
    write_config(elmo={"model": "bilm", "finetune": {"epochs": 10, "learning_rate": 1e-2}}, train={"epochs": 2})
    ran = task_shell("train", "config.toml", "--run", "run")
    assert ran.code == 0, ran.err
    tuned = load_folder(Path("run/bilm"))
    assert tuned.start_state is not None
    assert tuned.card["initial"]["source"] == "bilm"
    assert task_shell("evaluate", "run", "data").code == 0


@pytest.mark.slow
def test_fine_tuning_lowers_the_perplexity_of_the_tasks_text(tmp_path: Path) -> None:
    save_folder(random_model(), tmp_path / "bilm")
    config = FinetuneConfig(epochs=60, learning_rate=1e-2)
    finetune_for_task(str(tmp_path / "bilm"), SENTENCES, config, tmp_path / "tuned", CPU)
    before, after = (perplexity(load_folder(tmp_path / name), SENTENCES).mean for name in ("bilm", "tuned"))
    assert after < before / 2


@pytest.mark.slow
def test_a_published_file_without_a_softmax_can_be_fine_tuned(tmp_path: Path) -> None:
    save_model(random_model(), tmp_path / "weights.hdf5")
    finetune_for_task(str(tmp_path / "weights.hdf5"), SENTENCES, FinetuneConfig(), tmp_path / "tuned", CPU)
    tuned = open_model(tmp_path / "tuned")
    assert tuned.vocabulary is not None
    assert "zebra" in tuned.vocabulary.ids


def test_too_little_text_is_an_error(tmp_path: Path) -> None:
    save_folder(random_model(), tmp_path / "bilm")
    with pytest.raises(TextError, match=r"1 sentence is too little.*elmo\.finetune"):
        finetune_for_task(str(tmp_path / "bilm"), SENTENCES[:1], FinetuneConfig(), tmp_path / "tuned", CPU)
