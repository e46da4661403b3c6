"""A training on disk. The loops of biLMs and of tasks both train in a :class:`Run`, a directory with

::

    metrics.jsonl         the log, one JSON object per line
    checkpoints/step-N/   the two newest checkpoints
    lock                  locked by the process that trains there

Next to them are what the training was started with and its best model so far, which differ: ``training/bilm_run.py``
lists them for biLMs, ``tasks/run_folder.py`` for tasks, where each seed is a run inside that of the task.

Resuming is the same for all: the call that started a run continues it (:meth:`Run.check_start`). Its settings must be
the same, apart from a named few (:func:`check_settings`). On the CPU, the result has the same bits as that of a run
that was not interrupted, because a checkpoint holds everything that the next step depends on::

    progress.json           counters and positions, and checksums of the other files
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
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from elmokit.config import read_json
from elmokit.errors import ElmoError, FormatError, OutputError, TrainingError, is_out_of_memory
from elmokit.formats.folder import load_folder, save_folder
from elmokit.formats.model import PretrainedBiLM
from elmokit.network.tensors import save_tensors
from elmokit.storage.atomic import LOCK, atomic_write, file_lock, is_unused, recover_interrupted, sync, workspaces
from elmokit.storage.bounded import CRC32, is_digest, read_bounded, size_and_crc32
from elmokit.version import __version__

SETTINGS = "settings.json"
LOG, CHECKPOINTS = "metrics.jsonl", "checkpoints"
PROGRESS, CHECKSUMS = "progress.json", "checksums"
_STEP = re.compile(r"step-\d{8,18}")
N_KEPT = 2  # the newest checkpoint, and the one before it in case the newest is damaged


_DAMAGE = (SafetensorError, msgspec.MsgspecError, RuntimeError, LookupError, ValueError, TypeError, OSError)
"""What reading a damaged file raises."""


@contextlib.contextmanager
def damage_errors(
    what: object,
    advice: str = "Copy the run again.",
    error_class: type[ElmoError] = FormatError,
    damage: tuple[type[Exception], ...] = _DAMAGE,
) -> Iterator[None]:
    """Turn whatever a damaged file causes inside the block into an error that names it and ends in advice."""
    try:
        yield
    except damage as error:
        if is_out_of_memory(error):
            raise
        raise error_class(f"{what} is damaged ({_reason(error)}). {advice}") from None


def _reason(error: Exception) -> str:
    """Return what an error says, in one short line: a mismatch of many tensors fills pages."""
    text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return " ".join(text.split())[:200]


class Run:
    """The directory of a training.

    Args:
        path: The directory.
        files: Name patterns of everything that a loop writes there besides log, checkpoints and lock. The first is the
            file of the settings, without which the directory is not a run.
    """

    def __init__(self, path: str | Path, files: Collection[str] = ()) -> None:
        self.path = Path(path)
        self.log = MetricsLog(self.path / LOG)
        self._files = tuple(files)

    def check_start(self, overwrite: bool) -> bool:
        """Check that a training can start in the directory, and whether there is a run that it continues.

        With ``overwrite``, it continues none, and :meth:`remove` deletes what is there. Files that are not those of a
        run are an error, because they would be lost.
        """
        if is_unused(self.path):
            return False
        if self.path.is_dir() and (self.path / self._files[0]).exists() and not overwrite:
            return True
        if not overwrite or not self.path.is_dir():
            raise OutputError(f"{self.path} already exists and is not a run to continue.")
        known = [*self._files, LOG, CHECKPOINTS, LOCK]
        left_over = workspaces(self.path)  # by a killed process
        for name in sorted(inside.name for inside in set(self.path.iterdir()).difference(left_over)):
            if not any(fnmatchcase(name, pattern) for pattern in known):
                raise OutputError(f"{self.path} contains {name}, which overwriting would delete.")
        return False

    def remove(self) -> None:
        """Delete everything but the lock, to start anew."""
        with self.lock():
            # First the settings: without them, what an interruption leaves is not taken for a run to continue.
            (self.path / self._files[0]).unlink(missing_ok=True)
            for inside in self.path.iterdir():
                if inside.is_dir() and not inside.is_symlink():
                    shutil.rmtree(inside)
                elif inside.name != LOCK:
                    inside.unlink()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes out while the block runs, and clean up after one that was killed."""
        message = f"Another process is training in {self.path}. Wait until it is finished, or choose another directory."
        with file_lock(self.path / LOCK, message):
            # Only under the lock: the temporary directories of another process that is writing would be removed.
            recover_interrupted(self.path)
            recover_interrupted(self.path / CHECKPOINTS)
            yield

    def checkpoints(self) -> list[RunCheckpoint]:
        """List the checkpoints, oldest first."""
        # Others, such as "step-00000100 (copy)", are the user's own.
        paths = (self.path / CHECKPOINTS).glob("step-*")
        return [RunCheckpoint(path) for path in sorted(paths) if _STEP.fullmatch(path.name)]

    def checkpoint_at(self, n_steps: int) -> RunCheckpoint:
        """The checkpoint after some number of steps, whether it exists or not."""
        # Eight digits, so that names in alphabetical order are in the order of steps.
        return RunCheckpoint(self.path / CHECKPOINTS / f"step-{n_steps:08d}")

    def save_checkpoint(
        self,
        n_steps: int,
        progress: Mapping[str, Any],
        tensors: Mapping[str, Mapping[str, Tensor]],
        models: Mapping[str, PretrainedBiLM] | None = None,
    ) -> None:
        """Write a checkpoint completely or not at all, then remove all but the newest two.

        Args:
            n_steps: How many steps have been taken.
            progress: Counters and positions, as plain JSON.
            tensors: The content of each safetensors file, by its name without ending.
            models: The content of each model directory.
        """
        with atomic_write(self.checkpoint_at(n_steps).path, overwrite=True, folder=True) as folder:
            for name, content in tensors.items():
                save_tensors(content, folder / f"{name}.safetensors")
            for name, model in (models or {}).items():
                save_folder(model, folder / name)
            with_checksums = {**progress, CHECKSUMS: _checksums(folder)}
            (folder / PROGRESS).write_text(json.dumps(with_checksums), encoding="utf-8")
        # After the new one is complete, so that there is always one to resume from.
        for old in self.checkpoints()[:-N_KEPT]:
            shutil.rmtree(old.path)


