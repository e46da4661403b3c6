"""The biLM trained with a task's model: gradients, learning rates, gradual unfreezing, resuming, opening."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from elmokit import Elmo
from elmokit.cli.task_commands import format_evaluation
from elmokit.embedding.elmo_module import ElmoModule
from elmokit.errors import TextError, TrainingError
from elmokit.formats.folder import load_folder, save_folder
from elmokit.formats.open import open_model
from elmokit.formats.save import save_model
from elmokit.lm.perplexity import perplexity
from elmokit.tasks.inputs import LayersInModel
from elmokit.tasks.run import open_run, train_task
from elmokit.tasks.task import TaskModel, TaskSetup
from elmokit.tasks.task_config import ElmoConfig, FinetuneConfig, OptimizerConfig
from elmokit.tasks.task_loop import TaskEvaluation, l2_penalty
from elmokit.tasks.trained_bilm import (
    copy_for_training,
    finetune_for_task,
    parameter_groups,
    parameters_of_layers,
    trained_layers,
    unfreeze,
)
from tests.conftest import aligned_model, random_model
from tests.helpers.killing import Killed, kill_at
from tests.helpers.shell import Shell
from tests.helpers.task_examples import built, changed, kept, log_of, tiny, write_config
from tests.helpers.tiny_training import newest_checkpoint

GRADUAL = {"freeze_epochs": 1, "unfreeze_every": 1, "layer_decay": 0.5}


@pytest.fixture
def bilm(tmp_path: Path) -> str:
    # Scaled so that cells reach the bound of 3, where gradients differ from those of an unbounded LSTM.
    save_model(random_model(scale=4.0), tmp_path / "bilm")
    return str(tmp_path / "bilm")


def config_for(tmp_path: Path, bilm: str, name: str = "ner", elmo: dict[str, Any] | None = None, **train: Any) -> Any:
    table = {"model": bilm, "trainable": True, **(elmo or {})}
    task, config = tiny(name, tmp_path / f"{name}.data", table)
    return task, changed(config, **{"epochs": 4, **train})


def setup_and_model(
    tmp_path: Path, bilm: str, name: str = "ner", elmo: dict[str, Any] | None = None
) -> tuple[TaskSetup, Any, list[Any]]:
    """A task's model with the biLM inside, and its examples."""
    return built(name, tmp_path, {"model": bilm, "trainable": True, **(elmo or {})})


def bilm_of(model: TaskModel[Any, Any]) -> ElmoModule:
    return model.inputs.elmo


def test_layers_are_unfrozen_from_the_top() -> None:
    def schedule(n_epochs: int, **settings: Any) -> list[tuple[int, ...]]:
        config = ElmoConfig(trainable=True, **settings)
        return [trained_layers(config, 3, epoch) for epoch in range(n_epochs)]

    assert schedule(2) == [(0, 1, 2)] * 2
    assert schedule(5, unfreeze_every=1) == [(2,), (1, 2), (0, 1, 2), (0, 1, 2), (0, 1, 2)]
    assert schedule(5, unfreeze_every=2) == [(2,), (2,), (1, 2), (1, 2), (0, 1, 2)]
    assert schedule(5, freeze_epochs=1, unfreeze_every=1) == [(), (2,), (1, 2), (0, 1, 2), (0, 1, 2)]
    assert schedule(3, freeze_epochs=2) == [(), (), (0, 1, 2)]


def test_each_parameter_is_in_one_group_with_the_rate_of_its_layer(tmp_path: Path, bilm: str) -> None:
    _, model, _ = setup_and_model(tmp_path, bilm)
    layers = parameters_of_layers(bilm_of(model).bilm)
    assert sum(map(len, layers)) == len(list(bilm_of(model).bilm.parameters()))
    config = ElmoConfig(trainable=True, layer_decay=0.5)
    groups = parameter_groups(model, config, 0.01)
    assert [group["initial_lr"] for group in groups] == pytest.approx([0.01, 1e-4, 5e-5, 2.5e-5])
    for group, expected in zip(groups[1:], reversed(layers), strict=True):
        assert list(map(id, group["params"])) == list(map(id, expected))
    ids = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(ids) == len(set(ids))
    own = dataclasses.replace(config, learning_rate=3e-5)
    assert parameter_groups(model, own, 0.01)[1]["initial_lr"] == 3e-5
    model.inputs.elmo = None
    assert [group["initial_lr"] for group in parameter_groups(model, None, 0.01)] == [0.01]


