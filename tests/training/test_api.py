"""The Python calls that train: the same run as the command line's, results, callbacks, resuming, clear errors."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmokit import (
    Elmo,
    LanguageModel,
    SentenceEmbedder,
    SentencePooling,
    TrainingResult,
    distill,
    finetune,
    open_model,
    resume,
    train,
)
from elmokit.embedding.start_state import calibrate_start_state
from elmokit.errors import ConfigError, FormatError, TrainingError
from elmokit.formats.folder import load_folder
from elmokit.formats.model import PretrainedBiLM
from elmokit.tasks.bilm_training import copy_for_training
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.distributed import World
from elmokit.training.reports import (
    CountingProgress,
    CountingStart,
    ModelSizes,
    TextCounts,
    TrainingNotice,
    TrainingPlan,
    TrainingProgress,
    TrainingReport,
)
from elmokit.training.run import MetricsLog, Run
from elmokit.training.setup import RunSettings
from tests.conftest import random_model
from tests.helpers import tiny_training
from tests.helpers.tiny_training import TEXT

pytestmark = pytest.mark.usefixtures("unrendered_curves")

SETTINGS = tiny_training.SETTINGS | {"dropout": 0.1}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a text."""
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text(TEXT)
    return Path("corpus.txt")


def weights(model: PretrainedBiLM) -> dict[str, torch.Tensor]:
    assert model.softmax_module is not None
    return {**model.bilm.state_dict(), **model.softmax_module.state_dict()}


def assert_same_weights(one: PretrainedBiLM, other: PretrainedBiLM) -> None:
    for name, tensor in weights(one).items():
        assert torch.equal(tensor, weights(other)[name]), name


def test_train_returns_the_best_model_and_its_perplexity(corpus: Path) -> None:
    result = train(corpus, held_out=corpus, out="run", report=lambda _: None, **SETTINGS)
    assert result.run == Path("run")
    assert_same_weights(result.model, load_folder("run/model"))
    assert result.model.start_state is not None
    assert len(result.best_perplexity) == 2
    assert result.best_step in (3, 6)
    assert result.perplexity.n_sentences == 40
    assert not result.before_and_after
    assert Elmo.from_pretrained("run").embed([["the", "cat"]])[0].shape == (3, 2, 64)
    result.model.card["held_out_perplexity"] = 1.5  # as in a damaged file
    with pytest.raises(FormatError, match=r"The model card in run/model is damaged \(Expected `array`"):
        print(result)


