"""Find or compile the shared library of the C kernels for this machine's processor.

The library is one for the best instruction set that the processor has (``instruction_sets.py``). A wheel carries one
for each instruction set of its system. Other installations on Linux compile it when it is first needed, once, into the
cache directory (``ELMOKIT_CACHE``, else the platform's usual one), under a name that is derived from the sources and
the compiler command. ``CC`` names the compiler; ``CC=false`` disables compiling.

A library is code that runs with the user's rights. So a cache directory in which others could put one is not used: the
library is then compiled in a temporary directory, for this process only. Without any library, everything still works:
NumPy computes the network.
"""

from __future__ import annotations

import functools
import os
import platform
import stat
from pathlib import Path

from elmokit.engine.c_sources import (
    PACKAGED,
    compile_sources,
    compiler_command,
    header_text,
    library_key,
    packaged_name,
)
from elmokit.engine.instruction_sets import INSTRUCTION_SETS, InstructionSet, requested_sets
from elmokit.engine.library import Library
from elmokit.errors import ElmoError, OutputError, warn_caller

# A compiler wrapper that hangs, for example on a network license, must not hang the program: NumPy computes then.
BUILD_SECONDS = 180
PACKAGED_LIBRARIES = Path(__file__).parent / PACKAGED


class InstructionsError(ElmoError):
    """An instruction set that the compiler does not know, or that the system does not permit."""


def load_library() -> Library | None:
    """Return the library, compiled if necessary; None if that is impossible (``why_unavailable`` has the reason)."""
    return _load()[0]


def why_unavailable() -> str:
    """Return why there is no native library; an empty string if there is one."""
    return _load()[1]


@functools.cache
def _load() -> tuple[Library | None, str]:
    """Return the library, or the reason why there is none."""
    names, reason = requested_sets(), ""
    try:
        # Every library of the package before any compilation: a wheel needs neither a compiler nor a cache.
        for find in (_packaged, _compiled):
            for name in names:
                try:
                    library = find(name, INSTRUCTION_SETS[name])
                except (InstructionsError, OSError) as error:
                    reason = reason or str(error)  # the next set asks less of the compiler and of the system
                    continue
                if library is not None:
                    return library, ""
    # ValueError: CC is not a valid command line.
    except (OSError, ElmoError, AttributeError, ValueError) as error:
        reason = reason or f"the C kernels could not be loaded or built: {error}"
    return None, reason


def build(name: str, instructions: InstructionSet) -> Library:
    """Return the library for an instruction set: that of the package, else that of the cache, compiled if necessary."""
    return _packaged(name, instructions) or _compiled(name, instructions)


def is_packaged(name: str) -> bool:
    """Check whether the package has the library for an instruction set."""
    return _packaged_file(name, INSTRUCTION_SETS[name]) is not None


def _packaged_file(name: str, instructions: InstructionSet) -> Path | None:
    return next(PACKAGED_LIBRARIES.glob(f"{packaged_name(name, instructions)}.*"), None)


@functools.cache
def _packaged(name: str, instructions: InstructionSet) -> Library | None:
    """Load the library that a wheel carries; None if there is none."""
    path = _packaged_file(name, instructions)
    return None if path is None else _opened(path, name)


@functools.cache
def _compiled(name: str, instructions: InstructionSet) -> Library:
    """Load the library from the cache directory, or from a temporary one, compiling it if it is not there."""
    if platform.system() != "Linux":
        raise ElmoError("elmokit only compiles them on Linux. Install a wheel that was built for this system.")
    import subprocess  # here, because a wheel needs no compiler: a first vector does not wait for this module

    try:
        try:
            library = _compiled_in(_cache_directory(), name, instructions)
        except (OSError, OutputError) as problem:
            import tempfile

            with tempfile.TemporaryDirectory(prefix="elmokit-") as directory:
                library = _compiled_in(Path(directory), name, instructions)
            # Not in silence: every process compiles for seconds, and someone may have prepared the directory.
            warn_caller(f"The C kernels are compiled for this process only: {problem}")
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        lines.sort(key=lambda line: "error:" not in line)  # before the first error come the headers that lead to it
        raise InstructionsError(
            f"the C compiler rejected the kernels: {lines[0] if lines else error.returncode}"
        ) from None
    except subprocess.TimeoutExpired as error:
        raise ElmoError(str(error)) from None
    return library


def _opened(path: Path, name: str) -> Library:
    """Load a library whose instructions this process may use; raise an ``InstructionsError`` for others."""
    library = Library(path, name, header_text())
    if not library.is_permitted_here:
        raise InstructionsError(f"the system does not permit the instructions {library.instructions} in this process")
    return library


def _cache_directory() -> Path:
    """Return the directory for compiled libraries, with mode 0700 below parents that nobody else can write to."""
    from elmokit.storage.cache import cache_dir  # here, because a wheel needs none of it

    directory = cache_dir() / "kernels"
    directory.parent.mkdir(0o700, parents=True, exist_ok=True)
    directory.mkdir(0o700, exist_ok=True)
    directory = directory.resolve()
    status = directory.stat()
    if status.st_uid != os.geteuid() or any(map(_is_open_to_others, directory.parents)):
        raise OutputError(
            f"other users can write to {directory} or a parent. Set ELMOKIT_CACHE to a directory of yours."
        )
    if status.st_mode & 0o077:  # a group, by its umask, may have put libraries there
        directory.chmod(0o700)
        for library in directory.glob("*.so"):  # not the directories in which other processes compile at this moment
            library.unlink(missing_ok=True)
    return directory


def _is_open_to_others(directory: Path) -> bool:
    """Check whether another user, root apart, owns a directory or can exchange files in it."""
    status = directory.stat()
    if status.st_uid not in (0, os.geteuid()):
        return True
    # In a directory with the sticky bit, such as /tmp, everyone can create files, but nobody can exchange others'.
    return bool(status.st_mode & 0o022) and not status.st_mode & stat.S_ISVTX


def _compiled_in(directory: Path, name: str, instructions: InstructionSet) -> Library:
    """Load the library from a directory; it is compiled first if it is not there, in one piece for other processes."""
    path = directory / f"{library_key(instructions, compiler_command())}.so"
    if not path.exists():
        import tempfile

        from elmokit.storage.atomic import sync

        with tempfile.TemporaryDirectory(dir=directory) as build_directory:
            output = Path(build_directory, "kernels.so")
            compile_sources(output, instructions, BUILD_SECONDS)
            sync(output)
            output.replace(path)
    return _opened(path, name)
