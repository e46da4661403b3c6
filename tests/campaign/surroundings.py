"""Commands that are interrupted, killed at any moment, or meet a disk that is full or cannot be written to.

What they make, resumed if need be, is what an undisturbed run makes, byte by byte.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

from tests.campaign.commands import ALL_COMMANDS
from tests.campaign.interruptions import (
    LIMITS,
    Command,
    Fault,
    Outcome,
    Step,
    check_failure,
    content_of,
    in_parallel,
    interrupt_and_resume,
    interrupt_repeatedly,
    resume_and_compare,
    run_straight,
)
from tests.helpers.children import Limits, run_elmokit

N_INTERRUPTIONS, N_MOMENTS = 1_000, 600
ROOMS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.1)
"""How much of what a command writes fits on a small disk."""


def interrupted(command: Command, work: Path, scale: float) -> Outcome:
    """Let a command die, be stopped or meet a full disk at changes of the disk, once and five times in a row."""
    n = max(6, round(N_INTERRUPTIONS * scale / len(ALL_COMMANDS)))
    n_changes = len(run_straight(command, work / "straight"))
    faults: tuple[Fault, ...] = ("kill", "kill", "interrupt", "full")
    n_repeated = max(1, n // 20)
    n_single = max(1, n - 5 * n_repeated)

    def attempt(number: int) -> list[str]:
        folder = work / str(number)
        if number >= n_single:
            problems = interrupt_repeatedly(command, folder, work / "straight", n_changes, Random(number))
            what = f"five times, seed {number}"
        else:
            at, fault = 1 + number * n_changes // n_single, faults[number % len(faults)]
            problems = interrupt_and_resume(command, folder, work / "straight", at, fault)
            what = f"{fault} at change {at}"
        shutil.rmtree(folder)
        return [f"{command.name}, {what}: {problem}" for problem in problems]

    failures = in_parallel(attempt, range(n_single + n_repeated))
    return n_single + 5 * n_repeated, failures, f"{n_changes} changes of the disk in a run"


def killed_at_any_moment(command: Command, work: Path, scale: float) -> Outcome:
    """Kill a command at times of the clock, between and in system calls, and resume it."""
    n = max(3, round(N_MOMENTS * scale / len(ALL_COMMANDS)))
    run_straight(command, work / "straight")
    timed = work / "timed"
    timed.mkdir()
    command.prepare(timed)
    seconds = run_elmokit(*command.start, folder=timed, before=command.hasten, limits=LIMITS).seconds

    def attempt(number: int) -> list[str]:
        folder = work / str(number)
        folder.mkdir()
        command.prepare(folder)
        at = Random(f"{command.name} {number}").uniform(0, seconds)
        ended = run_elmokit(*command.start, folder=folder, before=command.hasten, limits=Limits(seconds=at))
        problems = [] if ended.timed_out else check_failure(ended, "kill")
        problems = problems or resume_and_compare(command, folder, work / "straight")
        shutil.rmtree(folder)
        return [f"{command.name}, killed after {at:.3f} s: {problem}" for problem in problems]

    return n, in_parallel(attempt, range(n)), f"within {seconds:.2f} s"


def on_a_small_disk(command: Command, work: Path, scale: float) -> Outcome:
    """Run a command on a disk that is too small, then make room and resume."""
    run_straight(command, work / "straight")
    inputs = work / "inputs"
    inputs.mkdir()
    command.prepare(inputs)
    n_inputs, n_all = _disk_use(inputs), _disk_use(work / "straight")
    failures, n_full = [], 0
    for ratio in ROOMS:
        room = int((n_all - n_inputs) * ratio)
        with _mounted(work / f"disk-{room}", n_inputs + room) as mounted:
            folder = mounted / "run"
            shutil.copytree(inputs, folder)
            ended = run_elmokit(*command.start, folder=folder, before=command.hasten, limits=LIMITS)
            problems = check_failure(ended, "full")
            n_full += ended.code == 2
            subprocess.run(["mount", "-o", "remount,size=1g", mounted], check=True)
            if not problems and ended.code == 2:
                problems = resume_and_compare(command, folder, work / "straight")
            failures += [f"{command.name}, {room:,} bytes of room: {problem}" for problem in problems]
    return len(ROOMS), failures, f"{n_full} of them met a full disk"


def _disk_use(folder: Path) -> int:
    blocks = (path.stat().st_size // 4096 + 1 for path in folder.rglob("*"))
    return 4096 * sum(blocks)


@contextmanager
def _mounted(folder: Path, n_bytes: int) -> Iterator[Path]:
    """Mount a file system of a size in memory; that needs root."""
    folder.mkdir()
    size = max(4096, n_bytes // 4096 * 4096)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def in_a_read_only_directory(command: Command, work: Path, scale: float) -> Outcome:
    """Let a command write where it may not."""
    with _mounted(work / "disk", 1 << 30) as mounted:
        folder = mounted / "run"
        folder.mkdir()
        command.prepare(folder)
        before = content_of(folder)
        subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
        ended = run_elmokit(*command.start, folder=folder, limits=LIMITS)
        problems = check_failure(ended, "full")
        if ended.code != 2:
            problems.append(f"ended with {ended.code} although nothing could be written")
        if content_of(folder) != before:
            problems.append("something was written all the same")
    return 1, [f"{command.name}, read-only: {problem}" for problem in problems], ""


def of_every_command(step: Callable[[Command, Path, float], Outcome]) -> dict[str, Step]:
    """Return a table with a step for each command."""
    return {name: partial(step, command) for name, command in ALL_COMMANDS.items()}


PARTS: dict[str, dict[str, Step]] = {
    "interruptions": of_every_command(interrupted),
    "moments": of_every_command(killed_at_any_moment),
    "disk": of_every_command(on_a_small_disk),
    "read-only": of_every_command(in_a_read_only_directory),
}
