"""The state of a biLM training, and how it is saved to a checkpoint and restored from one.

A checkpoint is a directory ``checkpoints/step-N`` with ``model/`` (which opens like any other model), ``average/`` (the
same with averaged weights, if the settings ask for them), ``optimizer.safetensors``, ``state.safetensors`` (LSTM state,
random states) and ``progress.json`` (counters, positions in the corpus). Where several processes train, the LSTM state
holds the rows of all of them, in the order of ranks.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from elmokit.errors import TrainingError
from elmokit.formats.folder import load_folder, save_folder
from elmokit.formats.model import PretrainedBiLM
from elmokit.network.bilm import BiLMState
from elmokit.text.windows import WindowStream
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
from elmokit.training.distributed import World
from elmokit.training.losses import WindowLosses
from elmokit.training.weight_average import WeightAverage

CHECKPOINTS = "checkpoints"
N_KEPT = 2  # the newest, and the one before it in case the newest is damaged
DAMAGED = "Remove it to resume from the previous checkpoint."


@dataclass
class TrainingCounters:
    """Training progress counters, and sums for the next line of the log."""

    n_steps: int = 0
    n_predictions: int = 0
    """Per direction, of all processes, since the start of the run."""
    best_perplexity: float = float("inf")
    n_worse: int = 0
    """Evaluations since the best one."""
    loss_sums: list[float] = field(default_factory=list)
    """This process's training loss of each direction since the last line of the log, summed over windows."""
    n_summed: int = 0
    """Windows in ``loss_sums``."""


