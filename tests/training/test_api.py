"""The Python calls that train: the same run as the command line's, results, callbacks, resuming, clear errors."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmokit import (
    Elmo,
    LanguageModel,
    SentenceEmbedder,
    SentencePooling,
    TrainingResult,
    distill,
    finetune,
    open_model,
    train,
)
from elmokit.embedding.computer import Computer
from elmokit.embedding.start_state import calibrated
from elmokit.engine.layer_selection import LayerAlignment
from elmokit.errors import TrainingError
from elmokit.formats.folder import load_folder
from elmokit.lm.perplexity import Perplexity
from elmokit.tasks.trained_bilm import copy_for_training
from elmokit.text.vocabulary import Vocabulary, name_words
from tests.conftest import random_model
from tests.helpers import tiny_training
from tests.helpers.tiny_training import (
    TEXT,
    Reports,
    assert_same_weights,
    config_of,
    log_lines,
    newest_checkpoint,
)

SETTINGS = tiny_training.SETTINGS | {"dropout": 0.1}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a text."""
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text(TEXT)
    return Path("corpus.txt")


def start(kind: str, out: str, **settings: Any) -> TrainingResult:
    """Train, distill or fine-tune, from settings that fit all of them."""
    given = {**SETTINGS, "held_out": "corpus.txt", "save_every": 1, "log_every": 2, "report": Reports(), **settings}
    if kind in ("finetune", "distill"):
        del given["max_words"]
    if kind == "finetune":
        del given["preset"]
        return finetune(
            given.pop("model", random_model()), "corpus.txt", out=out, **{"old_text": "corpus.txt", **given}
        )
    if kind == "distill":
        return distill(random_model(), "corpus.txt", out=out, **given)
    return train("corpus.txt", out=out, **given)


def test_train_returns_the_best_model_and_its_perplexity(corpus: Path) -> None:
    result = train(corpus, held_out=corpus, out="run", report=Reports(), **SETTINGS)
    assert result.run == Path("run")
    assert_same_weights(result.model, load_folder("run/model"))
    assert result.model.start_state is not None
    assert len(result.best_perplexity) == 2
    assert result.best_step in (3, 6)
    assert result.perplexity.n_sentences == 40
    assert not result.before_and_after
    assert Elmo.from_pretrained("run").embed([["the", "cat"]])[0].shape == (3, 2, 64)
    with pytest.raises(TrainingError, match="run has no best model"):
        assert replace(result, best_model=None).model


@pytest.mark.parametrize(
    "kind", ["train", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("finetune", "distill"))]
)
def test_a_training_that_diverges_names_the_remedy(kind: str, corpus: Path) -> None:
    reports = Reports()
    result = start(kind, "run", report=reports, tokens=200, learning_rate=3.0)
    diverging = [notice for notice in reports.notices if "the training diverges" in notice]
    assert max(result.perplexity.per_direction) > 1.5 * 9
    assert 1 <= len(diverging) <= 2
    assert diverging[-1].endswith("Use a lower learning_rate or max_grad_norm.")
    assert "the best mean of both was" in diverging[-1] or "a guess among the" in diverging[-1]


