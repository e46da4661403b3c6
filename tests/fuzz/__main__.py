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
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
REPORT = ROOT / "results" / "reliability.md"
PROCESSOR_SECONDS, MEMORY_MIB, MAX_BYTES = 20, 2048, 1 << 16
HANGING_SECONDS = 300
"""After this time by the clock an input counts as one that never ends, even on a busy machine."""
HEAD = (
    f"`make fuzz`, {{date}}, {os.cpu_count()} cores. A finding is an input with an exception that is no refusal, a "
    f"crash, over {PROCESSOR_SECONDS} seconds of a processor or over {MEMORY_MIB:,} MiB. Features are the branches, "
    "with how often they were taken, that the inputs reached."
)


def fuzz(name: str, minutes: float, work: Path) -> tuple[str, list[str]]:
    """Fuzz one target in a child process, and return a row of the table and what was found."""
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
    inputs = re.findall(r"^(?:#|stat::number_of_executed_units:\s*)(\d+)", text, re.MULTILINE)
    features = re.findall(r"\bft: (\d+)", text)
    found = [path.name for path in sorted(set(findings.iterdir()) - before)]
    if code and not found:
        found = [f"ended with {code}: {text[-300:]!r}"]
    numbers = [int(counts[-1]) if counts else 0 for counts in (inputs, features)]
    return f"| {name} | {minutes:g} | {numbers[0]:,} | {numbers[1]:,} | {len(found)} |", found


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
    rows, all_found = ["| target | minutes | inputs | features | findings |", "|---|---|---|---|---|"], []
    for name in arguments.targets or names:
        row, found = fuzz(name, arguments.minutes, arguments.work.absolute())
        print(row, *found, sep="\n", flush=True)
        rows.append(row)
        all_found += found
    if arguments.write:
        from tests.helpers.sections import replace_section

        replace_section(REPORT, "Fuzzing", "\n".join([HEAD.format(date=date.today()), "", *rows]))
    sys.exit(bool(all_found))


if __name__ == "__main__":
    main()
