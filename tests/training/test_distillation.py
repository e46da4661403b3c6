"""Distillation: a student learns the layers and the predictions of a teacher, and a run resumes as any other."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import elmokit
from elmokit.engine.architecture import PRESETS, BiLMConfig
from elmokit.network.bilm import BiLMState
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.text import Text
from elmokit.training.distillation import DistillationLosses, Teacher, window_encoder
from elmokit.training.shards import ReadingOrder, SentenceBlocks
from elmokit.training.training_config import DistillationConfig
from elmokit.training.windows import WindowStream
from tests.conftest import random_model
from tests.helpers.killing import Killed
from tests.helpers.many_langs_files import toy_model
from tests.helpers.tiny_training import Reports, kill_after, newest_checkpoint

TEXT = "the cat sat on the mat .\nthe dog ran .\n\na cat and a dog ran on .\nthe mat sat .\n" * 4
SMALL: dict[str, Any] = {
    "preset": "tiny",
    "hidden_dim": 24,
    "projection_dim": 16,
    "tokens": 6 * 4 * 5,
    "batch_size": 4,
    "window_length": 5,
    "eval_every": 3,
    "save_every": 2,
    "log_every": 1,
    "learning_rate": 1e-2,
}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


def distill(teacher: PretrainedBiLM | str, out: str = "run", **settings: Any) -> elmokit.TrainingResult:
    settings = {"report": Reports(), **SMALL, **settings}
    return elmokit.distill(teacher, "text.txt", held_out="text.txt", out=out, **settings)


def stream(model: PretrainedBiLM, teacher: PretrainedBiLM) -> WindowStream:
    assert model.vocabulary is not None
    encode = window_encoder(model, teacher)
    return WindowStream(
        [SentenceBlocks(Text("text.txt"), ReadingOrder())], model.vocabulary, encode, 4, 5, model.config.read_backward
    )


def losses_of(
    student: PretrainedBiLM, teacher: PretrainedBiLM, config: DistillationConfig, n_samples: int = 0
) -> tuple[DistillationLosses, list[torch.Tensor]]:
    """The loss of a student, and the arguments of its first window."""
    assert student.softmax is not None
    reader = Teacher(teacher, student, torch.device("cpu"))
    torch.manual_seed(0)
    bilm, softmax = student.build_modules()
    assert softmax is not None
    losses = DistillationLosses(bilm, softmax, n_samples, reader, config)
    window = next(stream(student, teacher))
    tensors = [torch.from_numpy(array) for array in (window.tokens, window.inputs, window.targets)]
    return losses, [*tensors, *bilm.zero_state(4), *reader.bilm.zero_state(4)]


def small_student(**changes: Any) -> PretrainedBiLM:
    sizes = dataclasses.replace(PRESETS["tiny"], hidden_dim=24, projection_dim=16, dropout=0.0, **changes)
    return random_model(sizes, seed=1)


def test_a_student_equal_to_its_teacher_with_the_identity_has_no_loss(corpus: Path, model: PretrainedBiLM) -> None:
    config = DistillationConfig(prediction_weight=1.0, text_weight=0.0)
    student = random_model(dataclasses.replace(PRESETS["tiny"], dropout=0.0))
    losses, arguments = losses_of(student, model, config)
    with torch.no_grad():
        for projection in losses.projections:
            projection.weight.copy_(torch.eye(32))  # type: ignore[union-attr, operator]
            projection.bias.zero_()  # type: ignore[union-attr, operator]
    found, *ends = losses(*arguments)
    torch.testing.assert_close(found, torch.zeros(2), atol=1e-6, rtol=0)
    # The teacher read the same window, so its state ends where the student's does.
    for own, other in zip(ends[:2], ends[2:], strict=True):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=1e-5)


def test_the_loss_of_layers_is_that_of_its_definition(corpus: Path, model: PretrainedBiLM) -> None:
    student = small_student()
    config = DistillationConfig(prediction_weight=0.0, text_weight=0.0)
    losses, arguments = losses_of(student, model, config)
    found = losses(*arguments)[0]
    tokens, inputs = arguments[:2]
    for direction in range(2):
        layers = []
        for bilm in (student.build_bilm(), model.build_bilm()):
            vectors = bilm.token_layer(tokens)[inputs[direction]]
            outputs, _ = bilm.run_direction(direction, vectors, bilm.zero_state(4).of_direction(direction))
            layers.append([vectors, *outputs])
        expected = []
        for layer, (given, wanted) in enumerate(zip(*layers, strict=True)):
            given = losses.projections[layer and layer + 2 * direction](given).flatten(0, 1)
            wanted = wanted.flatten(0, 1)
            expected.append((given - wanted).square().mean() / wanted.var(dim=0, correction=0).mean())
        torch.testing.assert_close(found[direction], torch.stack(expected).mean(), atol=1e-5, rtol=1e-4)


def test_text_alone_is_the_loss_of_a_training_without_a_teacher(corpus: Path, model: PretrainedBiLM) -> None:
    student = small_student()
    config = DistillationConfig(layer_weight=0.0, prediction_weight=0.0)
    losses, arguments = losses_of(student, model, config)
    assert not losses.projections
    expected = super(DistillationLosses, losses).forward(*arguments[:5])[0]
    torch.testing.assert_close(losses(*arguments)[0], expected)


def test_a_sampled_loss_has_gradients_for_everything_that_is_trained(corpus: Path, model: PretrainedBiLM) -> None:
    losses, arguments = losses_of(small_student(), model, DistillationConfig(prediction_weight=1.0), n_samples=5)
    losses(*arguments)[0].mean().backward()
    assert all(parameter.grad is not None for parameter in losses.parameters())
    assert all(parameter.grad is None for parameter in losses.teacher.bilm.parameters())


@pytest.mark.parametrize("changes", [{"bidirectional": False}, {"n_layers": 1}])
def test_a_student_may_have_fewer_directions_and_layers(
    corpus: Path, model: PretrainedBiLM, changes: dict[str, Any]
) -> None:
    student = small_student(**changes)
    losses, arguments = losses_of(student, model, DistillationConfig(prediction_weight=1.0))
    assert losses(*arguments)[0].shape == (student.config.n_directions,)
    reader = losses.teacher
    _, layers, _ = reader.read(arguments[0], arguments[1], BiLMState(*arguments[5:]))
    # A single layer learns from the top one, in the direction of the student.
    bilm = model.build_bilm()
    outputs, _ = bilm.run_direction(
        0, bilm.token_layer(arguments[0])[arguments[1][0]], bilm.zero_state(4).of_direction(0)
    )
    torch.testing.assert_close(layers[0][-1], outputs[-1])


def test_the_lowest_layers_of_a_deeper_student_do_not_learn_from_the_top_layer(
    corpus: Path, model: PretrainedBiLM
) -> None:
    assert model.config.n_layers == 2
    losses, arguments = losses_of(small_student(n_layers=5), model, DistillationConfig(prediction_weight=1.0))
    _, (layers, _), _ = losses.teacher.read(arguments[0], arguments[1], BiLMState(*arguments[5:]))
    assert [layer is layers[-1] for layer in layers] == [False, False, False, True, True]


def test_a_teacher_may_read_tokens_in_another_way(corpus: Path, tmp_path: Path) -> None:
    teacher, student = elmokit.open_model(toy_model().write(tmp_path / "words-and-characters")), small_student()
    losses, arguments = losses_of(student, teacher, DistillationConfig(prediction_weight=0.0))
    words = ["the", "cat", "unheard"]
    encoded = torch.from_numpy(window_encoder(student, teacher)(words))
    own, others = losses.teacher.split(encoded, losses.bilm)
    np.testing.assert_array_equal(own, student.encode(words))
    np.testing.assert_array_equal(others, teacher.encode(words))
    assert losses(*arguments)[0].isfinite().all()


def test_a_word_input_student_reads_ids(corpus: Path, model: PretrainedBiLM) -> None:
    assert model.vocabulary is not None
    student = random_model(BiLMConfig(None, len(model.vocabulary), projection_dim=16, hidden_dim=24))
    losses, arguments = losses_of(student, model, DistillationConfig(prediction_weight=1.0))
    assert losses(*arguments)[0].isfinite().all()


@pytest.mark.slow
def test_a_student_learns_from_its_teacher(corpus: Path) -> None:
    longer: dict[str, Any] = {"tokens": 1200, "eval_every": 60, "save_every": 60, "log_every": 5}
    reports = Reports()
    settings = {**SMALL, **longer, "projection_dim": 24, "report": reports}
    teacher = elmokit.train("text.txt", held_out="text.txt", out="teacher", **settings).model
    reports.clear()
    result = distill(teacher, text_weight=0.0, report=reports, **longer)
    assert np.mean(reports.lines[-1].losses) < np.mean(reports.lines[0].losses) / 2
    assert np.mean(result.best_perplexity) < 2 * np.mean(teacher.card["held_out_perplexity"])
    model = elmokit.open_model("run")
    # An ordinary model: nothing of the teacher is left in it.
    assert set(model.arrays) == set(small_student().arrays)
    assert model.vocabulary.words == teacher.vocabulary.words
    assert model.card["train"]["distillation"]["prediction_weight"] == 1.0


@pytest.mark.slow
def test_an_interrupted_distillation_ends_with_the_same_numbers(corpus: Path, model: PretrainedBiLM) -> None:
    expected = distill(model, "straight", n_samples=4)
    with pytest.raises(Killed):
        distill(model, "stopped", n_samples=4, report=kill_after(3))  # between two checkpoints
    shutil.move("stopped", "moved")
    resumed = distill(model, "moved", n_samples=4)
    assert resumed.perplexity == expected.perplexity
    logs = [Path(name, "metrics.jsonl").read_text().splitlines() for name in ("straight", "moved")]
    losses = [[json.loads(line)["losses"] for line in lines] for lines in logs]
    assert losses[0] == losses[1]
    for name in ("optimizer", "state"):
        first, second = (newest_checkpoint(run).tensors(name) for run in ("straight", "moved"))
        assert first.keys() == second.keys()
        assert all(torch.equal(value, second[key]) for key, value in first.items())
    assert "teacher.hidden" in second
    assert "loss.projections.0.weight" in second


@pytest.mark.slow
def test_what_is_learned_is_said(corpus: Path, model: PretrainedBiLM) -> None:
    reports = Reports()
    distill(model.replace(softmax=None), "layers", tokens=20, report=reports)
    assert any("learns the layers" in said and "the teacher has no softmax" in said for said in reports.notices)
    distill(model, "words", tokens=20, max_words=6, report=reports)
    assert any("its words differ from those of the teacher's softmax" in said for said in reports.notices)
    # A student of the layers alone is the last one.
    result = distill(model, "last", tokens=180, text_weight=0.0, prediction_weight=0.0, patience=1, report=reports)
    assert result.best_step == 180 / (4 * 5)
    assert any("so perplexities are meaningless, and the last model is kept" in said for said in reports.notices)
