"""The C functions under sanitizers, guard pages, valgrind and static analysis: ``make sanitize``, about five minutes.

    make sanitize                            everything that this machine has the tools for
    make sanitize PARTS="address threads"    some parts
    make sanitize SECONDS_EACH=600           random calls for ten minutes in each library
    python -m tests.sanitize --write         also write the section of results/reliability.md

Each part first finds a fault that was planted (``faults.c``). Random calls (``calls.py``) have seeds, and a failure
names its scenario and seed: ``child.py`` repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from elmokit.engine.c_sources import DIRECTORIES, compile_sources, compiler_command, source_files
from elmokit.engine.instruction_sets import EMULATED, INSTRUCTION_SETS, available_sets
from elmokit.evaluation.speed import processor_name
from tests.helpers.paths import ROOT
from tests.helpers.sections import replace_section

HERE = Path(__file__).parent
REPORT = ROOT / "results" / "reliability.md"
ALL_SETS = {**INSTRUCTION_SETS, "emulated": EMULATED}
CAN_RUN = [*available_sets(), "emulated"]

# An error ends the process: whatever comes after it would be doubtful.
_DEBUG = ("-O1", "-g", "-fno-omit-frame-pointer")
SANITIZERS = {
    "address": (*_DEBUG, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    # With the optimizations of the real library, which may assume that addresses are aligned.
    "alignment": ("-g", "-fsanitize=alignment", "-fno-sanitize-recover=all"),
    "thread": (*_DEBUG, "-fsanitize=thread"),
}
# Leaks are looked for in the C program, because Python keeps memory until it ends.
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "exitcode=66",
}

ANALYZER_SILENCED = {
    "shift-count-overflow": "GCC 12 compares the count with the logarithm of a vector's lanes, not with their bits",
}
TIDY_SILENCED = {
    "bugprone-easily-swappable-parameters": "kernels take many sizes and pointers; calls are checked by tests",
    "bugprone-implicit-widening-of-multiplication-result": "constants and counts of lanes; overflows are UBSan's",
    "bugprone-multi-level-implicit-pointer-conversion": "malloc and free of arrays of pointers",
    "bugprone-narrowing-conversions": "sizes of memory from unsigned long, which are far below 2^63",
    "bugprone-reserved-identifier": "_GNU_SOURCE must have this name",
    "clang-analyzer-security.insecureAPI.DeprecatedOrUnsafeBufferHandling": "the C library has no memcpy_s",
}

FALSE_FINDINGS = {
    ("token_layer.c", "clang-analyzer-optin.portability.UnixAPI"): "clang 14 does not derive n_ids > 0 from "
    "n_ids - has_words > 0, and takes a negative number of convolutions for possible",
    ("token_layer.c", "clang-analyzer-core.uninitialized.ArraySubscript"): "the same: the ids are copied before",
    ("bfloat16_tiles.h", "clang-diagnostic-error"): "clang 14 has no _Float16 for x86; newer ones have",
    ("bfloat16_tiles.h", "analyzer-use-of-uninitialized-value"): "GCC 12 does not see that a loop sets every lane",
}
"""What an analysis finds in one file and is wrong about."""


@dataclass
class Result:
    """A row of the table."""

    what: str
    n: int
    unit: str
    failures: list[str] = field(default_factory=list)
    note: str = ""
    seconds: float = 0.0
    processor_seconds: float = 0.0


class Skipped(Exception):
    """A tool that this machine does not have."""


Step = Callable[[Path, float], Result]
"""A step gets an empty directory, and the seconds that random calls may take."""


def run_here(command: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command with this source tree, and one thread in the libraries of others."""
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **OPTIONS, **(environment or {})}
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **own}, capture_output=True, text=True, timeout=3600, check=False
    )


def library(work: Path, name: str, flags: tuple[str, ...] = ()) -> Path:
    """Compile a library for an instruction set with more flags."""
    path, instructions = work / f"{name}.so", ALL_SETS[name]
    compile_sources(path, instructions._replace(flags=instructions.flags + flags))
    return path


def program(work: Path, source: str, flags: tuple[str, ...], with_library: bool = True) -> Path:
    """Compile a C program of this directory."""
    path = work / Path(source).stem
    folders = [ROOT / "elmokit" / folder for folder in DIRECTORIES] if with_library else []
    files = [str(file) for folder in folders for file in sorted(folder.glob("*.c"))]
    includes = [f"-I{folder}" for folder in folders]
    command = [*compiler_command(), "-pthread", *flags, *includes, "-o", str(path), str(HERE / source), *files, "-lm"]
    subprocess.run(command, check=True)
    return path


