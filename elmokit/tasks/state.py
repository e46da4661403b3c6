"""The state of a task's training: how it is built, saved to a checkpoint and restored from one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from elmokit.config import from_dict
from elmokit.network.average import moving_average
from elmokit.tasks.task import TaskModel, TaskSetup
from elmokit.tasks.trained_bilm import parameter_groups
from elmokit.training.optimizers import build_optimizer, optimizer_tensors, restore_optimizer
from elmokit.training.run import Run, RunCheckpoint, random_states, restore_random_states


@dataclass
class TaskCounters:
    """Where a training is, and what it has achieved."""

    epoch: int = 0
    """Epochs that are complete."""
    step: int = 0
    """Batches of the current epoch that are done."""
    n_steps: int = 0
    loss_sum: float = 0.0
    """Since the last evaluation, over ``loss_steps`` steps."""
    loss_steps: int = 0
    n_drops: int = 0
    """How often the plateau schedule has lowered the learning rate."""
    since_drop: int = 0
    """Evaluations without improvement since the last drop, or since the last improvement."""
    since_best: int = 0
    best_epoch: int = 0
    best: dict[str, float] = field(default_factory=dict)
    """The scores of the best evaluation; empty before the first one."""
    best_n_steps: int = 0
    is_over: bool = False


@dataclass
class TaskTrainingState:
    """Everything that the next training step depends on."""

    model: TaskModel[Any, Any]
    optimizer: torch.optim.Optimizer
    averaged: AveragedModel | None
    device: torch.device
    counters: TaskCounters

    @property
    def evaluated_model(self) -> TaskModel[Any, Any]:
        """The model that is evaluated and kept: the averaged one if there is one."""
        if self.averaged is None:
            return self.model
        module = self.averaged.module
        assert isinstance(module, TaskModel)
        return module

    def save(self, run: Run) -> None:
        """Write a checkpoint."""
        tensors = {
            "model": self.model.state_dict(),
            "optimizer": optimizer_tensors(self.optimizer, dict(self.model.named_parameters())),
            "state": random_states(self.device),
        }
        if self.averaged is not None:
            tensors["average"] = self.averaged.state_dict()
        run.save_checkpoint(self.counters.n_steps, asdict(self.counters), tensors)

    def restore(self, checkpoint: RunCheckpoint) -> None:
        """Continue from a checkpoint. The state must be newly built, with the same settings."""
        with checkpoint.errors():
            progress = checkpoint.progress()
            self.model.load_state_dict(checkpoint.tensors("model"))
            restore_optimizer(self.optimizer, dict(self.model.named_parameters()), checkpoint.tensors("optimizer"))
            if self.averaged is not None:
                self.averaged.load_state_dict(checkpoint.tensors("average"))
            restore_random_states(checkpoint.tensors("state"), self.device)
            self.counters = from_dict(TaskCounters, progress, str(checkpoint.path))


def build_state(setup: TaskSetup, model: TaskModel[Any, Any]) -> TaskTrainingState:
    """Build the state that training a model starts from."""
    config = setup.config.train
    averaged = None
    if config.average is not None:
        averaged = moving_average(model, config.average)
    optimizer = build_optimizer(
        config.optimizer.name,
        parameter_groups(model, setup.config.elmo, config.optimizer.learning_rate),
        config.optimizer.learning_rate,
        betas=config.optimizer.betas,
        epsilon=config.optimizer.epsilon,
        rho=config.optimizer.rho,
        momentum=config.optimizer.momentum,
    )
    return TaskTrainingState(model, optimizer, averaged, setup.device, TaskCounters())
