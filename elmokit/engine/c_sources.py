"""Find the package's C files and compile them into a shared library.

They are compiled by ``compiler.py`` on the user's machine, and by ``hatch_build.py``, which builds wheels with a
library for every instruction set, also for other systems (``TARGETS``). The latter runs where no other package is
installed, so this module imports none. Standard modules needed only for compiling are imported in the functions that
compile, so the first vector does not wait for them.
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

# -ffast-math is not used. It assumes that there is no NaN, but the kernels pass NaN on so that broken inputs are
# noticed; and it allows sums in any order, but a row must get the same bits in any batch. The two -fno flags only
# disable errno and floating-point exceptions, which nobody reads and which would prevent vectorization.
FLAGS = ("-O3", "-pthread", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math")
# Inference with its public header, and training, which calls inference.
DIRECTORIES = ("engine", "engine/src", "network/src")
HEADERS = ("elmokit.h", "training.h")
"""The headers that declare the functions of the library."""
PACKAGED = "libraries"
"""The directory of the compiled libraries in a wheel, next to this file."""
SUFFIXES = {"Linux": ".so", "Darwin": ".dylib", "Windows": ".dll"}
"""The suffix of a shared library's name, by ``platform.system``."""


class Target(NamedTuple):
    """A system and processor type that zig compiles for; zig includes the headers and system libraries of each."""

    system: str  # as in Python's ``platform.system``
    machine: str  # as ``instruction_sets.machine`` returns it
    zig: str  # zig's name for the target, with the oldest supported version of the system
    tag: str  # the wheel's platform tag

    def compiler(self) -> list[str]:
        """Return the compiler command. On PyPI, zig is ``ziglang``."""
        # For Arm Macs, zig defaults to an M1, which has more instructions than the basic sets.
        processor = ["-mcpu=generic"] if self.machine == "aarch64" else []
        return [sys.executable, "-m", "ziglang", "cc", "-target", self.zig, *processor, "-s"]


# `aligned_alloc` needs macOS 10.15; Arm processors need macOS 11.
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
    """Return the content of every C file and header, by name. They are compiled in one directory."""
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
    target: Target | None = None,  # zig's target; None to use the system's compiler
) -> None:
    """Compile all C files into one shared library, which only depends on the C library."""
    import tempfile

    with tempfile.TemporaryDirectory(dir=output.parent) as directory:
        for name, content in source_files().items():
            Path(directory, name).write_bytes(content)
        files = sorted(str(file) for file in Path(directory).glob("*.c"))
        if target is None:
            command = [*compiler_command(), *FLAGS, *instructions.flags, "-o", str(output), *files, "-lm"]
            _run(command, directory, timeout)
            return
        # In two steps, because zig also compiles the code that a Windows library runs when it is loaded. That code must
        # run on every processor, before elmokit can check for the instructions.
        flags = [flag for flag in FLAGS if flag != "-shared"]
        flags += [_for_zig(flag) for flag in instructions.flags]
        objects = []
        for file in files:
            objects.append(f"{file}.o")
            _run([*target.compiler(), *flags, "-c", file, "-o", objects[-1]], directory, timeout)
        _run([*target.compiler(), *FLAGS, "-o", str(output), *objects, "-lm"], directory, timeout)


def _run(command: list[str], directory: str, timeout: float | None) -> None:
    """Run a compiler with its intermediate files in the given directory."""
    import subprocess

    # conda sets LD_RUN_PATH, which would add a directory of this machine to the library.
    variables = {name: value for name, value in os.environ.items() if name != "LD_RUN_PATH"}
    # Intermediate files become part of the library, so they must not be in a directory of other users.
    variables["TMPDIR"] = directory
    subprocess.run(command, check=True, capture_output=True, timeout=timeout, env=variables)


def _for_zig(flag: str) -> str:
    """Translate a flag for zig, in which Arm's instruction sets are part of ``-mcpu``."""
    return flag.replace("-march=armv8.2-a", "-mcpu=generic+v8_2a")


def library_key(
    instructions: InstructionSet,
    compiler: Sequence[str],  # its command; empty for a wheel's library
    of_machine: str | None = None,  # the kind of processor; None for this machine's
) -> str:
    """Return a hash of everything that determines a library's content."""
    # Different machines may share a cache directory, and the flags do not contain the processor type.
    command = [of_machine or machine(), *compiler, *FLAGS, *instructions.flags]
    parts: list[bytes] = []
    for name, content in source_files().items():
        parts += [name.encode(), content]
    parts.append(" ".join(command).encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def packaged_name(name: str, instructions: InstructionSet, of_machine: str | None = None) -> str:
    """Return the file name of a wheel's library, without its suffix."""
    # The hash of the sources distinguishes it from a library left behind by an older version.
    return f"{name}-{library_key(instructions, (), of_machine)}"