@dataclass
class TrainingState:
    """Everything that the next step depends on, in one process."""

    model: PretrainedBiLM
    losses: WindowLosses
    """The module that computes the loss, over the biLM and the softmax of ``model``."""
    optimizer: torch.optim.Optimizer
    lstm_state: BiLMState
    stream: WindowStream
    average: WeightAverage | None = None
    """The moving average of the weights, if the settings ask for one."""
    teacher_state: BiLMState | None = None
    """In a distillation, the LSTM state of the teacher."""
    counters: TrainingCounters = field(default_factory=TrainingCounters)

    @property
    def evaluated_model(self) -> PretrainedBiLM:
        """The model that is evaluated and kept: with averaged weights, if there is an average."""
        return self.model if self.average is None else self.average.model

    @property
    def lstm_states(self) -> dict[str, BiLMState]:
        """The LSTM states, by the prefix of their names in a checkpoint: the model's first."""
        states = {"": self.lstm_state}
        return states if self.teacher_state is None else states | {"teacher.": self.teacher_state}

    @property
    def device(self) -> torch.device:
        """Where the training runs."""
        return self.lstm_state.hidden.device

    def trained_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return what the optimizer changes, by name."""
        return {name: value for name, value in self.losses.named_parameters() if value.requires_grad}


def checkpoints(run: Path) -> list[Path]:
    """List the checkpoints of a run, oldest first."""
    return sorted((run / CHECKPOINTS).glob("step-*"))


def checkpoint_path(run: Path, n_steps: int) -> Path:
    """Return the directory of the checkpoint after ``n_steps`` steps."""
    # Eight digits, so that names in alphabetical order are in the order of steps.
    return run / CHECKPOINTS / f"step-{n_steps:08d}"


def save_checkpoint(
    state: TrainingState, run: Path, world: World, calibrated: Callable[[PretrainedBiLM], PretrainedBiLM]
) -> None:
    """Write ``checkpoints/step-N`` and remove all but the newest two. Every process must call this.

    Args:
        state: What to save.
        run: The run directory.
        world: The processes that train together.
        calibrated: Returns a model with the start state of its weights, so that the models open like any other.
    """
    counters = state.counters
    gathered = world.gather(
        (
            {prefix: one.to("cpu") for prefix, one in state.lstm_states.items()},
            random_states(state.device),
            state.stream.position(),
            counters.loss_sums,
        )
    )
    if gathered is None:  # only the main process writes
        return
    lstm_states, random_of_ranks, positions, loss_sums = zip(*gathered, strict=True)
    tensors = {f"loss.{name}": value.detach() for name, value in state.losses.own_parameters().items()}
    for prefix in state.lstm_states:
        # (directions, layers, rows, dim): rows of all processes, in the order of ranks.
        tensors[f"{prefix}hidden"] = torch.cat([one[prefix].hidden for one in lstm_states], dim=2)
        tensors[f"{prefix}cell"] = torch.cat([one[prefix].cell for one in lstm_states], dim=2)
    for rank, states in enumerate(random_of_ranks):
        tensors |= {f"random.{rank}.{name}": value for name, value in states.items()}
    path = checkpoint_path(run, counters.n_steps)
    # The counters are those of the main process; what differs between processes is listed by rank.
    progress = {"counters": vars(counters), "loss_sums": loss_sums, "positions": positions}
    slots = optimizer_tensors(state.optimizer, state.trained_parameters())
    with write_checkpoint(path, progress, {"optimizer": slots, "state": tensors}) as folder:
        save_folder(calibrated(state.model), folder / "model")
        if state.average is not None:
            save_folder(calibrated(state.average.model), folder / "average")
    # After the new one is complete, so that there is always one to resume from.
    for old in checkpoints(run)[:-N_KEPT]:
        shutil.rmtree(old)


def open_checkpoint(path: Path) -> PretrainedBiLM:
    """Open the model of a checkpoint.

    Raises:
        TrainingError: The checkpoint is damaged.
    """
    with checkpoint_errors(path, DAMAGED):
        model = load_folder(path / "model")
    if model.vocabulary is None or model.softmax is None:
        raise TrainingError(f"{path} is not a checkpoint of a training: its model has no softmax.")
    return model


def restore_checkpoint(state: TrainingState, path: Path, world: World) -> str | None:
    """Set a state that was built on a checkpoint's model to what the checkpoint holds.

    Returns:
        What changes if another number of processes wrote the checkpoint; else None.

    Raises:
        TrainingError: The checkpoint is damaged.
    """
    with checkpoint_errors(path, DAMAGED):
        return _restore(state, path, world)


def _restore(state: TrainingState, path: Path, world: World) -> str | None:
    progress = read_progress(path)
    restore_optimizer(state.optimizer, state.trained_parameters(), read_tensors(path, "optimizer"))
    if state.average is not None:
        state.average.restore(load_folder(path / "average"))
    state.counters = TrainingCounters(**progress["counters"])
    tensors = read_tensors(path, "state")
    batch_size, positions = state.lstm_state.n_rows, progress["positions"]
    n_processes = len(positions)
    with torch.no_grad():
        for name, value in state.losses.own_parameters().items():
            value.copy_(tensors[f"loss.{name}"])
    first = world.rank * batch_size

    def own_rows(prefix: str) -> BiLMState:
        parts = (tensors[f"{prefix}{name}"][:, :, first : first + batch_size] for name in BiLMState._fields)
        # With more processes than before, the last ones find no rows of their own; ``first_rows`` fills up with zeros.
        return BiLMState(*parts).first_rows(batch_size).to(state.device)

    state.lstm_state = own_rows("")
    if state.teacher_state is not None:
        state.teacher_state = own_rows("teacher.")
    # A process that did not exist before keeps the random state that its seed gave.
    if world.rank < n_processes:
        prefix = f"random.{world.rank}."
        states = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        restore_random_states(states, state.device)
    if n_processes == world.size:
        state.counters.loss_sums = progress["loss_sums"][world.rank]
        state.stream.restore(positions[world.rank])
        return None
    # Each process reads every N-th sentence, so positions do not carry over to another N: start an epoch.
    epoch, n_rows = min(reader["block"][0] for position in positions for reader in position), tensors["hidden"].shape[2]
    state.stream.start_epoch(epoch)
    return (
        f"This run used {n_processes} processes and is now resumed with {world.size}, so a step reads "
        f"{world.size * batch_size} rows instead of {n_rows}, and the text is split again and read from the "
        f"start of epoch {epoch + 1}. Weights, optimizer and schedule are kept."
    )


def restart_advice(run: Path) -> str:
    """Say, for the message of a training that failed, which model a new run can start from."""
    found = checkpoints(run)
    if not found:
        return "There is no checkpoint yet: start a new run."
    before = f" (or of {found[-2].name}, if that one is already bad)" if len(found) > 1 else ""
    model = found[-1] / "model"
    return f"Start a new run from the model of the last checkpoint{before}: elmokit finetune TEXT --model {model} ..."
