"""What a training starts from: settings that meet each other, and texts that meet the run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from elmokit import finetune, train
from elmokit.training.reports import TrainingNotice
from elmokit.training.run import Run
from elmokit.training.settings import training_settings
from tests.helpers.tiny_training import SETTINGS, TEXT

pytestmark = pytest.mark.usefixtures("unrendered_curves")


def quiet(_: object) -> None:
    pass


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a directory of text."""
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    Path("texts/a.txt").write_text(TEXT)
    Path("dev.txt").write_text(TEXT)
    return Path("texts")


def softmax_of(**settings: Any) -> tuple[str, tuple[int, ...], int]:
    table = {"softmax": {"kind": "adaptive", "cutoffs": [5]}}
    config, _ = training_settings(None, "tiny", table, settings)
    return config.softmax.kind, config.softmax.cutoffs, config.softmax.inner_dim


def test_another_kind_of_softmax_leaves_out_what_described_the_one_before() -> None:
    assert softmax_of() == ("adaptive", (5,), 0)
    assert softmax_of(softmax="full") == ("full", (), 0)
    assert softmax_of(softmax="adaptive", cutoffs=(3,)) == ("adaptive", (3,), 0)
    config, _ = training_settings(
        None, "tiny", {"softmax": {"kind": "full", "inner_dim": 8}}, {"softmax": "adaptive", "cutoffs": (5,)}
    )
    assert (config.softmax.kind, config.softmax.inner_dim) == ("adaptive", 0)


@pytest.mark.slow
def test_held_out_text_that_is_trained_on_is_reported(corpus: Path) -> None:
    shutil.copy("dev.txt", "texts/dev.txt")
    said: list[object] = []
    train(corpus, held_out="texts/dev.txt", out="run", report=said.append, **SETTINGS)
    assert [str(one) for one in said if "trained on, too" in str(one)] == [
        "Held-out text: texts/dev.txt is trained on, too, so its perplexity will be too low. Take other text."
    ]


@pytest.mark.parametrize("save_every", [2, 1000])
def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(save_every: int, corpus: Path) -> None:
    def kill(report: object) -> None:
        if Path("run/model").exists():
            raise SystemExit

    settings = {**SETTINGS, "log_every": 1, "eval_every": 2, "save_every": save_every}
    with pytest.raises(SystemExit):
        train(corpus, held_out="dev.txt", out="run", report=kill, **settings)
    assert not Run("run").checkpoints()
    assert train(corpus, held_out="dev.txt", out="run", report=quiet, **settings).model is not None


@pytest.mark.slow
def test_held_out_text_that_begins_with_two_byte_order_marks_is_read_again_as_it_was(corpus: Path) -> None:
    Path("marked.txt").write_text("\ufeff\ufeff" + TEXT, encoding="utf-8")
    train(corpus, held_out="marked.txt", out="run", report=quiet, **SETTINGS)
    said: list[object] = []
    train(corpus, held_out="marked.txt", out="run", report=said.append, **SETTINGS)
    assert any(isinstance(one, TrainingNotice) and "already complete" in str(one) for one in said)


@pytest.mark.slow
def test_a_new_model_of_words_and_characters_keeps_its_optimizer_over_other_words(corpus: Path) -> None:
    settings = {**SETTINGS, "input": "both", "softmax_inner_dim": 8, "n_samples": 0, "save_every": 6}
    train(corpus, held_out="dev.txt", out="run", report=quiet, **settings)
    source = Run("run").checkpoints()[-1].path / "model"
    Path("other.txt").write_text("a cat and a dog ran .\nthe mat sat .\n" * 20)
    fine: dict[str, Any] = {"batch_size": 2, "window_length": 5, "tokens": 20, "device": "cpu"}
    for name, changes in (("words", {"max_words": 8}), ("inner", {"softmax_inner_dim": 4})):
        said: list[object] = []
        settings = fine | changes | {"keep_optimizer": True, "report": said.append}
        finetune(source, "other.txt", held_out="dev.txt", out=name, **settings)
        assert any("The optimizer continues with the state of" in str(one) for one in said), name