@pytest.mark.parametrize(
    "name", ["ner", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sst", "nli", "srl", "coref", "qa"))]
)
def test_gradients_reach_each_unfrozen_layer_and_no_frozen_one(name: str, tmp_path: Path, bilm: str) -> None:
    setup, model, examples = setup_and_model(tmp_path, bilm, name)
    config = ElmoConfig(trainable=True, freeze_epochs=1, unfreeze_every=1)
    layers = parameters_of_layers(bilm_of(model).bilm)
    for epoch, expected in enumerate([(), (2,), (1, 2), (0, 1, 2)]):
        assert unfreeze(model.inputs, config, epoch) == expected
        model.zero_grad()
        model.train().loss(setup.batch(examples[:2], model)).backward()
        for layer, parameters in enumerate(layers):
            for parameter in parameters:
                if layer in expected:
                    assert parameter.grad is not None
                    assert parameter.grad.any()
                else:
                    assert parameter.grad is None


def test_the_bilm_has_no_dropout_while_it_is_trained(tmp_path: Path, bilm: str) -> None:
    setup, model, examples = setup_and_model(tmp_path, bilm)
    unfreeze(model.inputs, setup.config.elmo, 0)
    assert bilm_of(model).bilm.config.dropout > 0
    first, second = (setup.batch(examples, model.train()).tokens.layers for _ in range(2))
    assert first.requires_grad
    assert torch.equal(first, second)


def test_repeated_sentences_are_read_once_and_empty_ones_are_zero(tmp_path: Path, bilm: str) -> None:
    setup, model, _ = setup_and_model(tmp_path, bilm)
    sentences = [["Mira", "visits"], [], ["Mira", "visits"], ["Oslo"]]
    layers = model.inputs.with_layers(setup.inputs.batch(sentences)).layers
    assert layers.shape == (3, 4, 2, 64)
    assert torch.equal(layers[:, 0], layers[:, 2])
    assert not layers[:, 1].any()
    expected = bilm_of(model).embed([["Oslo"]], layers="all")[0]
    torch.testing.assert_close(layers[:, 3, :1].detach(), torch.from_numpy(expected), atol=1e-5, rtol=0)
    nothing = model.inputs.with_layers(setup.inputs.batch([[], []])).layers
    assert nothing.shape == (3, 2, 1, 64)


def test_only_unfrozen_layers_change_and_the_pretrained_model_does_not(tmp_path: Path, bilm: str) -> None:
    task, config = config_for(tmp_path, bilm, elmo={"freeze_epochs": 1, "unfreeze_every": 1}, epochs=2)
    config = changed(config, optimizer=OptimizerConfig("adam", 0.05))
    before = Path(bilm, "model.safetensors").read_bytes()
    train_task(task, config, tmp_path / "run")
    assert Path(bilm, "model.safetensors").read_bytes() == before
    pretrained = open_model(bilm).build_bilm().state_dict()
    newest = newest_checkpoint(tmp_path / "run/seed-0").tensors("model")
    trained = {key.removeprefix("inputs.elmo.bilm."): value for key, value in newest.items() if "elmo.bilm" in key}
    moved = {key for key, value in trained.items() if not torch.equal(value, pretrained[key])}
    assert moved == {key for key in pretrained if ".layers.1." in key}


@pytest.mark.slow
def test_the_run_keeps_the_trained_bilm_and_opens_without_the_pretrained_one(tmp_path: Path, bilm: str) -> None:
    task, config = config_for(tmp_path, bilm, epochs=12)
    predicted: list[Any] = []
    original = TaskSetup.predict_with

    def recorded(*arguments: Any) -> Any:
        predicted.append(original(*arguments))
        return predicted[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskSetup, "predict_with", recorded)
        result = train_task(task, config, tmp_path / "run")["seeds"][0]
    assert not (tmp_path / "run/layers").exists()
    assert not any(key.startswith("inputs.elmo") for key in load_file(tmp_path / "run/seed-0/best.safetensors"))
    shutil.rmtree(bilm)
    opened = open_run(tmp_path / "run")
    examples = opened.read(str(tmp_path / "ner.data"))
    assert isinstance(opened.inputs.layers, LayersInModel)
    assert opened.predict(examples) == predicted[result["best_epoch"] - 1]
    assert opened.score(examples) == result["dev"]
    # It is a model like any other.
    model = open_model(tmp_path / "run/seed-0/bilm")
    assert (model.softmax, model.card["task"], model.card["initial"]["card"]) == (None, "ner", {"note": "random"})
    embedder = Elmo(model)
    layers = bilm_of(opened.model).padded_layers([["Mira", "visits"]])[0][:, 0]
    torch.testing.assert_close(torch.from_numpy(embedder.embed([["Mira", "visits"]])[0]), layers, atol=1e-5, rtol=0)


def test_a_trained_bilm_that_was_replaced_is_refused(tmp_path: Path, bilm: str) -> None:
    task, config = config_for(tmp_path, bilm, epochs=1)
    train_task(task, config, tmp_path / "run")
    save_model(random_model(seed=9), tmp_path / "run/seed-0/bilm", overwrite=True)
    with pytest.raises(TrainingError, match="another biLM"):
        open_run(tmp_path / "run")


@pytest.mark.parametrize("start", ["warm", "zero"])
def test_sentences_start_from_the_state_of_the_pretrained_model_during_and_after_training(
    tmp_path: Path, bilm: str, start: str
) -> None:
    task, config = config_for(tmp_path, bilm, elmo={"start": start}, epochs=2)
    config = changed(config, optimizer=OptimizerConfig("adam", 0.05))
    train_task(task, config, tmp_path / "run")
    pretrained = Elmo.from_pretrained(bilm, start=start)
    opened = bilm_of(open_run(tmp_path / "run").model)
    assert np.array_equal(opened.start_hidden.numpy(), pretrained.start_state.hidden)
    assert np.array_equal(opened.start_cell.numpy(), pretrained.start_state.cell)
    assert not torch.equal(
        opened.bilm.token_vectors(opened.ids([["a"]])),
        pretrained.computer.use_module().token_vectors(opened.ids([["a"]])),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop_at", "settings"),
    [(2, {}), (5, {"average": 0.9, "optimizer": OptimizerConfig("adadelta", 1.0, epsilon=1e-6), "eval_every": 3})],
    ids=["adam", "adadelta, average, every three steps"],
)
def test_interrupted_at_any_step_the_result_is_the_same(
    tmp_path: Path, bilm: str, settings: dict[str, Any], stop_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmokit.tasks.task_loop.CHECKPOINT_SECONDS", 0.0)
    task, config = config_for(tmp_path, bilm, elmo=GRADUAL, **settings)
    train_task(task, config, tmp_path / "straight")
    with pytest.raises(Killed):
        train_task(task, config, tmp_path / "broken", progress=kill_at("seed 0", stop_at))
    train_task(task, config, tmp_path / "broken")
    assert kept(tmp_path / "straight/seed-0") == kept(tmp_path / "broken/seed-0")


@pytest.mark.slow
def test_every_seed_starts_from_the_pretrained_weights(tmp_path: Path, bilm: str) -> None:
    task, config = config_for(tmp_path, bilm, epochs=2)
    train_task(task, changed(config, seeds=(1, 2)), tmp_path / "both")
    train_task(task, changed(config, seeds=(2,)), tmp_path / "alone")
    assert kept(tmp_path / "both/seed-2") == kept(tmp_path / "alone/seed-2")


def test_the_norm_that_is_clipped_is_that_of_all_gradients(tmp_path: Path, bilm: str) -> None:
    elmo = {"learning_rate": 1.0}
    task, config = config_for(tmp_path, bilm, elmo=elmo, epochs=1, batch_size=100, max_grad_norm=1e-3)
    train_task(task, changed(config, optimizer=OptimizerConfig("sgd", 1.0)), tmp_path / "run")
    after = newest_checkpoint(tmp_path / "run/seed-0").tensors("model")
    _, model, _ = setup_and_model(tmp_path, bilm)
    before = dict(model.state_dict())
    distance = sum(float(((value - before[name]) ** 2).sum()) for name, value in after.items() if "elmo" in name)
    assert 0 < distance**0.5 < 1e-3  # one step with the rate 1: at most the clipped norm, and less without the rest


def test_l2_does_not_act_on_the_pretrained_weights(tmp_path: Path, bilm: str) -> None:
    setup, model, _ = setup_and_model(tmp_path, bilm)
    unfreeze(model.inputs, setup.config.elmo, 0)
    penalty = l2_penalty(model, 0.01)
    penalty.backward()
    assert all(parameter.grad is None for parameter in bilm_of(model).parameters())
    assert any(parameter.grad is not None for parameter in model.parameters())


def test_a_run_reports_the_trained_layers_and_caches_nothing(tmp_path: Path, bilm: str) -> None:
    task, config = config_for(tmp_path, bilm, elmo={**GRADUAL, "learning_rate": 1e-4}, epochs=3)
    evaluations: list[TaskEvaluation] = []
    train_task(task, config, tmp_path / "run", on_evaluation=evaluations.append)
    assert [one.trained_layers for one in evaluations] == [(), (2,), (1, 2)]
    lines = [format_evaluation(one) for one in evaluations]
    assert lines[0].endswith("  (biLM: frozen)")
    assert lines[2].endswith("  (biLM: layers 1, 2 trained)")
    assert [line["trained_layers"] for line in log_of(tmp_path / "run/seed-0")] == [[], [2], [1, 2]]
    assert not (tmp_path / "run/layers").exists()


def test_a_task_that_trains_an_aligned_model_reads_its_aligned_vectors() -> None:
    model = aligned_model()
    copied = copy_for_training(Elmo(model))
    assert copied.model.alignment is not None
    (before,), (after,) = (one.embed([["the", "cat"]], layers="all") for one in (Elmo(model), copied))
    np.testing.assert_allclose(after, before, atol=1e-5)


CPU = torch.device("cpu")
SENTENCES = [["the", "cat", "sat", "on", "the", "mat", "."], ["the", "dog", "ran", "."], ["the", "zebra", "ran"]] * 20


@pytest.mark.slow
def test_a_task_can_use_a_bilm_fine_tuned_on_its_text(task_shell: Shell) -> None:
    save_folder(random_model(), Path("bilm"))
    # At most a fifth of the perplexity is left with each of six seeds. Without a gain, the old model would be returned.
    write_config(elmo={"model": "bilm", "finetune": {"epochs": 20, "learning_rate": 0.05}}, train={"epochs": 2})
    ran = task_shell("train", "config.toml", "--run", "run")
    assert ran.code == 0, ran.err
    tuned = load_folder(Path("run/bilm"))
    assert tuned.start_state is not None
    assert tuned.card["initial"]["source"] == "bilm"
    assert task_shell("evaluate", "run", "data").code == 0


@pytest.mark.slow
def test_fine_tuning_lowers_the_perplexity_of_the_tasks_text(tmp_path: Path) -> None:
    save_folder(random_model(), tmp_path / "bilm")
    config = FinetuneConfig(epochs=10, learning_rate=0.05)  # 0.53 of the perplexity is left
    finetune_for_task(str(tmp_path / "bilm"), SENTENCES, config, tmp_path / "tuned", CPU)
    before, after = (perplexity(load_folder(tmp_path / name), SENTENCES).mean for name in ("bilm", "tuned"))
    assert after < 0.8 * before


@pytest.mark.slow
def test_a_published_file_without_a_softmax_can_be_fine_tuned(tmp_path: Path) -> None:
    save_model(random_model(), tmp_path / "weights.hdf5")
    finetune_for_task(str(tmp_path / "weights.hdf5"), SENTENCES, FinetuneConfig(), tmp_path / "tuned", CPU)
    tuned = open_model(tmp_path / "tuned")
    assert "zebra" in tuned.vocabulary.ids


def test_too_little_text_is_an_error(tmp_path: Path) -> None:
    save_folder(random_model(), tmp_path / "bilm")
    with pytest.raises(TextError, match=r"1 sentence is not enough.*elmo\.finetune"):
        finetune_for_task(str(tmp_path / "bilm"), SENTENCES[:1], FinetuneConfig(), tmp_path / "tuned", CPU)