def test_a_training_without_any_model_is_an_error(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Perplexity((math.inf, math.inf), 4, 0.0, 1, 9)
    monkeypatch.setattr("elmokit.training.loop.perplexity", lambda *_: endless)
    with pytest.raises(TrainingError, match=r"run has no model: .* never finite\. Use a lower learning_rate"):
        train(corpus, held_out=corpus, out="run", report=Reports(), **SETTINGS)
    # The same call says so again.
    with pytest.raises(TrainingError, match="run has no model"):
        train(corpus, held_out=corpus, out="run", report=Reports(), **SETTINGS)


KINDS: dict[str, dict[str, Any]] = {
    "characters": {},
    "words": {"input": "words", "softmax": "tied"},
    "forward only": {"bidirectional": False},
    "bilm-tf": {"recipe": "bilm-tf"},
    "of a student": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_held_out_perplexity_in_training_is_that_of_evaluate_perplexity(kind: str, corpus: Path) -> None:
    Path("dev.txt").write_text("the dog sat on the mat .\nthe cat ran .\nthe dog sat .\n")
    reports = Reports()
    result = start(kind.replace("of a student", "distill"), "run", held_out="dev.txt", report=reports, **KINDS[kind])
    found = LanguageModel.from_pretrained("run").perplexity("dev.txt")
    assert result.best_perplexity == pytest.approx(found.per_direction, rel=1e-5)
    last = newest_checkpoint("run").path / ("model" if kind == "bilm-tf" else "average")
    of_checkpoint = LanguageModel.from_pretrained(last).perplexity("dev.txt")
    assert result.perplexity.per_direction == pytest.approx(of_checkpoint.per_direction, rel=1e-5)
    lines = [line for line in reports.lines if line.held_out is not None]
    assert tuple(result.best_perplexity) in [line.held_out for line in lines]
    assert {line.held_out_unknown_ratio for line in lines} == {found.unknown_ratio}
    named = f": {name_words(found.unknown_words)}" if found.unknown_words else ""
    assert f"({found.unknown_ratio:.1%} unknown words)" in str(lines[0])
    assert f"({found.unknown_ratio:.1%} unknown words{named})" in str(result)


def test_finetuning_first_evaluates_the_unchanged_model(corpus: Path) -> None:
    model = random_model()
    model = calibrated(Computer(model), [["the", "cat"]], "a cat")
    harmful = {"recipe": "bilm-tf", "learning_rate": 9.0, "batch_size": 2, "window_length": 5, "tokens": 20}
    result = finetune(model, corpus, held_out=corpus, out="run", report=Reports(), **harmful)
    found = LanguageModel(model).perplexity("corpus.txt")
    assert result.perplexity_before == pytest.approx(found.per_direction, rel=1e-5)
    assert result.best_step == 0  # the given model is kept, with its own state
    assert "Training did not improve the model, so the original weights were kept." in str(result)
    assert result.model.card["warm_state"] == model.card["warm_state"]
    for ours, given in zip(result.model.start_state or (), model.start_state or (), strict=True):
        np.testing.assert_array_equal(ours, given)


@pytest.mark.slow
def test_many_unknown_words_in_the_held_out_text_are_a_warning(corpus: Path) -> None:
    Path("other.txt").write_text("le chat dort .\n" * 3)
    unknown, old = Reports(), Reports()
    start("train", "other", held_out="other.txt", report=unknown)
    (warning,) = (message for message in unknown.notices if "vocabulary" in message)
    assert warning.startswith("Held-out text: 75.0% of the words ('le', 'chat', 'dort') are not in the model's")
    start("finetune", "tuned", old_text="other.txt", report=old)
    assert any(message.startswith("Old text: 75.0% of the words") for message in old.notices)


@pytest.mark.slow
def test_fine_tuning_says_that_maps_of_the_old_weights_are_left_out(corpus: Path) -> None:
    model, reports = random_model(), Reports()
    embedder = SentenceEmbedder(Elmo(model), SentencePooling())
    model = embedder.fit([["the", "cat"], ["the", "dog", "sat"], ["a", "mat"]]).elmo.model
    model = model.replace(alignment=LayerAlignment.of_matrices(np.stack([np.eye(64, dtype=np.float32)] * 3)))
    assert model.whitening is not None
    start("finetune", "tuned", model=model, report=reports)
    (told,) = (message for message in reports.notices if message.startswith("Left out"))
    assert "whitening" in told
    assert "alignment" in told
    tuned = open_model("tuned/model")
    assert tuned.whitening is tuned.alignment is None
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
    assert config_of("python") == config_of("shell")
    logs = [log_lines(Path(run)) for run in ("python", "shell")]
    for ours, theirs in zip(*logs, strict=True):
        assert ours["losses"] == theirs["losses"]
        assert ours["held_out"] == theirs["held_out"]
    printed = capsys.readouterr()
    assert [line[:11] for line in shown.out.splitlines()] == [line[:11] for line in printed.out.splitlines()[:-2]]
    assert "Counting 1 file" in shown.err


@pytest.mark.slow
def test_finetune_takes_a_model_or_its_path_and_compares_before_and_after(corpus: Path) -> None:
    # A fifth of the perplexity is left, or less, with each of eight seeds.
    settings = {**SETTINGS, "learning_rate": 0.05, "batch_size": 8, "tokens": 1600, "eval_every": 1000}
    del settings["preset"], settings["max_words"]
    model = random_model()
    result = finetune(model, corpus, held_out=corpus, out="run", old_text=corpus, report=Reports(), **settings)
    assert set(result.before_and_after) == {"held-out", "old text"}
    for values in result.before_and_after.values():
        assert all(after < before / 2 for before, after in zip(values["before"], values["after"], strict=True))
    assert "Old text: " in str(result)
    again = finetune("run", corpus, held_out=corpus, out="again", report=Reports(), **{**settings, "tokens": 10})
    assert again.before_and_after["held-out"]["before"] == pytest.approx(result.before_and_after["held-out"]["after"])


def test_a_vocabulary_can_be_given_as_an_object(corpus: Path) -> None:
    vocabulary = Vocabulary(["<S>", "</S>", "<UNK>", "the", "."])
    settings = {name: value for name, value in SETTINGS.items() if name != "max_words"}
    result = train(corpus, held_out=corpus, out="run", vocabulary=vocabulary, report=Reports(), **settings)
    assert result.model.vocabulary.words == vocabulary.words


@pytest.mark.slow
def test_held_out_text_is_read_again_as_it_was_and_reported_if_it_is_trained_on(corpus: Path) -> None:
    Path("marked.txt").write_text("\ufeff\ufeff" + TEXT, encoding="utf-8")
    for held_out in ("marked.txt", "corpus.txt"):
        first, again = Reports(), Reports()
        for reports in (first, again):
            start("train", f"run-{held_out}", held_out=held_out, report=reports)
        assert any("trained on, too" in notice for notice in first.notices) == (held_out == "corpus.txt")
        assert any("already complete" in notice for notice in again.notices)


def test_a_run_reads_the_sentences_that_it_wrote_whatever_they_look_like(corpus: Path) -> None:
    # Read as bilm-tf reads it, a text can have NUL characters.
    Path("held.txt").write_text(f"the cat \0 sat\n{TEXT}", encoding="utf-8")
    settings = {"held_out": "held.txt", "bilm_tf_lines": True, "recipe": "bilm-tf"}
    started, continued = start("train", "run", **settings), start("train", "run", **settings)
    assert continued.perplexity == started.perplexity