KINDS: dict[str, dict[str, Any]] = {
    "characters": {},
    "words": {"input": "words", "softmax": "tied"},
    "forward only": {"bidirectional": False},
    "adaptive softmax": {"softmax": "adaptive", "cutoffs": (4,)},
    "averaged weights": {"ema_decay": 0.9},
    "sampled": {"n_samples": 4, "precision": "bfloat16"},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_held_out_perplexity_in_training_is_that_of_evaluate_perplexity(kind: str, corpus: Path) -> None:
    Path("dev.txt").write_text("the dog sat on the mat .\nthe cat ran .\nthe dog sat .\n")
    lines: list[TrainingProgress] = []

    def report(content: TrainingReport) -> None:
        if isinstance(content, TrainingProgress) and content.held_out is not None:
            lines.append(content)

    result = train(corpus, held_out="dev.txt", out="run", report=report, **(SETTINGS | KINDS[kind]))
    found = LanguageModel.from_pretrained("run").perplexity("dev.txt")
    assert result.best_perplexity == pytest.approx(found.per_direction, rel=1e-5)
    last = Run(Path("run")).checkpoints()[-1].path / ("average" if kind == "averaged weights" else "model")
    of_checkpoint = LanguageModel.from_pretrained(last).perplexity("dev.txt")
    assert result.perplexity.per_direction == pytest.approx(of_checkpoint.per_direction, rel=1e-5)
    assert tuple(result.best_perplexity) in [line.held_out for line in lines]
    assert {line.held_out_unknown_ratio for line in lines} == {found.unknown_ratio}
    assert f"({found.unknown_ratio:.1%} unknown words)" in str(lines[0])
    assert f"({found.unknown_ratio:.1%} unknown words)" in str(result)


def test_finetuning_first_evaluates_the_unchanged_model(corpus: Path) -> None:
    model = random_model()
    calibrate_start_state(model, [["the", "cat"]], "a cat")
    harmful = {"learning_rate": 3.0, "warmup_ratio": 0.0, "batch_size": 2, "window_length": 5, "tokens": 20}
    result = finetune(model, corpus, held_out=corpus, out="run", report=lambda _: None, **harmful)
    found = LanguageModel(model).perplexity("corpus.txt")
    assert result.perplexity_before == pytest.approx(found.per_direction, rel=1e-5)
    assert result.best_step == 0  # the given model is kept, with its own state
    assert result.model.card["warm_state"] == model.card["warm_state"]
    for ours, given in zip(result.model.start_state or (), model.start_state or (), strict=True):
        np.testing.assert_array_equal(ours, given)


@pytest.mark.slow
def test_many_unknown_words_in_the_held_out_text_are_a_warning(corpus: Path) -> None:
    Path("other.txt").write_text("le chat dort .\n" * 3)
    told: list[str] = []

    def report(content: TrainingReport) -> None:
        if isinstance(content, TrainingNotice):
            told.append(content.message)

    train(corpus, held_out=corpus, out="run", report=report, **SETTINGS)
    assert not any("vocabulary" in message for message in told)
    train(corpus, held_out="other.txt", out="other", report=report, **SETTINGS)
    (warning,) = (message for message in told if "vocabulary" in message)
    assert warning.startswith("Held-out text: 75.0% of the words are not in the model's vocabulary")
    told.clear()
    settings = {"tokens": 20, "batch_size": 2, "window_length": 5}
    finetune(random_model(), corpus, held_out=corpus, old_text="other.txt", out="tuned", report=report, **settings)
    assert any(message.startswith("Old text: 75.0% of the words") for message in told)


@pytest.mark.slow
def test_fine_tuning_says_that_maps_of_the_old_weights_are_left_out(corpus: Path) -> None:
    model, told = random_model(), list[str]()
    SentenceEmbedder(Elmo(model), SentencePooling()).fit([["the", "cat"], ["the", "dog", "sat"], ["a", "mat"]])
    assert model.whitening is not None

    def report(content: Any) -> None:
        if isinstance(content, TrainingNotice):
            told.append(content.message)

    settings = {"tokens": 20, "batch_size": 2, "window_length": 5}
    finetune(model, corpus, held_out=corpus, out="tuned", report=report, **settings)
    assert "Left out, because fitted to the old weights: the model's whitening. Fit them again." in told
    assert open_model("tuned/model").whitening is None
    assert copy_for_training(Elmo(model)).model.whitening is None


@pytest.mark.slow
def test_train_in_python_and_in_the_shell_make_the_same_run(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from elmokit.cli.main import main

    result = train("corpus.txt", held_out=["corpus.txt"], out=Path("python"), n_samples=4, **SETTINGS)
    shown = capsys.readouterr()
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    monkeypatch.setattr(
        sys, "argv", ["elmokit", "train", "corpus.txt", "--held-out=corpus.txt", "--out=shell", "--n-samples=4", *flags]
    )
    with pytest.raises(SystemExit):
        main()
    assert_same_weights(result.model, load_folder("shell/model"))
    assert RunSettings.open(Path("python")) == RunSettings.open(Path("shell"))
    logs = [MetricsLog(Path(run, "metrics.jsonl")).records() for run in ("python", "shell")]
    for ours, theirs in zip(*logs, strict=True):
        assert ours["losses"] == theirs["losses"]
        assert ours["held_out"] == theirs["held_out"]
    printed = capsys.readouterr()
    assert [line[:11] for line in shown.out.splitlines()] == [line[:11] for line in printed.out.splitlines()[:-3]]
    assert "Counting 1 file" in shown.err


def test_the_callback_gets_counts_sizes_plan_and_every_line_of_the_log(corpus: Path) -> None:
    reports: list[TrainingReport] = []
    Path("dev.txt").write_text(TEXT)
    train(corpus, held_out="dev.txt", out="run", report=reports.append, log_every=2, **SETTINGS)
    kinds = Counter(type(report) for report in reports)
    assert kinds == {
        CountingStart: 1,
        CountingProgress: 1,
        TextCounts: 1,
        ModelSizes: 1,
        TrainingPlan: 1,
        TrainingProgress: 4,
    }
    lines = [report for report in reports if isinstance(report, TrainingProgress)]
    assert [line.n_steps for line in lines] == [2, 3, 4, 6]
    assert all(str(report) for report in reports)


def test_a_resumed_run_reports_what_remains(corpus: Path) -> None:
    def stop(report: TrainingReport) -> None:
        if isinstance(report, TrainingProgress) and report.n_steps == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(corpus, held_out=corpus, out="run", report=stop, log_every=1, **{**SETTINGS, "save_every": 2})
    reports: list[TrainingReport] = []
    resume("run", report=reports.append)
    (plan,) = (report for report in reports if isinstance(report, TrainingPlan))
    assert (plan.n_steps_done, plan.n_steps, plan.seconds) == (2, 4, None)


@pytest.mark.slow
def test_finetune_takes_a_model_or_its_path_and_compares_before_and_after(corpus: Path) -> None:
    settings = {**SETTINGS, "learning_rate": 0.02, "tokens": 300, "patience": 0}
    del settings["preset"], settings["max_words"]
    model = random_model()
    result = finetune(model, corpus, held_out=corpus, out="run", old_text=corpus, report=lambda _: None, **settings)
    assert set(result.before_and_after) == {"held-out", "old text"}
    for values in result.before_and_after.values():
        assert all(after < before for before, after in zip(values["before"], values["after"], strict=True))
    assert "Old text: " in str(result)
    again = finetune("run", corpus, held_out=corpus, out="again", report=lambda _: None, **settings)
    assert again.before_and_after["held-out"]["before"] == pytest.approx(result.before_and_after["held-out"]["after"])


@pytest.mark.slow
def test_resume_ends_with_the_numbers_of_an_uninterrupted_run(corpus: Path) -> None:
    straight = train(corpus, held_out=corpus, out="straight", report=lambda _: None, **SETTINGS)

    with pytest.raises(Interrupted):
        train(corpus, held_out=corpus, out="run", save_every=1, log_every=2, report=interrupt, **SETTINGS)
    resumed = resume("run", log_every=50, device="cpu", report=lambda _: None)
    assert resumed.perplexity.mean_nats == straight.perplexity.mean_nats
    assert_same_weights(resumed.model, straight.model)
    longer = resume("run", tokens=80, device="cpu", report=lambda _: None)
    assert RunSettings.open(Path("run")).n_predictions == 80
    assert longer.run == Path("run")


def test_a_vocabulary_can_be_given_as_an_object(corpus: Path) -> None:
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "the", "."])
    settings = {name: value for name, value in SETTINGS.items() if name != "max_words"}
    result = train(corpus, held_out=corpus, out="run", vocabulary=vocabulary, report=lambda _: None, **settings)
    assert result.model.vocabulary is not None
    assert result.model.vocabulary.words == vocabulary.words


