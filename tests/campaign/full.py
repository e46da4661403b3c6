"""The whole campaign against elmokit's reliability: ``make campaign``, an hour and more on two cores.

It damages files, interrupts commands, fills disks, deletes directories, shares caches, and reads text of every kind and
size; it replaces the numbers of sound models, sends the server many clients, and resumes on what seems another machine.
Any exit code other than 0, 2 and 130, any second line of error about a bad file, and any wrong or missing row is a
failure. Finished work is kept in the directory ``campaign``, so that an interrupted campaign can be run again to
resume. If all parts were run, their section in ``results/reliability.md`` is written anew; else it is printed.

    make campaign                              everything
    make campaign PARTS="mutants server"       some parts
    make campaign SCALE=0.01                   a hundredth of the mutants, interruptions, lines and strings
    python -m tests.campaign server --write    also write the sections of the parts that were run
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from elmokit.evaluation.speed import processor_name
from elmokit.storage.part_results import PartResults
from elmokit.storage.progress import ProgressBar, format_duration
from tests.campaign import arguments, heavy, resumption, server, surroundings, tensors
from tests.campaign.commands import ALL_COMMANDS
from tests.campaign.interruptions import (
    LIMITS,
    Fault,
    check_failure,
    content_of,
    interrupt_and_resume,
    interrupt_repeatedly,
    remove_at,
    resume_and_compare,
    run_straight,
)
from tests.campaign.specimens import SPECIMENS
from tests.helpers.children import run_elmokit, start_fork_server
from tests.helpers.paths import ROOT
from tests.helpers.sections import replace_section

REPORT = ROOT / "results" / "reliability.md"
N_MUTANTS, N_INTERRUPTIONS = 20_000, 1_000
N_AT_ONCE = os.cpu_count() or 1


@dataclass
class Result:
    """A row of the table."""

    what: str
    n: int
    failures: list[str] = field(default_factory=list)
    note: str = ""


Step = Callable[[Path], Result]
"""A step gets an empty directory."""


def mutants(scale: float) -> Iterator[tuple[str, Step]]:
    """Damage files of every format."""
    for name, specimen in SPECIMENS.items():
        yield name, partial(_damage, name, specimen.n_mutants(round(N_MUTANTS * scale)))


def _damage(name: str, n: int, work: Path) -> Result:
    specimen = SPECIMENS[name]
    expected = specimen.prepare(work / "sound")

    def attempt(number: int) -> str | None:
        return specimen.try_mutant(work / "sound", expected, number, work / str(number))

    with ThreadPoolExecutor(N_AT_ONCE) as pool:
        problems = pool.map(attempt, range(n))
        return Result(f"damaged: {name}", n, [problem for problem in problems if problem])


def interruptions(scale: float) -> Iterator[tuple[str, Step]]:
    """Let commands die, be stopped, or meet a full disk at changes of the disk and at any moment."""
    n = max(6, round(N_INTERRUPTIONS * scale / len(ALL_COMMANDS)))
    for name in ALL_COMMANDS:
        yield name, partial(_interrupt, name, n)


def _interrupt(name: str, n: int, work: Path) -> Result:
    command = ALL_COMMANDS[name]
    n_changes = len(run_straight(command, work / "straight"))
    faults: tuple[Fault, ...] = ("kill", "kill", "interrupt", "full")
    n_repeated = max(1, n // 20)  # of five interruptions each
    n_single = max(1, n - 5 * n_repeated)

    def attempt(number: int) -> list[str]:
        folder = work / str(number)
        if number >= n_single:
            problems = interrupt_repeatedly(command, folder, work / "straight", n_changes, Random(number))
            problems = [f"{name}, five times, seed {number}: {problem}" for problem in problems]
        else:
            at, fault = 1 + number * n_changes // n_single, faults[number % len(faults)]
            problems = interrupt_and_resume(command, folder, work / "straight", at, fault)
            problems = [f"{name}, {fault} at change {at}: {problem}" for problem in problems]
        shutil.rmtree(folder)
        return problems

    with ThreadPoolExecutor(N_AT_ONCE) as pool:
        found = [problem for problems in pool.map(attempt, range(n_single + n_repeated)) for problem in problems]
    note = f"{n_changes} changes of the disk in a run"
    return Result(f"interrupted: {name}", n_single + 5 * n_repeated, found, note)


def disk(scale: float) -> Iterator[tuple[str, Step]]:
    """Run commands on a disk that is too small, then make room and resume."""
    for name in ALL_COMMANDS:
        yield name, partial(_fill_disk, name)


def _fill_disk(name: str, work: Path) -> Result:
    command = ALL_COMMANDS[name]
    run_straight(command, work / "straight")
    inputs = work / "inputs"
    inputs.mkdir()
    command.prepare(inputs)
    n_inputs, n_all = _disk_use(inputs), _disk_use(work / "straight")
    failures: list[str] = []
    n_full = 0
    rooms = [int((n_all - n_inputs) * ratio) for ratio in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.1)]
    for room in rooms:
        with _mounted(work / f"disk-{room}", n_inputs + room) as mounted:
            folder = mounted / "run"
            shutil.copytree(inputs, folder)
            before = command.hasten
            ended = run_elmokit(*command.start, folder=folder, before=before, limits=LIMITS)
            problems = check_failure(ended, "full")
            n_full += ended.code == 2
            subprocess.run(["mount", "-o", "remount,size=1g", mounted], check=True)
            if not problems and ended.code == 2:
                problems = resume_and_compare(command, folder, work / "straight")
            failures += [f"{name}, {room:,} bytes of room: {problem}" for problem in problems]
    return Result(f"full disk: {name}", len(rooms), failures, f"{n_full} of them met a full disk")


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


def folders(scale: float) -> Iterator[tuple[str, Step]]:
    """Let commands write where they may not, and delete what they write to while they run."""
    for name in ALL_COMMANDS:
        yield f"{name}, read-only", partial(_read_only, name)
        yield f"{name}, vanished", partial(_vanished, name)


def _read_only(name: str, work: Path) -> Result:
    command = ALL_COMMANDS[name]
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
    return Result(f"read-only directory: {name}", 1, [f"{name}: {problem}" for problem in problems])


def _vanished(name: str, work: Path) -> Result:
    command = ALL_COMMANDS[name]
    n_changes = len(run_straight(command, work / "straight"))
    failures: list[str] = []
    moments = sorted({1 + n_changes * tenth // 10 for tenth in range(1, 10)})
    for number in moments:
        folder = work / str(number)
        folder.mkdir()
        command.prepare(folder)
        inputs = tuple(path.name for path in folder.iterdir())
        before = partial(remove_at, command.hasten, number, inputs)
        problems = check_failure(run_elmokit(*command.start, folder=folder, before=before, limits=LIMITS), "full")
        failures += [f"{name}, outputs deleted at change {number}: {problem}" for problem in problems]
    return Result(f"vanished directory: {name}", len(moments), failures)


OTHER_STEPS = {
    **heavy.STEPS,
    "numbers": tensors.STEPS,
    "server": server.STEPS,
    "elsewhere": resumption.STEPS,
    "surroundings": surroundings.STEPS,
    "arguments": arguments.STEPS,
}


def other_parts(part: str) -> Callable[[float], Iterator[tuple[str, Step]]]:
    """Return a part whose steps are in a table."""

    def steps(scale: float) -> Iterator[tuple[str, Step]]:
        for name, function in OTHER_STEPS[part].items():
            yield name, partial(_heavy, name, function, scale)

    return steps


def _heavy(
    name: str, function: Callable[[Path, float], tuple[int, list[str], str]], scale: float, work: Path
) -> Result:
    n, failures, note = function(work, scale)
    return Result(name, n, failures, note)


PARTS: dict[str, Callable[[float], Iterator[tuple[str, Step]]]] = {
    "mutants": mutants,
    "interruptions": interruptions,
    "disk": disk,
    "folders": folders,
    **{part: other_parts(part) for part in OTHER_STEPS},
}


def run(parts: list[str], scale: float, work: Path) -> list[dict[str, Any]]:
    """Run parts of the campaign, and return the rows of the table with the seconds that each took."""
    start_fork_server()
    steps = [(f"{part}: {name}", part, step) for part in parts for name, step in PARTS[part](scale)]
    rows = []
    # Results of an earlier version of elmokit or of another scale count for nothing.
    settings = {"commit": _commit(), "scale": scale}
    with PartResults(work / "results", settings) as kept, ProgressBar("steps", lines=True) as progress:
        for done, (name, part, step) in enumerate(steps):
            folder = work / "files"

            def timed(part: str = part, step: Step = step, folder: Path = folder) -> dict[str, Any]:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                started = time.monotonic()
                result = asdict(step(folder))
                shutil.rmtree(folder)
                return {"part": part, **result, "seconds": time.monotonic() - started}

            row = kept.compute(name, timed)
            rows.append(row)
            progress("campaign", done + 1, len(steps))
            outcome = f"{len(row['failures'])} FAILED" if row["failures"] else "ok"
            progress.write(f"{name}: {row['n']:,}, {outcome}, {format_duration(row['seconds'])}")
            for failure in row["failures"][:5]:
                progress.write(f"    {failure}")
    return rows


@functools.cache  # files may change while it runs
def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def to_markdown(rows: list[dict[str, Any]], scale: float) -> str:
    """Return the section of the report: a table with a row for each part, and the failures."""
    failures = [failure for row in rows for failure in row["failures"]]
    lines = [
        f"`make campaign SCALE={scale:g}`, {date.today()}, commit {_commit()}, Python {platform.python_version()} on "
        f"{platform.system()}, {os.cpu_count()} cores, {processor_name()}. "
        f"**{sum(row['n'] for row in rows):,} attempts, {len(failures)} failures.**",
        "",
        "| part | steps | attempts | failures | seconds |",
        "|---|---|---|---|---|",
    ]
    for part in dict.fromkeys(row["part"] for row in rows):
        here = [row for row in rows if row["part"] == part]
        n, n_failures = sum(row["n"] for row in here), sum(len(row["failures"]) for row in here)
        lines.append(f"| {part} | {len(here)} | {n:,} | {n_failures} | {sum(row['seconds'] for row in here):.0f} |")
    if failures:
        lines += ["", *(f"- {' '.join(failure.split())[:500]}" for failure in failures)]
    return "\n".join(lines)


def main() -> None:
    """Run the campaign and write its report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    parser.add_argument("--scale", type=float, default=1.0, help="the fraction of the attempts to make")
    parser.add_argument("--write", action="store_true", help=f"write the section of {REPORT.name}")
    parser.add_argument("--work", type=Path, default=ROOT / "campaign", help="the directory for files and results")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - PARTS.keys()
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    parts = arguments.parts or list(PARTS)
    rows = run(parts, arguments.scale, arguments.work.absolute())
    section = to_markdown(rows, arguments.scale)
    if arguments.write or not arguments.parts:
        replace_section(REPORT, "Campaign", section)
    else:
        print(section)
    shutil.rmtree(arguments.work)  # nothing is left to resume
    sys.exit(any(row["failures"] for row in rows))