def runtime(*names: str) -> str:
    """Return the sanitizers' libraries, which must be loaded before Python."""
    found = []
    for name in names:
        command = [*compiler_command(), f"-print-file-name=lib{name}.so"]
        path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        if not Path(path).is_absolute():
            raise Skipped(f"{compiler_command()[0]} has no lib{name}.so")
        found.append(path)
    return " ".join(found)


def call_at_random(
    work: Path, path: Path, name: str, buffers: str, seconds: float, environment: dict[str, str], *before: str
) -> tuple[int, list[str]]:
    """Call a library's functions at random in a process of its own. Return the number of calls, and a failure."""
    place, first_seed = work / f"place-{path.stem}", int(time.time()) % 1_000_000 * 1000
    command = [*before, sys.executable, "-m", "tests.sanitize.child", str(path), name, buffers, str(seconds)]
    ran = run_here([*command, str(first_seed), str(place)], environment)
    if ran.returncode:
        where = place.read_text().strip() if place.exists() else "start"
        return 0, [f"{name}, {where}: exit code {ran.returncode}: {(ran.stdout + ran.stderr)[-3000:]}"]
    counts = json.loads(ran.stdout.splitlines()[-1])
    return sum(counts["calls"].values()), []


def planted(faults: Path, *names: str, before: tuple[str, ...] = (), environment: dict[str, str] | None = None) -> None:
    """Check that faults are found, and that nothing is found where there is none."""
    if (sound := run_here([*before, str(faults), "none"], environment)).returncode:
        raise RuntimeError(f"A sound program failed: {sound.stderr[-2000:]}")
    for name in names:
        if not run_here([*before, str(faults), name], environment).returncode:
            raise RuntimeError(f"The fault {name!r} was not found.")


def sanitized(kind: str) -> Iterator[tuple[str, Step]]:
    """Call the functions of sanitized libraries, one for each instruction set that this processor runs."""
    for name in CAN_RUN:
        yield name, partial(_sanitized, kind, name)


def _sanitized(kind: str, name: str, work: Path, seconds: float) -> Result:
    names = {"address": ("beyond", "freed", "overflow"), "alignment": ("misaligned",)}[kind]
    planted(program(work, "faults.c", SANITIZERS[kind], with_library=False), *names)
    preload = runtime("asan", "ubsan") if kind == "address" else runtime("ubsan")
    path = library(work, name, SANITIZERS[kind])
    buffers = "heap" if kind == "address" else "guarded"
    n, failures = call_at_random(work, path, name, buffers, seconds, {"LD_PRELOAD": preload})
    return Result(f"-fsanitize={'address,undefined' if kind == 'address' else kind}, {name}", n, "calls", failures)


def guarded() -> Iterator[tuple[str, Step]]:
    """Call the library as users have it, with guard pages; and run the tests of the kernels so."""
    for name in CAN_RUN:
        yield name, partial(_guarded, name)
    yield "tests", _guarded_tests


def _guarded(name: str, work: Path, seconds: float) -> Result:
    n, failures = call_at_random(work, library(work, name), name, "guarded", seconds, {})
    return Result(f"guard pages, {name}", n, "calls", failures)


def _guarded_tests(work: Path, seconds: float) -> Result:
    """Run the tests of the kernels with a guard page behind every block of memory of NumPy, PyTorch and C."""
    guard = work / "guard_malloc.so"
    subprocess.run([*compiler_command(), "-O1", "-shared", "-fPIC", "-o", guard, HERE / "guard_malloc.c"], check=True)
    environment = {"LD_PRELOAD": str(guard)}
    planted(program(work, "faults.c", ("-O1",), with_library=False), "beyond", "freed", environment=environment)
    files = [f"tests/engine/test_{name}.py" for name in ("engine", "network", "threads", "token_layer")]
    files += [f"tests/network/test_{name}.py" for name in ("lstm_inference", "lstm_training", "char_convolution")]
    files += ["tests/network/test_tile_training.py"]
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *files]
    ran = run_here(pytest, environment)
    found = re.search(r"(\d+) passed", ran.stdout)
    failures = [f"exit code {ran.returncode}: {(ran.stdout + ran.stderr)[-3000:]}"] if ran.returncode else []
    note = "a page behind every block of 600 bytes or more"
    return Result("guard pages, tests of the kernels", int(found[1]) if found else 0, "tests", failures, note)


def valgrind() -> Iterator[tuple[str, Step]]:
    """Call the functions under valgrind, which also knows which bytes were never written."""
    yield "memcheck", _valgrind


