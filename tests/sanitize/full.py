"""The C functions under sanitizers, guard pages and valgrind: ``make sanitize``, about five minutes.

    make sanitize                            everything that this machine has the tools for
    make sanitize PARTS="address threads"    some parts
    make sanitize SECONDS_EACH=600           random calls for ten minutes in each library

Each part first finds a fault that was planted (``faults.c``). Random calls (``calls.py``) have seeds, and a failure
names its scenario and seed: ``child.py`` repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
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
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from elmokit.engine.c_sources import DIRECTORIES, compile_sources, compiler_command
from elmokit.engine.instruction_sets import EMULATED, INSTRUCTION_SETS, available_sets
from tests.helpers.paths import ROOT

HERE = Path(__file__).parent
ALL_SETS = {**INSTRUCTION_SETS, **EMULATED}
CAN_RUN = [*available_sets(), *EMULATED]

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
TESTS_OF_KERNELS = (
    "tests/engine/test_engine.py",
    "tests/engine/test_interface.py",
    "tests/engine/test_threads.py",
    "tests/engine/test_token_layer.py",
    "tests/network/test_char_convolution.py",
    "tests/network/test_lstm_native.py",
    "tests/network/test_lstm_training.py",
    "tests/network/test_operators.py",
    "tests/network/test_tile_training.py",
)


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
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *TESTS_OF_KERNELS]
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
    built = program(work, "threads_main.c", (*SANITIZERS[kind], *EMULATED["emulated"].flags, *more))
    n_calls = max(2, round(seconds / 5))
    ran = run_here([str(built), str(n_calls)], environment)
    failures = [f"exit code {ran.returncode}: {ran.stderr[-3000:]}"] if ran.returncode else []
    what = "races (-fsanitize=thread)" if kind == "thread" else "leaks (-fsanitize=address)"
    # Four threads, four precisions, and seven functions in each round.
    return Result(f"{what}, four threads and the pool, emulated", 4 * 4 * 7 * n_calls, "calls", failures)


PARTS: dict[str, Callable[[], Iterator[tuple[str, Step]]]] = {
    "address": partial(sanitized, "address"),
    "alignment": partial(sanitized, "alignment"),
    "guarded": guarded,
    "valgrind": valgrind,
    "threads": threads,
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


def main() -> None:
    """Run the sanitizers and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to call each library at random")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    rows = run(arguments.parts or list(PARTS), arguments.seconds)
    sys.exit(any(row.failures for row in rows))