class Interrupted(Exception):
    pass


def interrupt(report: TrainingReport) -> None:
    if isinstance(report, TrainingProgress):
        raise Interrupted


def start(kind: str, out: str, **settings: Any) -> TrainingResult:
    """Train, distill or fine-tune, from settings that fit all of them."""
    given = {**SETTINGS, "save_every": 1, "log_every": 2, "report": lambda _: None, **settings}
    if kind != "train":
        del given["max_words"]
    if kind == "finetune":
        del given["preset"]
        return finetune(random_model(), "corpus.txt", held_out="corpus.txt", out=out, old_text="corpus.txt", **given)
    if kind == "distill":
        return distill(random_model(), "corpus.txt", held_out="corpus.txt", out=out, **given)
    return train("corpus.txt", held_out="corpus.txt", out=out, **given)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["train", "words", "finetune", "distill"])
def test_the_same_call_continues_an_interrupted_run(kind: str, corpus: Path) -> None:
    more: dict[str, Any] = {"input": "words", "softmax": "tied"} if kind == "words" else {}
    kind = kind.replace("words", "train")
    straight = start(kind, "straight", **more)
    with pytest.raises(Interrupted):
        start(kind, "run", report=interrupt, **more)
    assert Run("run").checkpoints()
    reports: list[TrainingReport] = []
    resumed = start(kind, "run", report=reports.append, **more)
    (plan,) = (report for report in reports if isinstance(report, TrainingPlan))
    assert plan.n_steps_done > 0
    assert not any(isinstance(report, CountingProgress) for report in reports)  # the text is not counted again
    assert resumed.perplexity.mean_nats == straight.perplexity.mean_nats
    assert_same_weights(resumed.model, straight.model)
    longer = start(kind, "run", tokens=80, **more)
    assert RunSettings.open(Path("run")).n_predictions == 80
    assert longer.perplexity.mean_nats != straight.perplexity.mean_nats


@pytest.mark.slow
def test_settings_that_are_newer_than_a_run_have_their_defaults_in_it(corpus: Path) -> None:
    start("train", "run")
    path = Path("run/settings.json")
    settings = json.loads(path.read_text())
    for config in (settings["config"], settings["request"]):
        del config["softmax"]["inner_dim"], config["word_dropout"]
    path.write_text(json.dumps(settings))
    with pytest.raises(TrainingError, match=r"other settings: softmax.inner_dim was 0 and is 8\. Continue it"):
        start("train", "run", softmax_inner_dim=8)
    start("train", "run", tokens=80)
    assert RunSettings.open(Path("run")).n_predictions == 80


@pytest.mark.slow
def test_overwriting_starts_anew(corpus: Path) -> None:
    first = start("train", "run")
    assert first.perplexity.n_sentences == 40
    second = start("train", "run", batch_size=4, overwrite=True)
    assert RunSettings.open(Path("run")).config.batch_size == 4
    assert second.best_step <= 3
    assert [checkpoint.n_steps for checkpoint in Run("run").checkpoints()] == [2, 3]
    with pytest.raises(ConfigError):
        start("train", "run", batch_size=0, overwrite=True)
    assert RunSettings.open(Path("run")).config.batch_size == 4  # a mistake deletes nothing


def test_an_error_in_the_main_process_is_raised_in_its_caller() -> None:
    def fail() -> None:
        raise ConfigError("no")

    with pytest.raises(ConfigError, match="no"):
        World().on_main_process(fail)
    assert World().on_main_process(lambda: 3) == 3
