"""Interrupt a command at a chosen change of the disk, resume it, and compare with a run that was not interrupted.

A command changes the disk by renaming, flushing, locking, creating and deleting. Each of these calls is a point where a
process can die. They are counted in an uninterrupted run; then the command is started again and again, and ends at the
first, second, third, ... call. So every point is tested, and none by chance.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

import elmokit
from elmokit.evaluation import probe_corpus as corpus
from elmokit.storage import workspace
from elmokit.tasks import layer_cache
from tests.helpers.children import Ended, Limits, run_elmokit

Outcome = tuple[int, list[str], str]
"""How many attempts a step of the campaign made, what failed, and a note."""
Step = Callable[[Path, float], Outcome]
"""It gets an empty directory, and a scale of which 1 is the whole campaign."""
CHANGES: tuple[tuple[Any, str], ...] = (
    *((os, name) for name in ("replace", "rename", "fsync", "unlink", "mkdir", "rmdir", "ftruncate")),
    (fcntl, "flock"),
)
"""The functions through which Python's libraries change names on the disk, flush and lock. The content of a file counts
when it is flushed: without that, nothing about it is promised."""

Fault = Literal["kill", "interrupt", "full"]
"""SIGKILL; SIGINT as by Ctrl-C; or an error as of a full disk."""
SITES = "sites.txt"
_PACKAGE = Path(elmokit.__file__).parent
LIMITS = Limits(seconds=600)


@dataclass(frozen=True)
class Command:
    """A command that can be resumed.

    Attributes:
        name: What the tests call it.
        prepare: Writes its inputs to a directory.
        start: The arguments of the first run.
        resume: Returns the arguments of a later run in a directory: what a user would type there.
        hasten: Called in every child, to let the command commit often.
    """

    name: str
    prepare: Callable[[Path], None]
    start: tuple[str, ...]
    resume: Callable[[Path], tuple[str, ...]]
    hasten: Callable[[], None] | None = None


def in_parallel(attempt: Callable[[int], list[str]], numbers: Iterable[int]) -> list[str]:
    """Make attempts in as many threads as there are cores, and return all that failed."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return [problem for problems in pool.map(attempt, numbers) for problem in problems]


def commit_always() -> None:
    """Commit after every batch, and make batches and chunks small."""
    workspace.COMMIT_SECONDS = 0.0
    corpus.CHUNK_TOKENS = 60
    layer_cache.CHUNK_TOKENS = 20


def count_changes(hasten: Callable[[], None] | None) -> None:
    """Let this process write a line to ``sites.txt`` for every change of the disk: the call, and where it was made."""
    _hook(hasten, lambda number, site: _note(site))


def fail_at(hasten: Callable[[], None] | None, number: int, fault: Fault) -> None:
    """Let this process fail at its Nth change of the disk, before the change is made."""

    def fail(counted: int, site: str) -> None:
        if counted != number:
            return
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        elif site.startswith(("fsync", "mkdir")):  # deleting and renaming need no room
            raise OSError(28, "No space left on device")

    _hook(hasten, fail)


def _hook(hasten: Callable[[], None] | None, on_change: Callable[[int, str], None]) -> None:
    if hasten is not None:
        hasten()
    counter, lock = [0], threading.Lock()

    def hooked(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **settings: Any) -> Any:
            with lock:
                counter[0] += 1
                number = counter[0]
            on_change(number, f"{name} {_site()}")
            return plain(*arguments, **settings)

        return wrapped

    for owner, name in CHANGES:
        setattr(owner, name, hooked(name, getattr(owner, name)))


