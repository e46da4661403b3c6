"""Interrupted commands resumed elsewhere: another instruction set, precision, version, number of threads, device.

A command that is resumed under other conditions ends with the files of an uninterrupted run, or is refused in one line
and can then be resumed under the old ones.
"""

from __future__ import annotations

import functools
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from elmokit.engine.instruction_sets import available_sets
from tests.campaign.commands import ALL_COMMANDS
from tests.campaign.interruptions import (
    LIMITS,
    Command,
    Outcome,
    Step,
    check_failure,
    commit_always,
    content_of,
    fail_at,
    in_parallel,
    resume_and_compare,
    run_straight,
)
from tests.helpers.children import run_elmokit

N_RESUMED = 300
RESUMED = ("embed", "embed to parquet", "embed stateful", "neighbors index")
TRAINED = ("train", "finetune", "task train", "task train, biLM too")


@dataclass(frozen=True)
class Condition:
    """What differs when a command is resumed.

    Attributes:
        environment: Variables to set.
        flags: Further arguments.
        before: Called in the child first.
    """

    environment: dict[str, str]
    flags: tuple[str, ...] = ()
    before: Callable[[], None] | None = None


def pretend_another_version() -> None:
    """Let this process be a later version of elmokit."""
    commit_always()
    for name, module in list(sys.modules.items()):
        if name.startswith("elmokit") and hasattr(module, "__version__"):
            module.__version__ = "99.0.0"


def conditions(name: str) -> dict[str, Condition]:
    """Return what can differ when a command is resumed here, by name."""
    worst = available_sets()[-1]
    found = {
        f"instructions {worst}": Condition({"ELMOKIT_INSTRUCTIONS": worst}),
        "the plain formulas": Condition({"ELMOKIT_BACKEND": "reference"}),
        "two threads": Condition({"OMP_NUM_THREADS": "2"}),
        "another version": Condition({}, before=pretend_another_version),
        "a time zone and a language": Condition({"TZ": "Asia/Kathmandu", "LC_ALL": "tr_TR.UTF-8", "PYTHONUTF8": "0"}),
    }
    if name in RESUMED:
        found |= {
            "precision int8": Condition({"ELMOKIT_BACKEND": "int8"}),
            "precision bfloat16, as a flag": Condition({}, ("--precision", "bfloat16")),
        }
    found["a device that is missing"] = Condition({}, _device(name, "cuda"))
    return found


def _device(name: str, device: str) -> tuple[str, ...]:
    return ("--set", f'device="{device}"') if name.startswith("task") else ("--device", device)


def resumed_elsewhere(name: str) -> Step:
    """Return a step that interrupts a command and resumes it under each condition."""

    def step(work: Path, scale: float) -> Outcome:
        command = ALL_COMMANDS[name]
        n_changes = len(run_straight(command, work / "straight"))
        own = conditions(name)
        per_condition = max(1, round(N_RESUMED * scale / (len(RESUMED + TRAINED) * len(own))))
        counts = Counter[str]()
        straight = {
            what: partial(_straight, command, condition, work / f"straight {what}") for what, condition in own.items()
        }
        anew = {what: functools.cache(make) for what, make in straight.items()}

        def attempt(number: int) -> list[str]:
            what = list(own)[number % len(own)]
            condition, at = own[what], Random(f"{name} {number}").randint(1, n_changes - 1)
            folder = work / str(number)
            folder.mkdir()
            command.prepare(folder)
            before = partial(fail_at, command.hasten, at, "kill")
            problems = check_failure(run_elmokit(*command.start, folder=folder, before=before, limits=LIMITS), "kill")
            ended = run_elmokit(
                *(*command.resume(folder), *condition.flags),
                folder=folder,
                before=condition.before or command.hasten,
                limits=LIMITS,
                environment=condition.environment,
            )
            problems += check_failure(ended, "full")  # code 0, or 2 with one line
            counts["resumed" if ended.code == 0 else "refused"] += 1
            if ended.code == 0 and is_exact(what):
                # Where nothing was committed before the interruption, all is computed under the new condition.
                made = content_of(folder)
                wanted = (content_of(work / "straight"), anew[what]())
                if made not in wanted:
                    paths = [path for path in wanted[0] if all(made.get(path) != one.get(path) for one in wanted)]
                    problems += [f"{', '.join(paths) or 'the mixture of files'} differs"]
            if ended.code == 2:
                problems += resume_and_compare(command, folder, work / "straight")
            shutil.rmtree(folder)
            return [f"{name}, interrupted at {at}, resumed with {what}: {problem}" for problem in problems]

        def is_exact(what: str) -> bool:
            # Other kernels change the last bits of a training (docs/how-to/resume.md).
            return name in RESUMED or what in ("another version", "a time zone and a language")

        n = per_condition * len(own)
        return n, in_parallel(attempt, range(n)), f"{counts['resumed']} resumed, {counts['refused']} refused"

    return step


def _straight(command: Command, condition: Condition, folder: Path) -> dict[str, Any]:
    """Return what a command makes that runs under a condition from its start."""
    folder.mkdir()
    command.prepare(folder)
    arguments = (*command.start, *condition.flags)
    before = condition.before or command.hasten
    ended = run_elmokit(*arguments, folder=folder, before=before, limits=LIMITS, environment=condition.environment)
    return content_of(folder) if ended.code == 0 else {}


STEPS: dict[str, Step] = {name: resumed_elsewhere(name) for name in (*RESUMED, *TRAINED)}
