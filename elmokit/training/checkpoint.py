"""Checkpoints: a directory, written completely or not at all, with all that the next training step depends on.

::

    optimizer.safetensors   the optimizer's state tensors, named SLOT/PARAMETER
    *.safetensors           further tensors, as the training loop needs them (random states, LSTM state)
    progress.json           counters and positions, and the checksums of the other files
    model/ or *.safetensors the weights, in the form that the training loop prefers

The optimizer's state is stored by parameter name and not by parameter number, as ``optimizer.state_dict()`` would: a
checkpoint then survives a change in the order of modules, and its file can be inspected.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from elmokit.config import read_json
from elmokit.errors import ElmoError, TrainingError
from elmokit.network.tensors import save_tensors
from elmokit.storage.atomic import atomic_write
from elmokit.storage.bounded import MAX_RECORD_BYTES
from elmokit.storage.checksums import size_and_crc32

PROGRESS = "progress.json"
CHECKSUMS = "checksums"


@contextlib.contextmanager
def write_checkpoint(
    path: Path, progress: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]
) -> Iterator[Path]:
    """Write a checkpoint directory; the block may add files, and the directory gets its name when the block ends.

    An existing checkpoint of that name is replaced only once the new one is complete.

    Args:
        path: The checkpoint's directory.
        progress: Counters and positions, as plain JSON.
        tensors: The content of each safetensors file, by file name without ending.

    Yields:
        The temporary directory, for files in other formats.

    Raises:
        OutputError: The checkpoint cannot be written. An existing one is left as it was.
    """
    with atomic_write(path, overwrite=True, folder=True) as folder:
        for name, content in tensors.items():
            save_tensors(content, folder / f"{name}.safetensors")
        yield folder
        with_checksums = {**progress, CHECKSUMS: _checksums(folder)}
        (folder / PROGRESS).write_text(json.dumps(with_checksums), encoding="utf-8")


def read_progress(path: Path) -> dict[str, Any]:
    """Read the counters of a checkpoint, and check that its files are those that were written.

    Call it inside :func:`checkpoint_errors`, before the files are used.

    Raises:
        ValueError: A file is missing, left over or damaged.
    """
    content = read_json(path / PROGRESS, max_bytes=MAX_RECORD_BYTES)
    written, found = content.pop(CHECKSUMS, None), _checksums(path)
    if not isinstance(written, dict):
        raise ValueError(f"{PROGRESS} has no checksums")
    if written != found:
        names = sorted(name for name in {**written, **found} if written.get(name) != found.get(name))
        raise ValueError(f"{names[0]} is not what was written")
    return content


def _checksums(folder: Path) -> dict[str, list[int]]:
    """Return the size and checksum of each file, except that of the counters."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / PROGRESS:
            with path.open("rb") as file:
                found[path.relative_to(folder).as_posix()] = list(size_and_crc32(file))
    return found


def read_tensors(path: Path, name: str) -> dict[str, Tensor]:
    """Read one safetensors file of a checkpoint. Call it inside :func:`checkpoint_errors`."""
    return load_file(path / f"{name}.safetensors")


@contextlib.contextmanager
def checkpoint_errors(path: Path, advice: str) -> Iterator[None]:
    """Turn whatever a damaged checkpoint causes inside the block into one readable error.

    Args:
        path: The checkpoint, for the message.
        advice: A sentence that says what the user can do.

    Raises:
        TrainingError: The checkpoint cannot be read, or does not fit the model.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (ElmoError, SafetensorError, RuntimeError, KeyError, ValueError, TypeError, OSError) as error:
        reason = " ".join(str(error).split())[:200]  # a mismatch of many tensors fills pages
        raise TrainingError(f"The checkpoint {path} is damaged ({reason}). {advice}") from None


def optimizer_tensors(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Collect an optimizer's state as tensors named ``SLOT/PARAMETER``.

    Args:
        optimizer: The optimizer.
        parameters: The trained parameters by name.
    """
    tensors = {}
    for name, parameter in parameters.items():
        for slot, value in optimizer.state.get(parameter, {}).items():
            if value is not None:  # SGD without momentum keeps an empty slot
                tensors[f"{slot}/{name}"] = torch.as_tensor(value)
    return tensors


def restore_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]
) -> None:
    """Load what :func:`optimizer_tensors` collected. Tensors of parameters that are not trained now are ignored."""
    for key, value in tensors.items():
        slot, name = key.split("/", 1)
        if name in parameters:
            # Optimizers count their steps on the CPU, also for a model on a GPU; only a fused one counts on the GPU.
            on_cpu = slot == "step" and not optimizer.defaults.get("fused")
            optimizer.state[parameters[name]][slot] = value if on_cpu else value.to(parameters[name].device)


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Read the states of PyTorch's random number generators: ``cpu``, and ``cuda`` for a GPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Set the states that :func:`random_states` read. A run that moved to a GPU has no state for it to restore."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
