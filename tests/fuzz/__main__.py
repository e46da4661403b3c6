"""Fuzz the readers of foreign files and the server's bodies, guided by coverage: ``make fuzz MINUTES=5``.

Each target runs in a process of its own, with bounded memory and time for each input. The table says how many inputs
were tried, and how many different branches they reached. A finding is anything but a result or a refusal: another
exception, a crash, more than 20 seconds of a processor, or more than 2 GiB. Its input is kept in ``fuzz/findings``;
add it to ``tests/fuzz/findings/TARGET`` when it is mended. What reached new branches is kept in ``fuzz/corpus``, so
that the next run begins there.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
REPORT = ROOT / "results" / "reliability.md"
PROCESSOR_SECONDS, MEMORY_MIB, MAX_BYTES = 20, 2048, 1 << 16
HANGING_SECONDS = 300
"""After this time by the clock an input counts as one that never ends, even on a busy machine."""


class Row(NamedTuple):
    """What a target's run found."""

    name: str
    minutes: float
    n_inputs: int
    n_features: int
    findings: list[str]


def fuzz(name: str, minutes: float, work: Path) -> Row:
    """Fuzz one target in a child process."""
    corpus, findings = work / "corpus" / name, work / "findings" / name
    for folder in (corpus, findings):
        folder.mkdir(parents=True, exist_ok=True)
    before = set(findings.iterdir())
    command = [
        *(sys.executable, "-m", "tests.fuzz.one", name, str(PROCESSOR_SECONDS)),
        *(str(corpus), str(HERE / "corpus" / name)),
        *(f"-max_total_time={round(60 * minutes)}", f"-rss_limit_mb={MEMORY_MIB}", f"-max_len={MAX_BYTES}"),
        *(f"-timeout={HANGING_SECONDS}", f"-report_slow_units={HANGING_SECONDS}", f"-artifact_prefix={findings}/"),
        *("-print_final_stats=1", "-verbosity=1"),
    ]
    log = work / f"{name}.log"
    with log.open("wb") as file:
        code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, check=False).returncode
    text = log.read_text(encoding="utf-8", errors="replace")
    inputs = re.findall(r"stat::number_of_executed_units:\s*(\d+)", text) or re.findall(
        r"^#(\d+)\s", text, re.MULTILINE
    )
    features = re.findall(r"\bft: (\d+)", text)
    found = [path.name for path in sorted(set(findings.iterdir()) - before)]
    if code and not found:
        found = [f"ended with {code}: {text[-300:]!r}"]
    seconds = re.search(r"Done \d+ runs in (\d+) second", text)
    took = int(seconds[1]) / 60 if seconds else minutes
    return Row(name, took, int(inputs[-1]) if inputs else 0, int(features[-1]) if features else 0, found)


def to_markdown(rows: list[Row]) -> str:
    """Return the table, as the section of the report."""
    commit = subprocess.run(
        ["git", "describe", "--always"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    n_inputs, n_findings = sum(row.n_inputs for row in rows), sum(len(row.findings) for row in rows)
    lines = [
        f"`make fuzz`, {date.today()}, commit {commit}, Python {platform.python_version()} on {platform.system()}, "
        f"{os.cpu_count()} cores. **{n_inputs:,} inputs, {n_findings} findings.** A finding is an input with an "
        f"exception that is no refusal, a crash, more than {PROCESSOR_SECONDS} seconds of a processor or more than "
        f"{MEMORY_MIB:,} MiB. "
        "Features are the branches, with how often they were taken, that the inputs reached.",
        "",
        "| target | minutes | inputs | features | findings |",
        "|---|---|---|---|---|",
        *(
            f"| {row.name} | {row.minutes:.1f} | {row.n_inputs:,} | {row.n_features:,} | {len(row.findings)} |"
            for row in rows
        ),
    ]
    return "\n".join(lines)


def main() -> None:
    """Fuzz targets and print the table."""
    names = sorted(path.name for path in (HERE / "corpus").iterdir())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{', '.join(names)}; all by default")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long to fuzz each target")
    parser.add_argument("--work", type=Path, default=ROOT / "fuzz", help="the directory for new inputs and findings")
    parser.add_argument("--write", action="store_true", help=f"write the section of {REPORT.name}")
    arguments = parser.parse_args()
    unknown = set(arguments.targets) - set(names)
    if unknown:
        parser.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    rows = []
    for name in arguments.targets or names:
        row = fuzz(name, arguments.minutes, arguments.work.absolute())
        rows.append(row)
        print(f"{name}: {row.n_inputs:,} inputs, {row.n_features:,} features, {len(row.findings)} findings", flush=True)
        for finding in row.findings:
            print(f"    {finding}", flush=True)
    table = to_markdown(rows)
    print(f"\n{table}")
    if arguments.write:
        from tests.helpers.sections import replace_section

        replace_section(REPORT, "Fuzzing", table)
    sys.exit(any(row.findings for row in rows))


if __name__ == "__main__":
    main()
