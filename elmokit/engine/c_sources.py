"""The C files of the package, and how they are compiled into a shared library.

Two programs compile them: ``compiler.py`` on the user's machine, and ``hatch_build.py``, which builds the wheel with a
library for every instruction set. The latter runs where PyTorch is not installed, so nothing here imports it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from elmokit.engine.instruction_sets import InstructionSet

# Not -ffast-math: it assumes that there is no NaN (the kernels let a NaN pass, so that broken inputs are noticed), and
# it allows sums in any order (a row must get the same bits in any batch). The two -fno flags give up only errno and
# floating-point exceptions, which nobody reads and which would keep loops from being vectorized.
FLAGS = ("-O3", "-pthread", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math")
# Inference, with its public header, and training, whose functions call those of inference.
DIRECTORIES = ("engine", "engine/src", "nn/kernels/training")
HEADERS = ("elmokit.h", "training.h")
"""The headers that declare the functions of the library."""
PACKAGED = "libraries"
"""The directory of the compiled libraries in a wheel, next to this file."""


def source_files() -> dict[str, bytes]:
    """Return the content of every C file and header, by name. They are compiled together in one directory."""
    package = resources.files("elmokit")
    directories = [package.joinpath(*name.split("/")) for name in DIRECTORIES]
    files = sorted((file.name, file) for directory in directories for file in directory.iterdir())
    return {name: file.read_bytes() for name, file in files if name.endswith((".c", ".h"))}


def header_text() -> str:
    """Return the text of the headers that declare the functions of the library."""
    sources = source_files()
    return "\n".join(sources[name].decode() for name in HEADERS)


def compiler_command() -> list[str]:
    """Return the C compiler: ``CC`` if it is set, else ``cc``."""
    return shlex.split(os.environ.get("CC") or "cc")


def compile_sources(
    output: Path, instructions: InstructionSet, timeout: float | None = None, descriptors: Sequence[int] = ()
) -> None:
    """Compile all C files into one shared library, which needs nothing but C's own.

    Args:
        output: The library.
        instructions: The instruction set.
        timeout: The time that the compiler may take, in seconds. None for no limit.
        descriptors: Open files that the compiler inherits, for an output in ``/proc/self/fd``.

    Raises:
        subprocess.CalledProcessError: The compiler rejected a file; ``stderr`` says why.
        subprocess.TimeoutExpired: It took too long.
    """
    # Copies, because the package may be in an archive (zipimport).
    with tempfile.TemporaryDirectory(dir=output.parent) as directory:
        for name, content in source_files().items():
            Path(directory, name).write_bytes(content)
        subprocess.run(
            [
                *(*compiler_command(), *FLAGS, *instructions.flags, "-o", str(output)),
                *sorted(str(file) for file in Path(directory).glob("*.c")),
                "-lm",
            ],
            check=True,
            capture_output=True,
            timeout=timeout,
            pass_fds=descriptors,
            # Its intermediate files become part of the library too, so they are not left in a directory of others.
            env={**os.environ, "TMPDIR": directory},
        )


def library_key(instructions: InstructionSet, compiler: Sequence[str], machine: str | None = None) -> str:
    """Return a hash of everything that a library depends on.

    Args:
        instructions: The instruction set.
        compiler: The compiler's command. Empty for a library of a wheel, where the user's compiler does not matter.
        machine: The kind of processor, by Python's ``platform.machine``. None for this machine's.
    """
    # Machines of different kinds may share one cache directory: the flags have the instruction set, but not the kind.
    command = [machine or platform.machine(), *compiler, *FLAGS, *instructions.flags]
    named = [part for name, content in source_files().items() for part in (name.encode(), content)]
    return digest(b"\0".join([*named, " ".join(command).encode()]))[:16]


def packaged_prefix(name: str, instructions: InstructionSet, machine: str | None = None) -> str:
    """Return what the file name of a wheel's library starts with; ``-DIGEST.so`` follows.

    The name has a hash of the sources, so that a library that an older version left behind is not taken for this one.
    """
    return f"{name}-{library_key(instructions, (), machine)}"


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
