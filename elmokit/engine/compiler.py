"""Find or compile the shared library of the C kernels for this machine's processor.

The library is built for the processor's best instruction set (``instruction_sets.py``). A wheel contains one for each
instruction set of its system. Other installations on Linux compile it once, when it is first needed, into the cache
directory (``ELMOKIT_CACHE``, or the platform's default), under a name derived from the sources and the compiler
command. ``CC`` selects the compiler; ``CC=false`` disables compilation.

A library runs with the user's rights. If others can write to the cache directory, the library is therefore compiled in
a temporary directory, for this process only. Without a library, NumPy computes the network.
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

# A compiler wrapper may hang, for example on a network license. NumPy then computes the network.
BUILD_SECONDS = 180
PACKAGED_LIBRARIES = Path(__file__).parent / PACKAGED


class InstructionsError(ElmoError):
    """An instruction set that the compiler does not support or the system does not permit."""


def load_library() -> Library | None:
    """Return the library, compiling it if necessary; None if that is impossible (see ``why_unavailable``)."""
    return _load()[0]


def why_unavailable() -> str:
    """Return why there is no native library; an empty string if there is one."""
    return _load()[1]


@functools.cache
def _load() -> tuple[Library | None, str]:
    """Return the library, or the reason why there is none."""
    names, reason = requested_sets(), ""
    try:
        # Try all packaged libraries before compiling: a wheel needs neither a compiler nor a cache.
        for find in (_packaged, _compiled):
            for name in names:
                try:
                    library = find(name, INSTRUCTION_SETS[name])
                except (InstructionsError, OSError) as error:
                    reason = reason or str(error)  # the next set requires less
                    continue
                if library is not None:
                    return library, ""
    # ValueError: CC is not a valid command line.
    except (OSError, ElmoError, AttributeError, ValueError) as error:
        reason = reason or f"the C kernels could not be loaded or built: {error}"
    return None, reason


def build(name: str, instructions: InstructionSet) -> Library:
    """Return the library for an instruction set, from the package or the cache, compiling it if necessary."""
    return _packaged(name, instructions) or _compiled(name, instructions)


def is_packaged(name: str) -> bool:
    """Check whether the package contains the library for an instruction set."""
    return _packaged_file(name, INSTRUCTION_SETS[name]) is not None


def _packaged_file(name: str, instructions: InstructionSet) -> Path | None:
    return next(PACKAGED_LIBRARIES.glob(f"{packaged_name(name, instructions)}.*"), None)


@functools.cache
def _packaged(name: str, instructions: InstructionSet) -> Library | None:
    """Load the wheel's library; None if there is none."""
    path = _packaged_file(name, instructions)
    return None if path is None else _opened(path, name)


@functools.cache
def _compiled(name: str, instructions: InstructionSet) -> Library:
    """Load the library from the cache directory or a temporary one, compiling it if it is missing."""
    if platform.system() != "Linux":
        raise ElmoError("elmokit only compiles them on Linux. Install a wheel that was built for this system.")
    import subprocess  # imported here, because a wheel needs no compiler

    try:
        try:
            library = _compiled_in(_cache_directory(), name, instructions)
        except (OSError, OutputError) as problem:
            import tempfile

            with tempfile.TemporaryDirectory(prefix="elmokit-") as directory:
                library = _compiled_in(Path(directory), name, instructions)
            # The user should know: every process compiles for seconds, and the directory may have been tampered with.
            warn_caller(f"The C kernels are compiled for this process only: {problem}")
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        lines.sort(key=lambda line: "error:" not in line)  # the compiler lists headers before the first error
        raise InstructionsError(
            f"the C compiler rejected the kernels: {lines[0] if lines else error.returncode}"
        ) from None
    except subprocess.TimeoutExpired as error:
        raise ElmoError(str(error)) from None
    return library


def _opened(path: Path, name: str) -> Library:
    """Load a library. Raise an ``InstructionsError`` if this process may not use its instructions."""
    library = Library(path, name, header_text())
    if not library.is_permitted_here:
        raise InstructionsError(f"the system does not permit the instructions {library.instructions} in this process")
    return library


def _cache_directory() -> Path:
    """Return the directory for compiled libraries, with mode 0700 and parents that no other user can write to."""
    from elmokit.storage.cache import cache_dir  # imported here, because a wheel does not need it

    directory = cache_dir() / "kernels"
    directory.parent.mkdir(0o700, parents=True, exist_ok=True)
    directory.mkdir(0o700, exist_ok=True)
    directory = directory.resolve()
    status = directory.stat()
    if status.st_uid != os.geteuid() or any(map(_is_open_to_others, directory.parents)):
        raise OutputError(
            f"other users can write to {directory} or a parent. Set ELMOKIT_CACHE to a directory of your own."
        )
    if status.st_mode & 0o077:  # with a permissive umask, group members may have added libraries
        directory.chmod(0o700)
        for library in directory.glob("*.so"):  # but not the directories in which other processes are compiling
            library.unlink(missing_ok=True)
    return directory


def _is_open_to_others(directory: Path) -> bool:
    """Check whether another user (except root) owns a directory or can replace files in it."""
    status = directory.stat()
    if status.st_uid not in (0, os.geteuid()):
        return True
    # In a directory with the sticky bit, such as /tmp, users cannot replace files of others.
    return bool(status.st_mode & 0o022) and not status.st_mode & stat.S_ISVTX


def _compiled_in(directory: Path, name: str, instructions: InstructionSet) -> Library:
    """Load the library from a directory, first compiling it and moving it there atomically if it is missing."""
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