def _valgrind(work: Path, seconds: float) -> Result:
    if not shutil.which("valgrind"):
        raise Skipped("there is no valgrind")
    report = work / "valgrind.xml"
    tool = ("valgrind", "--error-exitcode=99", "-q")
    planted(program(work, "faults.c", ("-O1", "-g"), with_library=False), "beyond", "freed", "unwritten", before=tool)
    # valgrind does not know AVX-512.
    name = "avx2" if "avx2" in CAN_RUN else "portable"
    path = library(work, name, ("-O1", "-g"))
    options = ("valgrind", "--xml=yes", f"--xml-file={report}", "--leak-check=no", "--num-callers=30")
    environment = {"PYTHONMALLOC": "malloc"}
    n, failures = call_at_random(work, path, name, "unmarked", seconds, environment, *options)
    # Python's and NumPy's own are not counted: an error is one of ours if one of our functions was called.
    for error in ElementTree.parse(report).iter("error"):
        frames = [frame.findtext("fn") or "?" for frame in error.iter("frame") if frame.findtext("obj") == str(path)]
        # With XML, valgrind looks for leaks whatever the options say, and finds the stacks of the pool's threads.
        if frames and not (error.findtext("kind") or "").startswith("Leak_"):
            failures.append(f"{error.findtext('kind')} in {' < '.join(frames[:6])}")
    return Result(f"valgrind, {name}", n, "calls", failures)


def threads() -> Iterator[tuple[str, Step]]:
    """Run a C program whose threads share the pool and a model."""
    yield "races", partial(_threads, "thread", ("race",))
    yield "leaks", partial(_threads, "address", ("leak",))


def _threads(kind: str, faults: tuple[str, ...], work: Path, seconds: float) -> Result:
    # ThreadSanitizer does not support threads in a process that forked.
    more = ("-DNO_FORK",) if kind == "thread" else ()
    environment = {"ASAN_OPTIONS": "detect_leaks=1"}
    planted(program(work, "faults.c", SANITIZERS[kind], with_library=False), *faults, environment=environment)
    # The emulation shares even the smallest work among threads.
    built = program(work, "threads_main.c", (*SANITIZERS[kind], *EMULATED.flags, *more))
    n_calls = max(2, round(seconds / 5))
    ran = run_here([str(built), str(n_calls)], environment)
    failures = [f"exit code {ran.returncode}: {ran.stderr[-3000:]}"] if ran.returncode else []
    what = "races (-fsanitize=thread)" if kind == "thread" else "leaks (-fsanitize=address)"
    # Four threads, four precisions, and seven functions in each round.
    return Result(f"{what}, four threads and the pool, emulated", 4 * 4 * 7 * n_calls, "calls", failures)


def analysis() -> Iterator[tuple[str, Step]]:
    """Let the compilers look for mistakes without running anything."""
    # Each tool for half of the instruction sets, because it takes as long as everything else otherwise.
    for name in ("portable", "amx"):
        yield f"gcc, {name}", partial(_analyzer, name)
    for name in ("avx2", "emulated"):
        yield f"clang-tidy, {name}", partial(_tidy, name)


def _c_files() -> list[Path]:
    names = [name for name in source_files() if name.endswith(".c")]
    folders = [ROOT / "elmokit" / folder for folder in DIRECTORIES]
    return [folder / name for folder in folders for name in names if (folder / name).exists()]


def _errors(printed: str) -> list[str]:
    """Return the lines of an analysis with an error, without false findings and repetitions."""
    lines = dict.fromkeys(line for line in printed.splitlines() if ": error: " in line)
    return [line for line in lines if not any(file in line and check in line for file, check in FALSE_FINDINGS)]


def _check_set(name: str) -> None:
    if ALL_SETS[name].machine not in (None, platform.machine()):
        raise Skipped(f"the compiler has no {name}")


def _analyzer(name: str, work: Path, seconds: float) -> Result:
    _check_set(name)
    command = [*compiler_command(), "-fanalyzer", "-O1", "-Wall", "-Wextra", "-Werror", *ALL_SETS[name].flags]
    command += [f"-Wno-analyzer-{warning}" for warning in ANALYZER_SILENCED]
    includes = [f"-I{ROOT / 'elmokit' / folder}" for folder in DIRECTORIES]
    version = subprocess.run([*compiler_command(), "--version"], capture_output=True, text=True, check=True).stdout
    if "clang" in version:
        raise Skipped("the compiler is not GCC")
    failures = []
    for file in _c_files():
        ran = run_here([*command, *includes, "-c", "-o", os.devnull, str(file)])
        failures += _errors(ran.stderr)
    return Result(f"gcc -fanalyzer, {name}", len(_c_files()), "files", failures, version.splitlines()[0])


