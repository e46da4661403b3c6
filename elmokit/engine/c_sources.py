"""The C files of the package, and how they are compiled into a shared library.

Two programs compile them: ``compiler.py`` on the user's machine, and ``hatch_build.py``, which builds the wheel with a
library for every instruction set, also for other systems (``TARGETS``). The latter runs where no other package is
installed, so this module imports none. Modules of the standard library that only compiling needs are imported there: a
first vector does not wait for them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from elmokit.engine.instruction_sets import InstructionSet, machine

# Not -ffast-math: it assumes that there is no NaN (the kernels let a NaN pass, so that broken inputs are noticed), and
# it allows sums in any order (a row must get the same bits in any batch). The two -fno flags give up only errno and
# floating-point exceptions, which nobody reads and which would keep loops from being vectorized.
FLAGS = ("-O3", "-pthread", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math")
# Inference, with its public header, and training, whose functions call those of inference.
DIRECTORIES = ("engine", "engine/src", "network/src")
HEADERS = ("elmokit.h", "training.h")
"""The headers that declare the functions of the library."""
PACKAGED = "libraries"
"""The directory of the compiled libraries in a wheel, next to this file."""
SUFFIXES = {"Linux": ".so", "Darwin": ".dylib", "Windows": ".dll"}
"""How the name of a shared library ends, by ``platform.system``."""


class Target(NamedTuple):
    """A system and a kind of processor that zig compiles for: zig has the headers and system libraries of all."""

    system: str  # by Python's ``platform.system``
    machine: str  # as ``instruction_sets.machine`` returns it
    zig: str  # zig's name of the target, with the oldest version of the system that the library loads on
    tag: str  # of the wheel, for the platform

    def compiler(self) -> list[str]:
        """Return the compiler's command; PyPI has it as ``ziglang``."""
        # zig's default for a Mac with an Arm processor is an M1, with more instructions than the sets that are plain.
        processor = ["-mcpu=generic"] if self.machine == "aarch64" else []
        return [sys.executable, "-m", "ziglang", "cc", "-target", self.zig, *processor, "-s"]


# macOS has `aligned_alloc` since 10.15, and Arm processors since 11.
TARGETS = {
    "linux-x86_64": Target("Linux", "x86_64", "x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64"),
    "linux-aarch64": Target("Linux", "aarch64", "aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64"),
    "macos-x86_64": Target("Darwin", "x86_64", "x86_64-macos.10.15", "macosx_10_15_x86_64"),
    "macos-aarch64": Target("Darwin", "aarch64", "aarch64-macos.11.0", "macosx_11_0_arm64"),
    "windows-x86_64": Target("Windows", "x86_64", "x86_64-windows-gnu", "win_amd64"),
    "windows-aarch64": Target("Windows", "aarch64", "aarch64-windows-gnu", "win_arm64"),
}


@functools.cache
def source_files() -> dict[str, bytes]:
    """Return the content of every C file and header, by name. They are compiled together in one directory."""
    package = Path(__file__).parents[1]
    files: dict[str, bytes] = {}
    for directory in DIRECTORIES:
        for file in (package / directory).iterdir():
            if file.suffix in (".c", ".h"):
                files[file.name] = file.read_bytes()
    return dict(sorted(files.items()))


def header_text() -> str:
    """Return the text of the headers that declare the functions of the library."""
    sources = source_files()
    return "\n".join(sources[name].decode() for name in HEADERS)


def compiler_command() -> list[str]:
    """Return the C compiler: ``CC`` if it is set, else ``cc``."""
    command = os.environ.get("CC")
    if not command:
        return ["cc"]
    import shlex

    return shlex.split(command) or ["cc"]


def compile_sources(
    output: Path,
    instructions: InstructionSet,
    timeout: float | None = None,  # in seconds; None for no limit
    target: Target | None = None,  # what zig compiles for; None for the compiler's own, without zig
) -> None:
    """Compile all C files into one shared library, which needs nothing but C's own."""
    import tempfile

    with tempfile.TemporaryDirectory(dir=output.parent) as directory:
        for name, content in source_files().items():
            Path(directory, name).write_bytes(content)
        files = sorted(str(file) for file in Path(directory).glob("*.c"))
        if target is None:
            command = [*compiler_command(), *FLAGS, *instructions.flags, "-o", str(output), *files, "-lm"]
            _run(command, directory, timeout)
            return
        # In two steps, because zig compiles what a library of Windows runs when it is loaded: that must run on every
        # processor, before anyone can ask whether the processor has the instructions.
        flags = [flag for flag in FLAGS if flag != "-shared"]
        flags += [_for_zig(flag) for flag in instructions.flags]
        objects = []
        for file in files:
            objects.append(f"{file}.o")
            _run([*target.compiler(), *flags, "-c", file, "-o", objects[-1]], directory, timeout)
        _run([*target.compiler(), *FLAGS, "-o", str(output), *objects, "-lm"], directory, timeout)


def _run(command: list[str], directory: str, timeout: float | None) -> None:
    """Run a compiler, which keeps its intermediate files in a directory."""
    import subprocess

    # conda sets LD_RUN_PATH, which would add a directory of this machine, and conda changes it at installation.
    variables = {name: value for name, value in os.environ.items() if name != "LD_RUN_PATH"}
    # Intermediate files become part of the library too, so they are not left in a directory of others.
    variables["TMPDIR"] = directory
    subprocess.run(command, check=True, capture_output=True, timeout=timeout, env=variables)


def _for_zig(flag: str) -> str:
    """Return a flag in zig's words: its names of Arm's instructions are part of ``-mcpu``."""
    return flag.replace("-march=armv8.2-a", "-mcpu=generic+v8_2a")


def library_key(
    instructions: InstructionSet,
    compiler: Sequence[str],  # its command; empty for a library of a wheel, where it does not matter
    of_machine: str | None = None,  # the kind of processor; None for this machine's
) -> str:
    """Return a hash of everything that a library depends on."""
    # Machines of different kinds may share one cache directory: the flags have the instruction set, but not the kind.
    command = [of_machine or machine(), *compiler, *FLAGS, *instructions.flags]
    parts: list[bytes] = []
    for name, content in source_files().items():
        parts += [name.encode(), content]
    parts.append(" ".join(command).encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def packaged_name(name: str, instructions: InstructionSet, of_machine: str | None = None) -> str:
    """Return the file name of a wheel's library, without its suffix."""
    # With a hash of the sources, so that a library that an older version left behind is not taken for this one.
    return f"{name}-{library_key(instructions, (), of_machine)}"