class RunCheckpoint:
    """A directory ``checkpoints/step-N``, with everything that the next step of a training depends on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def n_steps(self) -> int:
        """The steps that had been taken."""
        return int(self.path.name.removeprefix("step-"))

    def errors(
        self, advice: str = "Remove it to resume from the one before it, if any."
    ) -> contextlib.AbstractContextManager[None]:
        """Turn whatever a damaged checkpoint causes inside the block into a ``TrainingError`` that ends in advice."""
        return damage_errors(f"The checkpoint {self.path}", advice, TrainingError, (ElmoError, *_DAMAGE))

    def progress(self) -> dict[str, Any]:
        """Read the counters. A ``ValueError`` says which other file is not the one that was written, if any."""
        content = read_json(self.path / PROGRESS)
        written, present = content.pop(CHECKSUMS), _checksums(self.path)
        if written != present:
            names = sorted(name for name in {**written, **present} if written.get(name) != present.get(name))
            raise ValueError(f"{names[0]} is not what was written")
        return content

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Read one safetensors file."""
        return load_file(self.path / f"{name}.safetensors")

    def model(self, name: str = "model") -> PretrainedBiLM:
        """Load one of the model directories."""
        return load_folder(self.path / name)


def _checksums(folder: Path) -> dict[str, list[int]]:
    checksums = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / PROGRESS:
            with path.open("rb") as file:
                checksums[path.relative_to(folder).as_posix()] = list(size_and_crc32(file))
    return checksums


