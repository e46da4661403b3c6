"""A training run on disk. The loops of biLMs and tasks both train in a :class:`Run`, a workspace with

::

    journal.json          the settings that must be equal to continue, and the progress
    metrics.jsonl         the log, one JSON object per line
    checkpoints/step-N/   the two newest checkpoints
    lock                  locked by the process that trains there

Next to them are the initial state and the best model so far: ``training/bilm_run.py`` lists them for biLMs, and
``tasks/run_folder.py`` for tasks, in which each seed is a run inside the task's run.

Resuming is the same for both: repeating the call that started a run continues it. On the CPU, the result has the same
bits as an uninterrupted run, because the last commit has everything that affects the next step: counters and positions
in the journal, and in the checkpoint::

    optimizer.safetensors   the optimizer's state, named SLOT/PARAMETER
    state.safetensors       random states; for a biLM also the LSTM states
    model, average          weights, and their moving average: a biLM's as model directories, a task's as safetensors
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from elmokit.config import read_json, write_json
from elmokit.errors import ElmoError, FormatError, RaisedAgain, TrainingError, is_out_of_memory
from elmokit.formats.folder import load_folder, save_folder
from elmokit.network.tensors import save_tensors
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.storage.atomic import atomic_write, recover_interrupted
from elmokit.storage.checksums import size_and_crc32
from elmokit.storage.workspace import Committed, Workspace
from elmokit.version import __version__

LOG, CHECKPOINTS = "metrics.jsonl", "checkpoints"
CHECKSUMS = "checksums.json"
_STEP = re.compile(r"step-\d{8,18}")
N_KEPT = 2  # the newest checkpoint and the previous one, in case the newest is bad

_DAMAGE = (SafetensorError, msgspec.MsgspecError, RuntimeError, LookupError, ValueError, TypeError, OSError)
"""Exceptions raised when reading a damaged file."""


def damage_errors(
    what: object,
    advice: str = "Copy the run again.",
    error_class: type[ElmoError] = FormatError,
    damage: tuple[type[Exception], ...] = _DAMAGE,
) -> RaisedAgain:
    """Turn errors caused by a damaged file in the block into one that names the file and ends with advice."""

    def raise_again(error: Exception) -> None:
        if isinstance(error, damage) and not is_out_of_memory(error):
            raise error_class(f"{what} is damaged ({_reason(error)}). {advice}") from None

    return RaisedAgain(raise_again)


def _reason(error: Exception) -> str:
    """Return an error's message as one short line, because a mismatch of many tensors fills pages."""
    text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return " ".join(text.split())[:200]


