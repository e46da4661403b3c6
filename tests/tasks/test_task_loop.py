"""The training loop: learning rates, clipping, averages, patience; the same result after an interruption."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

from elmokit.errors import TrainingError
from elmokit.tasks.run import train_task
from elmokit.tasks.task_config import OptimizerConfig, PlateauConfig, StepDecayConfig
from elmokit.tasks.task_loop import TaskEvaluation, epoch_batches, l2_penalty
from elmokit.training.optimizers import clip_gradients
from tests.helpers.killing import Killed, kill_at
from tests.helpers.task_examples import changed, kept, log_of, tiny
from tests.helpers.tiny_training import newest_checkpoint


def train(
    tmp_path: Path, run: str = "run", progress: Any = None, on_evaluation: Any = None, **train: Any
) -> dict[str, Any]:
    task, config = tiny("ner", tmp_path / "data.conll")
    config = changed(config, **{"epochs": 4, **train})
    return train_task(task, config, tmp_path / run, progress=progress, on_evaluation=on_evaluation)


Report = tuple[str, int, int | None]
"""What a progress callback is called with."""


@pytest.mark.parametrize("rate", [3.0, 1e-2])
def test_a_loss_that_grows_names_the_remedy(rate: float, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(tmp_path, optimizer=OptimizerConfig("sgd", learning_rate=rate), max_grad_norm=None, epochs=6)
    said = [str(one.message) for one in caught if "grew from" in str(one.message)]
    assert bool(said) == (rate > 1)
    assert all(one.endswith("Use a lower train.optimizer.learning_rate.") for one in said)


def test_each_epoch_is_a_line_and_the_best_is_kept(tmp_path: Path) -> None:
    reports: list[Report] = []
    evaluations: list[TaskEvaluation] = []
    results = train(
        tmp_path, progress=lambda *report: reports.append(report), on_evaluation=evaluations.append, epochs=20
    )
    lines = log_of(tmp_path / "run/seed-0")
    assert [line["epoch"] for line in lines] == list(range(1, 21))
    scores = [line["dev"]["f1"] for line in lines]
    best = results["seeds"][0]
    assert best["dev"]["f1"] == max(scores) == 100.0
    assert best["best_epoch"] == scores.index(max(scores)) + 1
    assert [report for report in reports if report[0] == "seed 0"] == [("seed 0", n, 40) for n in range(1, 41)]
    assert ("predict", 3, 3) in reports
    assert [(one.epoch, one.n_steps, one.loss, one.scores) for one in evaluations] == [
        (line["epoch"], line["n_steps"], line["loss"], line["dev"]) for line in lines
    ]


def test_same_seed_same_numbers_and_another_seed_others(tmp_path: Path) -> None:
    train(tmp_path, "a", seeds=(1, 2))
    train(tmp_path, "b", seeds=(1,))
    assert kept(tmp_path / "a/seed-1") == kept(tmp_path / "b/seed-1")
    assert log_of(tmp_path / "a/seed-1") != log_of(tmp_path / "a/seed-2")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"average": 0.9, "optimizer": OptimizerConfig("adadelta", 1.0, epsilon=1e-6), "eval_every": 3},
        {"optimizer": OptimizerConfig("sgd", 0.05, momentum=0.9), "plateau": PlateauConfig()},
    ],
    ids=["adam", "adadelta, average, every three steps", "sgd, plateau"],
)
@pytest.mark.parametrize("stop_at", [1, 4, 6])
def test_interrupted_at_any_step_the_result_is_the_same(
    tmp_path: Path, settings: dict[str, Any], stop_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmokit.tasks.task_loop.CHECKPOINT_SECONDS", 0.0)
    train(tmp_path, "straight", **settings)

    with pytest.raises(Killed):
        train(tmp_path, "broken", progress=kill_at("seed 0", stop_at), **settings)
    train(tmp_path, "broken", **settings)
    assert kept(tmp_path / "straight/seed-0") == kept(tmp_path / "broken/seed-0")


def test_patience_stops_and_plateau_lowers_the_rate(tmp_path: Path) -> None:
    rate = OptimizerConfig("sgd", 1e-12)  # nothing is learned, so no epoch is better than the first
    train(tmp_path, epochs=9, patience=4, optimizer=rate, plateau=PlateauConfig(factor=0.5, patience=1))
    lines = log_of(tmp_path / "run/seed-0")
    assert [line["is_best"] for line in lines] == [True] + [False] * 4
    assert [line["learning_rate"] / 1e-12 for line in lines] == pytest.approx([1, 1, 1, 0.5, 0.5])


def test_the_rate_falls_by_steps(tmp_path: Path) -> None:
    train(tmp_path, optimizer=OptimizerConfig("sgd", 0.01), step_decay=StepDecayConfig(rate=0.1, every=3))
    rates = [line["learning_rate"] for line in log_of(tmp_path / "run/seed-0")]
    assert rates == pytest.approx([0.01, 0.001, 1e-4, 1e-4])  # after 2, 4, 6 and 8 steps


def test_evaluation_every_so_many_steps(tmp_path: Path) -> None:
    train(tmp_path, eval_every=3)
    assert [line["n_steps"] for line in log_of(tmp_path / "run/seed-0")] == [3, 6, 8]
    assert [line["epoch"] for line in log_of(tmp_path / "run/seed-0")] == [2, 3, 4]


def test_the_averaged_weights_are_kept_as_allennlp_averages_them(tmp_path: Path) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    decay = 0.25
    original = AveragedModel.update_parameters

    def copied(model: nn.Module) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in model.state_dict().items()}

    def record(self: Any, model: nn.Module) -> None:
        if not seen:
            seen.append(copied(self.module))  # the initial weights
        original(self, model)
        seen.append(copied(model))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AveragedModel, "update_parameters", record)
        train(tmp_path, epochs=1, average=decay)
    expected = dict(seen[0])
    for step, weights in enumerate(seen[1:], start=1):
        # AllenNLP's ExponentialMovingAverage: at the first steps, the average follows more closely.
        share = min(decay, (1 + step) / (10 + step))
        expected = {name: share * expected[name] + (1 - share) * weights[name] for name in weights}
    assert len(seen) > 2
    kept = load_file(tmp_path / "run/seed-0/best.safetensors")
    for name, value in kept.items():
        torch.testing.assert_close(value, expected[name])


def test_gradients_are_clipped_entry_by_entry_then_by_norm() -> None:
    layer = nn.Linear(3, 2)
    layer.weight.grad = torch.tensor([[5.0, 0.5, -5.0], [0.0, 0.0, 0.0]])
    layer.bias.grad = torch.zeros(2)
    clip_gradients(layer.parameters(), max_value=1.0)
    assert layer.weight.grad[0].tolist() == [1.0, 0.5, -1.0]
    clip_gradients(layer.parameters(), max_norm=0.3)
    torch.testing.assert_close(layer.weight.grad.norm(), torch.tensor(0.3))


def test_l2_acts_on_matrices_and_not_on_tables_biases_and_mixes() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(3, 2), "linear": nn.Linear(2, 2), "lstm": nn.LSTM(2, 2)})
    penalty = l2_penalty(model, 0.01)
    penalty.backward()
    found = {name: weight for name, weight in model.named_parameters() if weight.grad is not None}
    assert found.keys() == {"linear.weight", "lstm.weight_ih_l0", "lstm.weight_hh_l0"}
    for weight in found.values():
        torch.testing.assert_close(weight.grad, 0.02 * weight)
    assert l2_penalty(model, 0.0) == 0.0


def test_a_nan_loss_stops_the_training(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="The loss is nan at step"):
        train(tmp_path, optimizer=OptimizerConfig("sgd", 1e30), epochs=50, max_grad_norm=None)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    train(tmp_path)
    folder = tmp_path / "run/seed-0"
    (folder / "result.json").unlink()
    path = newest_checkpoint(folder).path / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TrainingError, match=r"step-\d+ is damaged"):
        train(tmp_path)


LENGTHS = [(n % 17 + 1,) for n in range(100)]


def test_batches_of_an_epoch_have_every_example_once_in_an_order_that_follows_from_seed_and_epoch() -> None:
    def batches(bucketed: bool = True, seed: int = 1, epoch: int = 3) -> list[list[int]]:
        return epoch_batches(LENGTHS, 8, bucketed, seed=seed, epoch=epoch)

    def n_padded(bucketed: bool) -> int:
        return sum(len(batch) * max(LENGTHS[place][0] for place in batch) for batch in batches(bucketed))

    for bucketed in (False, True):
        assert sorted(place for batch in batches(bucketed) for place in batch) == list(range(100))
        assert sorted(map(len, batches(bucketed))) == [4] + [8] * 12
    assert batches() == batches()
    assert batches() != batches(epoch=4)
    assert batches() != batches(seed=2)
    assert n_padded(True) < 1.25 * sum(length for (length,) in LENGTHS) < n_padded(False)  # buckets are of like lengths
