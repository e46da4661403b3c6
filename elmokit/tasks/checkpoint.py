"""The state of a task's training, and its checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from elmokit.config import from_dict
from elmokit.tasks.task import TaskModel
from elmokit.training.checkpoint import (
    checkpoint_errors,
    optimizer_tensors,
    random_states,
    read_progress,
    read_tensors,
    restore_optimizer,
    restore_random_states,
    write_checkpoint,
)


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

    def save(self, path: Path) -> None:
        """Write a checkpoint, replacing an earlier one.

        Raises:
            OutputError: It cannot be written.
        """
        tensors = {
            "model": self.model.state_dict(),
            "optimizer": optimizer_tensors(self.optimizer, dict(self.model.named_parameters())),
            "random": random_states(self.device),
        }
        if self.averaged is not None:
            tensors["average"] = self.averaged.state_dict()
        with write_checkpoint(path, asdict(self.counters), tensors):
            pass

    def restore(self, path: Path) -> None:
        """Continue from a checkpoint. The state must be newly built, with the same settings.

        Raises:
            TrainingError: The checkpoint is damaged, or belongs to a run with other settings.
        """
        with checkpoint_errors(path, "Remove it to train this seed from the start."):
            progress = read_progress(path)
            self.model.load_state_dict(read_tensors(path, "model"))
            parameters = dict(self.model.named_parameters())
            restore_optimizer(self.optimizer, parameters, read_tensors(path, "optimizer"))
            if self.averaged is not None:
                self.averaged.load_state_dict(read_tensors(path, "average"))
            restore_random_states(read_tensors(path, "random"), self.device)
            self.counters = from_dict(TaskCounters, progress, str(path))