class Run(Workspace):
    """The directory of a training: a workspace with a log and checkpoints.

    Args:
        folder: The directory.
        settings: Settings that must be equal to continue the run; None if they are only known later, as in
            :class:`~elmokit.storage.workspace.Workspace`.
        others: Name patterns of everything that a loop writes besides log and checkpoints.
        former: Names of the files of such a run in version 0.2; see :class:`~elmokit.storage.workspace.Workspace`.
        overwrite: Start over instead of continuing an existing run.
    """

    def __init__(
        self,
        folder: str | Path,
        settings: Mapping[str, Any] | None,
        others: Collection[str] = (),
        former: Collection[str] = (),
        overwrite: bool = False,
    ) -> None:
        message = f"Another process is training in {folder}. Wait until it is finished, or choose another directory."
        others = (*others, LOG, CHECKPOINTS)
        super().__init__(folder, settings, others=others, former=former, overwrite=overwrite, locked_message=message)

    def __enter__(self) -> Run:
        super().__enter__()
        recover_interrupted(self.folder / CHECKPOINTS)
        return self

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a line to the log."""
        self.append(LOG, f"{json.dumps(record)}\n".encode())

    def save_checkpoint(
        self,
        n_steps: int,
        progress: Mapping[str, Any],
        tensors: Mapping[str, Mapping[str, Tensor]],
        models: Mapping[str, PretrainedBiLM] | None = None,
    ) -> None:
        """Write a checkpoint and commit it with the log, then remove all but the newest two.

        Args:
            n_steps: Number of steps taken.
            progress: Counters and positions, as plain JSON.
            tensors: The content of each safetensors file, by name without extension.
            models: The content of each model directory.
        """
        with atomic_write(checkpoint_at(self.folder, n_steps).path, overwrite=True, folder=True) as folder:
            for name, content in tensors.items():
                save_tensors(content, folder / f"{name}.safetensors")
            for name, model in (models or {}).items():
                save_folder(model, folder / name)
            write_json(folder / CHECKSUMS, _checksums(folder))
        self.commit({**self.progress, "n_steps": n_steps, **progress})
        for old in checkpoints(self.folder)[:-N_KEPT]:
            shutil.rmtree(old.path)


def last_checkpoint(committed: Committed) -> RunCheckpoint | None:
    """Return the checkpoint that a run continues from; None before the first one."""
    n_steps = committed.progress.get("n_steps")
    return None if n_steps is None else checkpoint_at(committed.folder, n_steps)


def checkpoint_at(run: Path, n_steps: int) -> RunCheckpoint:
    """Return the checkpoint after a number of steps, whether or not it exists."""
    # Eight digits, so alphabetical order is the order of steps.
    return RunCheckpoint(run / CHECKPOINTS / f"step-{n_steps:08d}")


def checkpoints(run: Path) -> list[RunCheckpoint]:
    """List the checkpoints in a run, oldest first."""
    # Others, such as "step-00000100 (copy)", are the user's own.
    paths = (run / CHECKPOINTS).glob("step-*")
    return [RunCheckpoint(path) for path in sorted(paths) if _STEP.fullmatch(path.name)]


class RunCheckpoint:
    """A directory ``checkpoints/step-N``, with the weights and states that affect the next training step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_checked = False

    @property
    def n_steps(self) -> int:
        """The number of steps taken."""
        return int(self.path.name.removeprefix("step-"))

    def errors(self, advice: str = "Copy the run again, or fine-tune the model of another checkpoint.") -> RaisedAgain:
        """Check the files, and turn errors caused by damage in the block into a ``TrainingError`` with advice."""
        what, damage = f"The checkpoint {self.path}", (ElmoError, *_DAMAGE)
        if not self._is_checked:
            with damage_errors(what, advice, TrainingError, damage):
                self._check()
            self._is_checked = True
        return damage_errors(what, advice, TrainingError, damage)

    def _check(self) -> None:
        """Compare the files with their checksums: a flipped bit would change the training without an error."""
        if not (self.path / CHECKSUMS).exists():
            return  # from a version that wrote none
        recorded = read_json(self.path / CHECKSUMS)
        found = _checksums(self.path)
        for name, checksum in recorded.items():
            if name not in found:
                raise FormatError(f"{name} is missing")
            if found[name] != checksum:
                raise FormatError(f"{name} has changed since it was written: its checksum differs")

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Read one safetensors file."""
        return load_file(self.path / f"{name}.safetensors")

    def model(self, name: str = "model") -> PretrainedBiLM:
        """Load one of the model directories."""
        return load_folder(self.path / name)


def _checksums(folder: Path) -> dict[str, int]:
    """Compute the checksum of each file of a checkpoint."""
    checksums = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != CHECKSUMS:
            with path.open("rb") as file:
                _, checksums[path.relative_to(folder).as_posix()] = size_and_crc32(file)
    return checksums


def random_states(device: torch.device) -> dict[str, Tensor]:
    """Read the states of PyTorch's random number generators: ``cpu``, and ``cuda`` for a GPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Set the states read by :func:`random_states`. A run that moved to a GPU has no state for it."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def run_origin() -> dict[str, str]:
    """Return the origin of a run: the command, and the version of elmokit."""
    program = Path(sys.argv[0])
    name = "elmokit" if program.stem in ("elmokit", "__main__") else program.name
    return {"command": shlex.join([name, *sys.argv[1:]]), "elmokit": _version()}


def _version() -> str:
    """Return the package's version, and the commit in a git checkout."""
    package = Path(__file__).parents[1]
    if (package.parent / ".git").exists():
        command = ["git", "-C", str(package), "rev-parse", "--short", "HEAD"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode == 0:
            return f"{__version__} at commit {ran.stdout.strip()}"
    return __version__


NOTICE = b"\nStopping after this step, with a checkpoint. Press Ctrl-C again to stop at once.\n"


class TrainingInterrupted(KeyboardInterrupt):
    """The user stopped training. The last step, which the message names, is in a checkpoint."""


class StopRequest:
    """Whether the process was asked to stop. Get it from :func:`stop_requests`, and check it after each step."""

    is_made = False


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turn the first SIGINT (Ctrl-C) or SIGTERM during the block into a request; a second one acts as usual.

    This has no effect outside the main thread, where Python cannot handle signals, or for signals that the process
    ignores, such as SIGINT in a shell's background job.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    earlier = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # None is a handler that was not installed from Python and cannot be reinstalled.
    handled = {number: handler for number, handler in earlier.items() if handler not in (signal.SIG_IGN, None)}

    def restore() -> None:
        for number, handler in handled.items():
            signal.signal(number, handler)

    def handle(number: int, frame: object) -> None:
        request.is_made = True
        restore()
        # Not `print`, because the signal may arrive during another print, and streams are not reentrant.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.write(sys.stderr.fileno(), NOTICE)

    for number in handled:
        signal.signal(number, handle)
    try:
        yield request
    finally:
        restore()
