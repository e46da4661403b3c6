"""The whole campaign against elmokit's reliability: ``make campaign``, an hour and more on two cores.

It damages files, interrupts commands, fills disks, shares caches, and embeds text of every kind and size; it replaces
the numbers of sound models, sends the server many requests, and resumes on what seems another machine. Any exit code
other than 0, 2 and 130, any second line of error about a bad file, and any wrong or missing row is a failure. If all
parts were run, their section in ``results/reliability.md`` is written anew; else it is printed.

    make campaign                              everything
    make campaign PARTS="mutants server"       some parts
    make campaign SCALE=0.01                   a hundredth of the mutants, interruptions and lines
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from elmokit.evaluation.bench import processor_name
from elmokit.storage.progress import format_duration
from tests.campaign import arguments, heavy, resumption, server, specimens, surroundings, tensors
from tests.campaign.interruptions import Step
from tests.helpers.children import start_fork_server
from tests.helpers.paths import ROOT
from tests.helpers.sections import replace_section

REPORT = ROOT / "results" / "reliability.md"
PARTS: dict[str, dict[str, Step]] = {
    "mutants": specimens.STEPS,
    **surroundings.PARTS,
    **heavy.PARTS,
    "numbers": tensors.STEPS,
    "server": server.STEPS,
    "elsewhere": resumption.STEPS,
    "arguments": arguments.STEPS,
}


@dataclass
class Row:
    """What a part of the campaign did."""

    n_steps: int = 0
    n_attempts: int = 0
    n_failures: int = 0
    seconds: float = 0.0


def run(parts: list[str], scale: float) -> tuple[dict[str, Row], list[str]]:
    """Run parts of the campaign, and return a row for each, and all failures."""
    start_fork_server()
    rows, all_failures = {part: Row() for part in parts}, list[str]()
    for part, row in rows.items():
        for name, step in PARTS[part].items():
            started = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                n, failures, note = step(Path(folder), scale)
            seconds = time.monotonic() - started
            row.n_steps += 1
            row.n_attempts += n
            row.n_failures += len(failures)
            row.seconds += seconds
            all_failures += failures
            outcome = f"{len(failures)} FAILED" if failures else "ok"
            print(f"{part}: {name}: {n:,}, {outcome}, {format_duration(seconds)}, {note}".rstrip(", "), flush=True)
            for failure in failures[:5]:
                print(f"    {failure}", flush=True)
    return rows, all_failures


def to_markdown(rows: dict[str, Row], failures: list[str], scale: float) -> str:
    """Return the section of the report: a table with a row for each part, and the failures."""
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    lines = [
        f"`make campaign SCALE={scale:g}`, {date.today()}, commit {commit}, Python {platform.python_version()} on "
        f"{platform.system()}, {os.cpu_count()} cores, {processor_name()}. "
        f"**{sum(row.n_attempts for row in rows.values()):,} attempts, {len(failures)} failures.**",
        "",
        "| part | steps | attempts | failures | seconds |",
        "|---|---|---|---|---|",
    ]
    for part, row in rows.items():
        lines.append(f"| {part} | {row.n_steps} | {row.n_attempts:,} | {row.n_failures} | {row.seconds:.0f} |")
    if failures:
        lines += ["", *(f"- {' '.join(failure.split())[:500]}" for failure in failures)]
    return "\n".join(lines)


def main() -> None:
    """Run the campaign and write its report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    parser.add_argument("--scale", type=float, default=1.0, help="the fraction of the attempts to make")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - PARTS.keys()
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    rows, failures = run(arguments.parts or list(PARTS), arguments.scale)
    section = to_markdown(rows, failures, arguments.scale)
    if arguments.parts:
        print(section)
    else:
        replace_section(REPORT, "Campaign", section)
    sys.exit(bool(failures))
