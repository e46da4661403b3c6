"""Commands in rough surroundings: killed at any moment, with a clock that jumps, and with little processor time and
memory. What they make, resumed if need be, is what an undisturbed run makes, byte by byte.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random

from tests.campaign.commands import ALL_COMMANDS, COMMANDS
from tests.campaign.interruptions import (
    LIMITS,
    Command,
    check_failure,
    commit_always,
    fail_at,
    resume_and_compare,
    run_straight,
)
from tests.helpers.children import Ended, Limits, run_elmokit

Outcome = tuple[int, list[str], str]
N_MOMENTS, N_JUMPS, N_QUOTAS = 600, 60, 12


def killed_at_any_moment(name: str) -> Callable[[Path, float], Outcome]:
    """Return a step that kills a command at times of the clock, between and in system calls, and resumes it."""

    def step(work: Path, scale: float) -> Outcome:
        command, n = ALL_COMMANDS[name], max(3, round(N_MOMENTS * scale / len(ALL_COMMANDS)))
        run_straight(command, work / "straight")
        timed = work / "timed"
        timed.mkdir()
        command.prepare(timed)
        seconds = run_elmokit(*command.start, folder=timed, before=command.hasten, limits=LIMITS).seconds

        def attempt(number: int) -> list[str]:
            folder = work / str(number)
            folder.mkdir()
            command.prepare(folder)
            at = Random(f"{name} {number}").uniform(0, seconds)
            ended = run_elmokit(*command.start, folder=folder, before=command.hasten, limits=Limits(seconds=at))
            problems = [] if ended.timed_out else check_failure(ended, "kill")
            problems = problems or resume_and_compare(command, folder, work / "straight")
            shutil.rmtree(folder)
            return [f"{name}, killed after {at:.3f} s: {problem}" for problem in problems]

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            problems = [problem for found in pool.map(attempt, range(n)) for problem in found]
        return n, problems, f"within {seconds:.2f} s"

    return step


def let_the_clock_jump(seed: int, then: Callable[[], None] | None = None) -> None:
    """Let the time of day jump by up to ten years, back and forth, whenever this process asks for it."""
    # Only that clock: the system never sets back the one of `time.monotonic`.
    random, real, real_ns = Random(seed), time.time, time.time_ns
    offset = [0.0]

    def jump() -> float:
        if random.random() < 0.3:
            offset[0] = random.choice((-1, 1)) * 10 ** random.uniform(-2, 8.5)
        return offset[0]

    time.time = lambda: max(0.0, real() + jump())
    time.time_ns = lambda: max(0, real_ns() + int(jump() * 1e9))
    (then or commit_always)()


def jumping_clock(work: Path, scale: float) -> Outcome:
    """Run each command, and interrupt and resume it, while the clock jumps."""
    n, failures = max(1, round(N_JUMPS * scale / len(ALL_COMMANDS))), []
    for name, command in ALL_COMMANDS.items():
        n_changes = len(run_straight(command, work / name))
        for number in range(n):
            folder = work / f"{name} {number}"
            folder.mkdir()
            command.prepare(folder)
            jumping = Command(
                name,
                command.prepare,
                command.start,
                command.resume,
                partial(let_the_clock_jump, number, command.hasten),
            )
            at = Random(f"{name} {number}").randint(1, n_changes)
            before = partial(fail_at, jumping.hasten, at, "kill")
            ended = run_elmokit(*command.start, folder=folder, before=before, limits=LIMITS)
            problems = check_failure(ended, "kill") or resume_and_compare(jumping, folder, work / name)
            failures += [f"{name}, jumping clock, seed {number}: {problem}" for problem in problems]
            shutil.rmtree(folder)
    return n * len(ALL_COMMANDS), failures, ""


@contextlib.contextmanager
def control_group(controller: str, settings: dict[str, str]) -> Iterator[Path | None]:
    """Make a control group with limits below this process's own, or None where the system does not allow that.

    Args:
        controller: "cpu" or "memory".
        settings: Names of files, of both versions of control groups, and what to write to them.
    """
    # Only below the root of what this process sees: groups that a service manager made are its own.
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    owns = {name for _, names, path in lines if path == "/" for name in (names.split(",") if names else [""])}
    first = Path("/sys/fs/cgroup", controller)
    parent = first if first.is_dir() and controller in owns else Path("/sys/fs/cgroup") if "" in owns else None
    group = None if parent is None else parent / f"elmokit-campaign-{os.getpid()}"
    if group is None:
        yield None
        return
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        written = 0
        for name, value in settings.items():
            if (group / name).exists():
                (group / name).write_text(value)
                written += 1
        yield group if written else None
    finally:
        deadline = time.monotonic() + 10
        while group.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # its last process may not be gone yet
                group.rmdir()
            time.sleep(0.05)


def join(group: Path, then: Callable[[], None] | None = None) -> None:
    """Move this process to a control group."""
    (group / "cgroup.procs").write_text(str(os.getpid()))
    (then or commit_always)()


def little_processor_time(work: Path, scale: float) -> Outcome:
    """Run commands with a tenth of a core."""
    settings = {"cpu.max": "10000 100000", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "10000"}
    with control_group("cpu", settings) as group:
        if group is None:
            return 0, [], "not tried: this system does not let a process limit its own processor time"
        failures, seconds = [], 0.0
        for name, command in COMMANDS.items():
            run_straight(command, work / name)
            folder = work / f"{name} limited"
            folder.mkdir()
            command.prepare(folder)
            ended = run_elmokit(
                *command.start, folder=folder, before=partial(join, group, command.hasten), limits=LIMITS
            )
            seconds += ended.seconds
            problems = check_failure(ended, "full") or ([] if ended.code == 0 else [ended.err])
            problems = problems or resume_and_compare(command, folder, work / name)
            failures += [f"{name} with a tenth of a core: {problem}" for problem in problems]
    return len(COMMANDS), failures, f"{seconds:.0f} seconds in all"


def little_memory(work: Path, scale: float) -> Outcome:
    """Run commands in a group that has less memory than they need: the system kills them, and they are resumed."""
    failures, killed, n = [], 0, max(4, round(N_QUOTAS * scale))
    run_straight(COMMANDS["embed"], work / "straight")
    for number in range(n):
        limit = str((20 + 15 * number) << 20)
        settings = {"memory.max": limit, "memory.swap.max": "0", "memory.limit_in_bytes": limit}
        with control_group("memory", settings) as group:
            if group is None:
                return 0, [], "not tried: this system does not let a process limit its own memory"
            folder = work / str(number)
            folder.mkdir()
            COMMANDS["embed"].prepare(folder)
            ended = run_elmokit(
                *COMMANDS["embed"].start, folder=folder, before=partial(join, group, commit_always), limits=LIMITS
            )
            killed += ended.code == -signal.SIGKILL
            failures += [f"{limit} bytes: {problem}" for problem in _judge_memory(ended)]
        if ended.code:
            failures += resume_and_compare(COMMANDS["embed"], folder, work / "straight")
    return n, failures, f"{killed} were killed"


def _judge_memory(ended: Ended) -> list[str]:
    allowed = ended.code in (0, 2, -signal.SIGKILL) and "Traceback" not in ended.err
    return [] if allowed else [f"ended with {ended.code}: {ended.err}"]


STEPS: dict[str, Callable[[Path, float], Outcome]] = {
    **{f"killed at any moment: {name}": killed_at_any_moment(name) for name in ALL_COMMANDS},
    "a clock that jumps": jumping_clock,
    "a tenth of a core": little_processor_time,
    "little memory": little_memory,
}
