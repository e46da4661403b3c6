"""All that resuming needs: a checkpoint folder, written whole or not at all.

A checkpoint holds ``model/`` (a folder of ours, which opens like any model), ``optimizer.safetensors``,
``state.safetensors`` (LSTM state, random states) and ``progress.json`` (counters, places in the corpus). Where several
processes trained, the LSTM state holds the rows of all, in the order of ranks.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from elmokit.bilm import BiLMState
from elmokit.errors import ModelError, TrainingError
from elmokit.io.atomic import atomic_write
from elmokit.text.windows import WindowStream
from elmokit.training.distributed import World
from elmokit.training.losses import WindowLosses
from elmokit.weights.folder import load_folder, save_folder, save_tensors
from elmokit.weights.model import PretrainedBiLM

N_KEPT = 2


@dataclass
class Counters:
    """How far a run is."""

    n_steps: int = 0
    n_predictions: int = 0
    """Per direction, of all processes, since the start of the run."""
    best_perplexity: float = float("inf")
    n_worse: int = 0
    """Looks at the held-out text since the best one."""
    loss_sums: list[float] = field(default_factory=list)
    """This process's training losses since the last line of the log, summed over steps, each direction apart."""
    n_summed: int = 0


@dataclass
class TrainingState:
    """Everything that the next step reads, in one process."""

    model: PretrainedBiLM
    losses: WindowLosses
    """Over the model's own biLM and softmax."""
    optimizer: torch.optim.Optimizer
    lstm_state: BiLMState
    stream: WindowStream
    counters: Counters = field(default_factory=Counters)

    def trained_parameters(self) -> dict[str, torch.nn.Parameter]:
        """What the optimizer changes, by name."""
        return {name: value for name, value in self.losses.named_parameters() if value.requires_grad}


def save_checkpoint(state: TrainingState, folder: Path, world: World) -> None:
    """Write ``folder/step-N`` and drop all but the newest few; every process takes part."""
    lstm_state = state.lstm_state.to("cpu")
    device = state.lstm_state.hidden.device
    own = (
        lstm_state.hidden,
        lstm_state.cell,
        _random_states(device),
        state.stream.position(),
        state.counters.loss_sums,
    )
    parts = world.gather(own)
    if parts is None:
        return
    hidden, cell, randoms, positions, loss_sums = zip(*parts, strict=True)
    tensors = {"hidden": torch.cat(hidden, dim=2), "cell": torch.cat(cell, dim=2)}
    for rank, random in enumerate(randoms):
        tensors |= {f"random.{rank}.{where}": value for where, value in random.items()}
    with atomic_write(folder / f"step-{state.counters.n_steps:08d}", overwrite=True, folder=True) as path:
        save_folder(state.model, path / "model")
        slots: dict[str, Tensor] = {}
        for name, parameter in state.trained_parameters().items():
            for slot, value in state.optimizer.state[parameter].items():
                slots[f"{slot}/{name}"] = torch.as_tensor(value)
        save_tensors(slots, path / "optimizer.safetensors")
        save_tensors(tensors, path / "state.safetensors")
        progress = {"counters": vars(state.counters), "loss_sums": loss_sums, "positions": positions}
        (path / "progress.json").write_text(json.dumps(progress), encoding="utf-8")
    for old in checkpoints(folder)[:-N_KEPT]:
        shutil.rmtree(old)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(folder.glob("step-*"))


def where_to_begin_again(run: Path) -> str:
    """A sentence on what a training that failed can go on from."""
    found = checkpoints(run / "checkpoints")
    if not found:
        return "There is no checkpoint yet: begin a new run."
    before = f", or of {found[-2].name} if that too has gone wrong" if len(found) > 1 else ""
    return f"A new run can begin with the model of the last checkpoint{before}: elmokit finetune {found[-1] / 'model'}"


def open_checkpoint(path: Path) -> PretrainedBiLM:
    """The model of a checkpoint.

    Raises:
        TrainingError: the checkpoint is damaged.
    """
    try:
        stored = load_folder(path / "model")
    except ModelError as error:
        raise _damaged(path, error) from None
    if stored.vocabulary is None or stored.softmax is None:
        raise TrainingError(f"{path} is no checkpoint of a training: it has no softmax.")
    return stored


def restore_checkpoint(state: TrainingState, path: Path, world: World) -> str | None:
    """Bring a state that was built on a checkpoint's model to where the checkpoint left off.

    Returns:
        what is not as it was, where another number of processes goes on; else None.

    Raises:
        TrainingError: the checkpoint is damaged.
    """
    try:
        return _restore(state, path, world)
    except (ModelError, SafetensorError, KeyError, ValueError, TypeError, OSError) as error:
        raise _damaged(path, error) from None


def _restore(state: TrainingState, path: Path, world: World) -> str | None:
    parameters = state.trained_parameters()
    for key, value in load_file(path / "optimizer.safetensors").items():
        slot, name = key.split("/", 1)
        if name in parameters:
            # Adagrad counts its steps on the CPU, also for a model on a GPU; a fused Adam beside the weights.
            on_cpu = slot == "step" and not state.optimizer.defaults.get("fused")
            state.optimizer.state[parameters[name]][slot] = value if on_cpu else value.to(parameters[name].device)
    progress = json.loads((path / "progress.json").read_text(encoding="utf-8"))
    state.counters = Counters(**progress["counters"])
    tensors = load_file(path / "state.safetensors")
    rows = BiLMState(tensors["hidden"], tensors["cell"])
    positions, n_rows = progress["positions"], state.lstm_state.n_rows
    first, n_before = world.rank * n_rows, len(positions)
    mine = BiLMState(*(part[:, :, first : first + n_rows] for part in rows)).first_rows(n_rows)
    state.lstm_state = mine.to(state.lstm_state.hidden.device)
    if world.rank < n_before:
        _set_random_states(tensors, world.rank, state.lstm_state.hidden.device)
    if n_before == world.size:
        state.counters.loss_sums = progress["loss_sums"][world.rank]
        state.stream.restore(positions[world.rank])
        return None
    n_passes = min(reader["place"][0] for position in positions for reader in position)
    state.stream.begin_pass(n_passes)
    return (
        f"The run was made by {n_before} processes and goes on with {world.size}: a step reads "
        f"{world.size * n_rows} rows instead of {rows.n_rows}, the text is divided anew and read from the start of "
        f"pass {n_passes + 1}. Weights, optimizer and schedule go on."
    )


def _random_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _set_random_states(tensors: Mapping[str, Tensor], rank: int, device: torch.device) -> None:
    torch.set_rng_state(tensors[f"random.{rank}.cpu"])
    if device.type == "cuda" and f"random.{rank}.cuda" in tensors:
        torch.cuda.set_rng_state(tensors[f"random.{rank}.cuda"], device)


def _damaged(path: Path, error: Exception) -> TrainingError:
    return TrainingError(f"The checkpoint {path} is damaged ({error}). Remove it to go on from the one before.")
