"""All that a task's training needs to go on: one folder, written whole or not at all."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from elmokit.config import from_dict
from elmokit.errors import ElmoError, TrainingError
from elmokit.io.atomic import atomic_write
from elmokit.tasks.task import TaskModel
from elmokit.weights.folder import save_tensors


@dataclass
class Position:
    """Where a training is, but for its tensors."""

    epoch: int = 0
    """The one that is being trained, from 0."""
    step: int = 0
    """Batches of the epoch that are done."""
    n_steps: int = 0
    n_evaluations: int = 0
    loss_sum: float = 0.0
    """Since the last evaluation, over ``loss_steps`` steps."""
    loss_steps: int = 0
    n_drops: int = 0
    """How often the plateau has lowered the learning rate."""
    since_drop: int = 0
    """Evaluations without a better score since the last drop or rise."""
    since_best: int = 0
    best_epoch: int = 0
    best: dict[str, float] = field(default_factory=dict)
    """The scores of the best evaluation."""
    best_n_steps: int = 0
    """Steps that were done at it."""
    is_over: bool = False


@dataclass
class LoopState:
    """Everything that the next step reads."""

    model: TaskModel[Any, Any]
    optimizer: torch.optim.Optimizer
    averaged: AveragedModel | None
    device: torch.device
    position: Position

    @property
    def judged(self) -> TaskModel[Any, Any]:
        """The model that is evaluated and kept: the averaged one where there is one."""
        if self.averaged is None:
            return self.model
        module = self.averaged.module
        assert isinstance(module, TaskModel)
        return module


def save_checkpoint(state: LoopState, folder: Path) -> None:
    """Put the state in place of the checkpoint that stands there.

    Raises:
        OutputError: it cannot be written.
    """
    slots: dict[str, Tensor] = {}
    for name, parameter in state.model.named_parameters():
        for slot, value in state.optimizer.state.get(parameter, {}).items():
            if value is not None:
                slots[f"{slot}/{name}"] = torch.as_tensor(value)
    random = {"cpu": torch.get_rng_state()}
    if state.device.type == "cuda":
        random["cuda"] = torch.cuda.get_rng_state(state.device)
    with atomic_write(folder, overwrite=True, folder=True) as path:
        save_tensors(state.model.state_dict(), path / "model.safetensors")
        save_tensors(slots, path / "optimizer.safetensors")
        save_tensors(random, path / "random.safetensors")
        if state.averaged is not None:
            save_tensors(state.averaged.state_dict(), path / "average.safetensors")
        (path / "position.json").write_text(json.dumps(asdict(state.position)), encoding="utf-8")


def load_checkpoint(state: LoopState, folder: Path) -> None:
    """Bring a freshly built state to where the checkpoint left off.

    Raises:
        TrainingError: the checkpoint is damaged, or of a run with other settings.
    """
    try:
        state.model.load_state_dict(load_file(folder / "model.safetensors"))
        parameters = dict(state.model.named_parameters())
        for key, value in load_file(folder / "optimizer.safetensors").items():
            slot, name = key.split("/", 1)
            kept = value if slot == "step" else value.to(state.device)
            state.optimizer.state[parameters[name]][slot] = kept
        if state.averaged is not None:
            state.averaged.load_state_dict(load_file(folder / "average.safetensors"))
        random = load_file(folder / "random.safetensors")
        torch.set_rng_state(random["cpu"])
        if state.device.type == "cuda" and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"], state.device)
        content = json.loads((folder / "position.json").read_text(encoding="utf-8"))
        state.position = from_dict(Position, content, str(folder / "position.json"))
    except (ElmoError, SafetensorError, RuntimeError, KeyError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise TrainingError(
            f"The checkpoint {folder} is damaged ({reason}). Remove it to begin this seed anew."
        ) from None