def _tidy(name: str, work: Path, seconds: float) -> Result:
    _check_set(name)
    tools = ["clang-tidy", *(f"clang-tidy-{version}" for version in range(25, 13, -1))]
    tool = next((tool for tool in tools if shutil.which(tool)), None)
    if tool is None:
        raise Skipped("there is no clang-tidy")
    checks = ",".join(["-*", "bugprone-*", "clang-analyzer-*", *(f"-{check}" for check in TIDY_SILENCED)])
    includes = [f"-I{ROOT / 'elmokit' / folder}" for folder in DIRECTORIES]
    options = [*ALL_SETS[name].flags, "-O1", "-std=gnu11", *includes]
    command = [tool, "--quiet", f"--checks={checks}", "--warnings-as-errors=*", *map(str, _c_files()), "--", *options]
    ran = run_here(command)
    failures = _errors(ran.stdout)
    if ran.returncode and ": error: " not in ran.stdout:
        failures = [ran.stderr[-2000:]]
    version = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    number = re.search(r"version ([\d.]+)", version)
    return Result(f"clang-tidy, {name}", len(_c_files()), "files", failures, number[0] if number else "")


PARTS: dict[str, Callable[[], Iterator[tuple[str, Step]]]] = {
    "address": partial(sanitized, "address"),
    "alignment": partial(sanitized, "alignment"),
    "guarded": guarded,
    "valgrind": valgrind,
    "threads": threads,
    "analysis": analysis,
}


def run(parts: list[str], seconds: float) -> list[Result]:
    """Run parts, as many steps at the same time as there are cores, and return the rows of the table."""
    steps = [(f"{part}: {name}", step) for part in parts for name, step in PARTS[part]()]
    rows = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for result in pool.map(_timed, steps, [seconds] * len(steps)):
            rows.append(result)
            outcome = f"{len(result.failures)} FAILED" if result.failures else result.note or "ok"
            times = f"{result.seconds:.0f} s ({result.processor_seconds:.0f} s of a processor)"
            print(f"{result.what}: {result.n:,} {result.unit}, {outcome}, {times}", flush=True)
            for failure in result.failures[:5]:
                print(f"    {failure}", flush=True)
    return rows


def _timed(named: tuple[str, Step], seconds: float) -> Result:
    """Run a step in a process of its own, which knows how long its children computed."""
    name, step = named
    started, before = time.monotonic(), _processor_seconds()
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = step(Path(folder), seconds)
        except Skipped as reason:
            result = Result(name, 0, "", note=f"skipped: {reason}")
    result.seconds, result.processor_seconds = time.monotonic() - started, _processor_seconds() - before
    return result


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def to_markdown(rows: list[Result], seconds: float) -> str:
    """Return the section of the report."""
    n_failures = sum(len(row.failures) for row in rows)
    n_calls = sum(row.n for row in rows if row.unit == "calls")
    described = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(described, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    lines = [
        f"`make sanitize SECONDS_EACH={seconds:g}`, {date.today()}, commit {commit}, Python "
        f"{platform.python_version()}, {os.cpu_count()} cores, {processor_name()}. **{n_calls:,} calls of C functions, "
        f"{n_failures} findings.**",
        "",
        "Every function that a header declares is called with random sizes, precisions and thread counts "
        "(`tests/sanitize/calls.py`). A call fails if a sanitizer, valgrind or a guard page notices something, if a "
        "number of an output is not written, if an input is written, or if the bits of a result depend on the number "
        "of threads where the header does not say so. `emulated` has plain C in place of AMX. Each tool first finds a "
        "planted fault.",
        "",
        "| what | attempts | findings | seconds | of a processor | note |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.what} | {row.n:,} {row.unit} | {len(row.failures)} | {row.seconds:.0f} | {row.processor_seconds:.0f} "
        f"| {row.note} |"
        for row in rows
    ]
    silenced = [(f"-Wanalyzer-{name}", why) for name, why in ANALYZER_SILENCED.items()]
    silenced += list(TIDY_SILENCED.items())
    lines += ["", "Silenced in the static analysis:", "", *(f"- `{name}`: {why}." for name, why in silenced)]
    lines += [f"- `{check}` in `{file}`: {why}." for (file, check), why in FALSE_FINDINGS.items()]
    not_run = sorted(INSTRUCTION_SETS.keys() - set(CAN_RUN))
    lines += ["", f"Not run, because the processor lacks the instructions: {', '.join(not_run)}."]
    return "\n".join(lines)


def main() -> None:
    """Run the sanitizers and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to call each library at random")
    parser.add_argument("--write", action="store_true", help=f"write the section of {REPORT.name}")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    rows = run(arguments.parts or list(PARTS), arguments.seconds)
    if arguments.write:
        replace_section(REPORT, "Sanitizers", to_markdown(rows, arguments.seconds))
    sys.exit(any(row.failures for row in rows))