class MetricsLog:
    """A log with one JSON object per line (``metrics.jsonl``). Every object has the key ``n_steps``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one more line and flush it to disk: a later checkpoint relies on it."""
        is_new = not self.path.exists()
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync(self.path.parent)

    def records(self) -> list[dict[str, Any]]:
        """Read all records. A line that is not one, such as one cut short by an interruption, is left out."""
        if not self.path.exists():
            return []
        records = []
        with damage_errors(self.path):
            text = read_bounded(self.path).decode("utf-8", "replace")
        for line in text.splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, dict) and isinstance(record.get("n_steps"), int):
                    records.append(record)
        return records

    def truncate(self, n_steps: int) -> None:
        """Remove what was logged after step ``n_steps``: a resumed run repeats those steps and logs them again."""
        if not self.path.exists():
            return
        kept = [json.dumps(record) + "\n" for record in self.records() if record["n_steps"] <= n_steps]
        with atomic_write(self.path, overwrite=True) as temporary:
            temporary.write_text("".join(kept), encoding="utf-8")


def changed_settings(
    earlier: Mapping[str, Any], now: Mapping[str, Any], may_change: Collection[str] = (), prefix: str = ""
) -> list[str]:
    """List the settings that differ between two tables, each as a phrase like ``"batch_size was 4 and is 8"``.

    Settings of inner tables have names with dots, in ``may_change`` too: ``train.seeds``.
    """
    changes: list[str] = []
    for name, value in now.items():
        before = earlier.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            changes += changed_settings(before, value, may_change, f"{prefix}{name}.")
        elif before != value and f"{prefix}{name}" not in may_change:
            changes.append(f"{prefix}{_change(name, before, value)}")
    return changes


def _change(name: str, before: object, value: object) -> str:
    """Say how a setting differs; of a checksum, only that, because its numbers mean nothing to people."""
    if not (name.endswith(CRC32) or is_digest(before) or is_digest(value)):
        return f"{name} was {_short(before)} and is {_short(value)}"
    name = name.removesuffix(CRC32)
    if before is None or value is None:
        return f"{name} was not given and is now" if before is None else f"{name} was given and is not now"
    return f"{name} has changed"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."  # the files of a corpus may be thousands


def check_settings(
    run: Path, earlier: Mapping[str, Any], now: Mapping[str, Any], may_change: Collection[str] = ()
) -> None:
    """Refuse to continue a run with settings other than its own, apart from those in ``may_change``."""
    if changes := changed_settings(earlier, now, may_change):
        raise TrainingError(
            f"{run} was started with other settings: {', '.join(changes)}. Choose another directory, or start anew "
            "with --overwrite (overwrite=True)."
        )


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


def run_origin() -> dict[str, str]:
    """Return what a run records about where it comes from: the command, and the version of elmokit."""
    program = Path(sys.argv[0])
    name = "elmokit" if program.stem in ("elmokit", "__main__") else program.name
    return {"command": shlex.join([name, *sys.argv[1:]]), "elmokit": _version()}


def _version() -> str:
    """Return the version of the package, and the commit if it runs from a git checkout."""
    package = Path(__file__).parents[1]
    if (package.parent / ".git").exists():
        command = ["git", "-C", str(package), "rev-parse", "--short", "HEAD"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode == 0:
            return f"{__version__} at commit {ran.stdout.strip()}"
    return __version__


NOTICE = b"\nStopping after this step, with a checkpoint. Press Ctrl-C again to stop at once.\n"


class TrainingInterrupted(KeyboardInterrupt):
    """A training that the user stopped. Its last step is in a checkpoint, and the message says which step it was."""


class StopRequest:
    """Whether the process was asked to stop. Get it from :func:`stop_requests`, and check it after each step."""

    is_made = False


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turn the first SIGINT (Ctrl-C) or SIGTERM during the block into a request; a second one acts as usual.

    Nothing changes where Python cannot handle signals (in other threads than the main one), and for a signal that the
    process ignores, such as SIGINT in a background job of a shell.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    earlier = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # None is a handler that was not installed from Python, and that Python could not install again.
    handled = {number: handler for number, handler in earlier.items() if handler not in (signal.SIG_IGN, None)}

    def restore() -> None:
        for number, handler in handled.items():
            signal.signal(number, handler)

    def handle(number: int, frame: object) -> None:
        request.is_made = True
        restore()
        # Not `print`: the signal may have come in the middle of one, and a stream cannot be entered twice.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.write(sys.stderr.fileno(), NOTICE)

    for number in handled:
        signal.signal(number, handle)
    try:
        yield request
    finally:
        restore()
