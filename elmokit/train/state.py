"""All that resuming needs: a checkpoint folder, written whole or not at all.

A checkpoint holds ``model/`` (a folder of ours, which opens like any model), ``optimizer.safetensors``,
``state.safetensors`` (LSTM state, random state) and ``progress.json`` (counters, place in the corpus).
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from elmokit.bilm import BiLMState
from elmokit.errors import ModelError, TrainingError
from elmokit.files import written_whole
from elmokit.nn.softmax import FullSoftmax
from elmokit.text.stream import WindowStream
from elmokit.weights.folder import load_folder, save_folder, save_tensors
from elmokit.weights.model import StoredModel

N_KEPT = 2


@dataclass
class TrainingState:
    """Everything that the next step reads."""

    model: StoredModel
    softmax: FullSoftmax
    """That of the model."""
    optimizer: torch.optim.Adam
    lstm_state: BiLMState
    stream: WindowStream
    n_steps: int = 0
    n_predictions: int = 0
    """Per direction, since the start of the run."""
    best_perplexity: float = float("inf")

    def named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """The trained parameters, in the optimizer's order."""
        of_softmax = ((f"softmax.{name}", parameter) for name, parameter in self.softmax.named_parameters())
        return [*self.model.bilm.named_parameters(), *of_softmax]


def save_checkpoint(state: TrainingState, folder: Path) -> None:
    """Write ``folder/step-N`` and drop all but the newest few."""
    with written_whole(folder / f"step-{state.n_steps:08d}", overwrite=True, folder=True) as path:
        save_folder(state.model, path / "model")
        slots: dict[str, Tensor] = {}
        for name, parameter in state.named_parameters():
            for slot, value in state.optimizer.state[parameter].items():
                slots[f"{slot}/{name}"] = torch.as_tensor(value)
        save_tensors(slots, path / "optimizer.safetensors")
        lstm_state = state.lstm_state._asdict()
        save_tensors({**lstm_state, "random": torch.get_rng_state()}, path / "state.safetensors")
        progress = {
            "n_steps": state.n_steps,
            "n_predictions": state.n_predictions,
            "best_perplexity": state.best_perplexity,
            "position": state.stream.position(),
        }
        (path / "progress.json").write_text(json.dumps(progress), encoding="utf-8")
    for old in checkpoints(folder)[:-N_KEPT]:
        shutil.rmtree(old)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(folder.glob("step-*"))


def load_checkpoint(state: TrainingState, path: Path) -> None:
    """Bring a freshly built state to where the checkpoint left off.

    Raises:
        TrainingError: the checkpoint is damaged, or of a run with other settings.
    """
    try:
        _load(state, path)
    except (ModelError, SafetensorError, KeyError, ValueError, OSError) as error:
        raise TrainingError(
            f"The checkpoint {path} is damaged ({error}). Remove it to go on from the one before."
        ) from None


def _load(state: TrainingState, path: Path) -> None:
    stored = load_folder(path / "model")
    if stored.vocabulary is None or stored.softmax is None or stored.bilm.config != state.model.bilm.config:
        raise TrainingError(f"{path} is a checkpoint of another model. Resume with the run's own settings.")
    state.model.bilm.load_state_dict(stored.bilm.state_dict())
    state.softmax.load_state_dict(stored.softmax.state_dict())
    parameters = dict(state.named_parameters())
    for key, value in load_file(path / "optimizer.safetensors").items():
        slot, name = key.split("/", 1)
        state.optimizer.state[parameters[name]][slot] = value
    tensors = load_file(path / "state.safetensors")
    torch.set_rng_state(tensors.pop("random"))
    state.lstm_state = BiLMState(**tensors)
    progress = json.loads((path / "progress.json").read_text(encoding="utf-8"))
    state.stream.restore(progress.pop("position"))
    for name, value in progress.items():
        setattr(state, name, value)