def _site() -> str:
    """Return the functions of elmokit that led here, the last one first."""
    frame, names = sys._getframe(2), []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            # The line of the innermost call tells apart several calls in one function.
            line = "" if names else f":{frame.f_lineno}"
            names.append(f"{path.stem}.{frame.f_code.co_name}{line}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(names)


def _note(site: str) -> None:
    # Not by `open` of a file object: it must be written even if the process dies at once.
    descriptor = os.open(SITES, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{site}\n".encode())
    os.close(descriptor)


def run_straight(command: Command, folder: Path) -> list[str]:
    """Run a command to its end in a new directory, and return the sites of its changes of the disk."""
    folder.mkdir()
    command.prepare(folder)
    ended = run_elmokit(*command.start, folder=folder, before=partial(count_changes, command.hasten), limits=LIMITS)
    assert ended.code == 0, ended.err
    sites = (folder / SITES).read_text().splitlines()
    (folder / SITES).unlink()
    return sites


def one_of_each(sites: list[str]) -> list[int]:
    """Return the numbers, from 1, of one call from each place that renames, flushes or locks."""
    chosen: dict[str, int] = {}
    for number, site in enumerate(sites, start=1):
        name, _, path = site.partition(" ")
        innermost, *functions = path.split(" < ")
        callers = [function for function in functions if not function.startswith(("atomic.", "lock."))]
        if name in ("replace", "rename", "fsync", "flock"):
            chosen[f"{name} {innermost} {callers[:2]}"] = number
    return sorted(chosen.values())


def interrupt_and_resume(command: Command, folder: Path, straight: Path, number: int, fault: Fault) -> list[str]:
    """Run a command in a new directory, let it fail once, resume it, and compare.

    Returns:
        What is wrong; nothing if all is well.
    """
    folder.mkdir()
    command.prepare(folder)
    before = partial(fail_at, command.hasten, number, fault)
    ended = run_elmokit(*command.start, folder=folder, before=before, limits=LIMITS)
    return check_failure(ended, fault) or resume_and_compare(command, folder, straight)


def check_failure(ended: Ended, fault: Fault) -> list[str]:
    """Check how a command ended that was made to fail. It may also have come to its end before."""
    if ended.timed_out:
        return ["did not end"]
    allowed = {"kill": (0, -signal.SIGKILL), "interrupt": (0, 130), "full": (0, 2)}[fault]
    if ended.code not in allowed or "Traceback" in ended.err:
        return [f"ended with {ended.code}: {ended.err}"]
    errors = [line for line in ended.err.splitlines() if line.startswith("elmokit: ")]
    if ended.code == 2 and len(errors) != 1:
        return [f"{len(errors)} lines of error: {ended.err}"]
    return []


def resume_and_compare(command: Command, folder: Path, straight: Path) -> list[str]:
    """Run a command again after a failure until its end, and compare what it made with an uninterrupted run's."""
    arguments = command.resume(folder)
    ended = run_elmokit(*arguments, folder=folder, before=partial(_hasten, command.hasten), limits=LIMITS)
    if ended.code != 0:
        return [f"elmokit {' '.join(arguments)} ended with {ended.code}: {ended.err}"]
    made, expected = content_of(folder), content_of(straight)
    problems = [f"{name} is missing" for name in sorted(expected.keys() - made.keys())]
    problems += [f"{name} is left over" for name in sorted(made.keys() - expected.keys())]
    return problems + [
        f"{name} differs" for name in sorted(made.keys() & expected.keys()) if made[name] != expected[name]
    ]


def _hasten(hasten: Callable[[], None] | None) -> None:
    if hasten is not None:
        hasten()


CHANGING = {"seconds", "tokens_per_second", "seconds_left", "command", "crc32", "metrics.jsonl"}
"""Keys of JSON files whose values are times, or sizes of files with times, or depend on how and where it was called."""


def content_of(folder: Path) -> dict[str, Any]:
    """Return the content of every file in a directory, without times and without the directory's own path.

    Left out are locks, which may stay, and the temporary directories next to an output of a process that was killed: no
    later process can know whose they are. Inside an output, none may be left. Of checkpoints, the newest counts.
    """
    # A training that is stopped by Ctrl-C saves a checkpoint where an uninterrupted one does not, so other old ones
    # are deleted. The newest checkpoint must be the same.
    old = {path for run in folder.rglob("checkpoints") for path in sorted(run.iterdir())[:-1]}
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    paths = [path for path in paths if path.name != "lock"]
    names = [path.relative_to(folder) for path in paths if not old.intersection(path.parents)]
    return {str(name): _content(folder / name, folder) for name in names if not name.parts[0].startswith(".")}


def _content(path: Path, folder: Path) -> Any:
    if path.suffix not in (".json", ".jsonl"):
        return path.read_bytes()
    text = path.read_text().replace(str(folder), "")
    if path.suffix == ".jsonl":
        return [_without_times(json.loads(line)) for line in text.splitlines()]
    return _without_times(json.loads(text))


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(inside) for key, inside in value.items() if key not in CHANGING}
    return [_without_times(inside) for inside in value] if isinstance(value, list) else value


def interrupt_repeatedly(command: Command, folder: Path, straight: Path, n_changes: int, random: Random) -> list[str]:
    """Interrupt a command and its resumptions five times in a row, then let it end, and compare.

    SIGKILL comes at any moment, SIGINT at any change of the disk.

    Args:
        command: The command.
        folder: A new directory.
        straight: Where an uninterrupted run was made.
        n_changes: How many changes of the disk that run made.
        random: Chooses the moments.
    """
    folder.mkdir()
    command.prepare(folder)
    arguments = command.start
    for attempt in range(5):
        before = partial(_hasten, command.hasten)
        limits, fault = Limits(seconds=random.uniform(0.0, 0.4)), "kill"
        if attempt % 2:
            limits, fault = LIMITS, "interrupt"
            before = partial(fail_at, command.hasten, random.randint(1, n_changes), fault)
        ended = run_elmokit(*arguments, folder=folder, before=before, limits=limits)
        problems = [] if fault == "kill" and ended.timed_out else check_failure(ended, fault)
        if problems:
            return problems
        arguments = command.resume(folder)
    return resume_and_compare(command, folder, straight)
