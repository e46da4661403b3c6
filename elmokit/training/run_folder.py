"""The parts of a run directory that every training loop shares: lock, settings check, JSON files and metrics log.

A run directory holds everything needed to continue a training. The biLM loop (``training/``) and the task loop
(``tasks/``) keep different files in it, but both follow the same rules:

* one process at a time trains in the directory (:func:`run_lock`);
* a resumed run has the settings of the original one, apart from a named few (:func:`check_settings`);
* after an interruption the log is cut back to the checkpoint (:meth:`MetricsLog.truncate`), so that no step appears
  twice.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from elmokit.errors import FormatError, TrainingError
from elmokit.storage.atomic import atomic_write, sync
from elmokit.storage.bounded import read_bounded
from elmokit.storage.lock import LOCK, file_lock


def run_lock(run: Path) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of a run directory while a block runs.

    Raises:
        LockedError: Another process is training there.
    """
    return file_lock(
        run / LOCK, f"Another process is training in {run}. Wait until it is finished, or choose another directory."
    )


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file completely or not at all, replacing an existing one."""
    with atomic_write(path, overwrite=True) as temporary:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def changed_settings(
    earlier: Mapping[str, Any], now: Mapping[str, Any], may_change: Collection[str] = (), prefix: str = ""
) -> list[str]:
    """List the settings that differ between two tables, one phrase for each.

    Args:
        may_change: Names that may differ, with dots for nested tables (``"train.seeds"``).
        prefix: Name of the enclosing table with its dot; callers leave it empty.

    Returns:
        Phrases such as ``"batch_size was 4 and is 8"``.
    """
    changes: list[str] = []
    for name, value in now.items():
        before = earlier.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            changes += changed_settings(before, value, may_change, f"{prefix}{name}.")
        elif before != value and f"{prefix}{name}" not in may_change:
            changes.append(f"{prefix}{name} was {before!r} and is {value!r}")
    return changes


def check_settings(
    run: Path, earlier: Mapping[str, Any], now: Mapping[str, Any], may_change: Collection[str] = ()
) -> None:
    """Refuse to resume a run with settings other than its own.

    Args:
        earlier: The settings that the run was started with, as plain data.
        now: The settings it is to be resumed with.
        may_change: Names that may differ, as in :func:`changed_settings`.

    Raises:
        TrainingError: Another setting differs. The message lists the old and new values.
    """
    if changes := changed_settings(earlier, now, may_change):
        raise TrainingError(
            f"{run} was started with other settings: {', '.join(changes)}. Resume it with the same settings, or start "
            "a new run."
        )


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
        """Read all records. A line that is not one, such as one cut short by an interruption, is left out.

        Raises:
            FormatError: The file is too large for a log.
        """
        if not self.path.exists():
            return []
        found = []
        try:
            text = read_bounded(self.path).decode("utf-8", "replace")
        except ValueError as error:
            raise FormatError(f"{self.path} is damaged ({error}). Copy the run again.") from None
        for line in text.splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, dict) and isinstance(record.get("n_steps"), int):
                    found.append(record)
        return found

    def truncate(self, n_steps: int) -> None:
        """Remove what was logged after step ``n_steps``: a resumed run repeats those steps and logs them again."""
        if not self.path.exists():
            return
        kept = [json.dumps(record) + "\n" for record in self.records() if record["n_steps"] <= n_steps]
        with atomic_write(self.path, overwrite=True) as temporary:
            temporary.write_text("".join(kept), encoding="utf-8")
