"""Find or compile the shared library of the C kernels for this machine's processor.

The library is one for the best instruction set that the processor has (``instruction_sets.py``). There are two places
for it:

- *the package*: a wheel carries one library for each instruction set of its system, so no compiler is needed, and the
  cache directory is not touched;
- *the cache directory* (``ELMOKIT_CACHE``, else the platform's usual one) for other installations on Linux: the library
  is compiled when it is first needed, which takes a few seconds, once. Its name is derived from the sources and the
  compiler command, so a change of either compiles again. ``CC`` names the compiler; ``CC=false`` disables compiling.
  If the directory cannot be used, the library is compiled in a temporary directory, for this process only.

Without either, everything still works: NumPy computes the network.

A library is code that runs with the user's rights. So the cache directory is created with mode 0700, and is used only
if nobody but the user and root can write to it or exchange one of its parents.
"""

from __future__ import annotations

import functools
import os
import platform
import stat
import warnings
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
from elmokit.errors import ElmoError, OutputError

# A compiler wrapper that hangs, for example on a network license, must not hang the program: NumPy computes then.
BUILD_SECONDS = 180
PACKAGED_LIBRARIES = Path(__file__).parent / PACKAGED


@functools.cache
def load_library() -> Library | None:
    """Return the library, compiled if necessary; None if that is impossible (``why_unavailable`` has the reason)."""
    return _load()[0]


def why_unavailable() -> str:
    """Return why there is no native library; an empty string if there is one."""
    load_library()
    return _load()[1]


@functools.cache
def _load() -> tuple[Library | None, str]:
    names, reason = requested_sets(), ""
    try:
        # Every library of the package before any compilation: a wheel needs neither a compiler nor a cache.
        for find in (_packaged, _compiled):
            for name in names:
                try:
                    if (library := find(name, INSTRUCTION_SETS[name])) is not None:
                        return library, ""
                except (InstructionsError, OSError) as error:
                    reason = reason or str(error)  # the next set asks less of the compiler and of the system
    # ValueError: CC is not a valid command line.
    except (OSError, ElmoError, AttributeError, ValueError) as error:
        reason = reason or f"the C kernels could not be loaded or built: {error}"
    return None, reason


class InstructionsError(ElmoError):
    """An instruction set that the compiler does not know, or that the system does not permit."""


def build(name: str, instructions: InstructionSet) -> Library:
    """Return the library for an instruction set: that of the package, else that of the cache, compiled if necessary."""
    return _packaged(name, instructions) or _compiled(name, instructions)


@functools.cache
def _packaged(name: str, instructions: InstructionSet) -> Library | None:
    """Load the library that a wheel carries; None if there is none."""
    if (path := _packaged_file(name, instructions)) is None:
        return None
    return _permitted(Library(path, name, header_text()))


@functools.cache
def _compiled(name: str, instructions: InstructionSet) -> Library:
    """Load the library from the cache directory, or from a temporary one, compiling it if there is none to trust."""
    if platform.system() != "Linux":
        raise ElmoError("elmokit compiles them on Linux only. Install a wheel that is built for this system.")
    import subprocess  # here, because a wheel needs no compiler: a first vector does not wait for this module

    try:
        try:
            library = _open_cached(name, instructions)
        except (OSError, OutputError) as problem:
            library = _open_temporary(name, instructions)
            # Not in silence: every process compiles for seconds, and someone may have prepared the directory.
            warnings.warn(
                f"The C kernels are compiled for this process only, because their directory cannot be used: {problem}",
                stacklevel=5,
            )
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        lines.sort(key=lambda line: "error:" not in line)  # before the first error come the headers that lead to it
        raise InstructionsError(
            f"the C compiler rejected the kernels: {lines[0] if lines else error.returncode}"
        ) from None
    except subprocess.TimeoutExpired as error:
        raise ElmoError(str(error)) from None
    return _permitted(library)


def _permitted(library: Library) -> Library:
    """Return a library whose instructions this process may use; raise an ``InstructionsError`` for others."""
    if not library.is_permitted_here:
        raise InstructionsError(f"the system does not permit the instructions {library.instructions} in this process")
    return library


def is_packaged(name: str) -> bool:
    """Check whether the package has the library for an instruction set."""
    return _packaged_file(name, INSTRUCTION_SETS[name]) is not None


def _packaged_file(name: str, instructions: InstructionSet) -> Path | None:
    return next(PACKAGED_LIBRARIES.glob(f"{packaged_name(name, instructions)}.*"), None)


def _open_cached(name: str, instructions: InstructionSet) -> Library:
    """Load the library from the cache directory, compiling it if it is not there."""
    from elmokit.storage.cache import cache_dir  # here, because a wheel needs none of it

    directory = cache_dir() / "kernels"
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    directory = directory.resolve()
    _check_writers(directory)
    path = directory / f"{library_key(instructions, compiler_command())}.so"
    if not path.exists():
        _compile(path, instructions)
    return Library(path, name, header_text())


def _open_temporary(name: str, instructions: InstructionSet) -> Library:
    """Compile the library in a temporary directory, which is deleted once the library is loaded."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="elmokit-") as directory:
        path = Path(directory, "kernels.so")
        _compile(path, instructions)
        return Library(path, name, header_text())


def _check_writers(directory: Path) -> None:
    """Refuse a directory in which someone else could put a library: loading one runs its code."""
    for path in (directory, *directory.parents):
        status = path.stat()
        # In a parent with the sticky bit, such as /tmp, everyone can create files, but nobody can exchange others'.
        is_shared = path != directory and status.st_mode & stat.S_ISVTX
        # Root can change every program on the machine; and a container image often holds a cache that root has filled.
        is_mine = status.st_uid in (0, os.geteuid())
        if not is_mine or (_is_writable_by_others(status) and not is_shared):
            raise OutputError(
                f"other users can write to {path}. Set ELMOKIT_CACHE to a directory that only you can write to."
            )


def _is_writable_by_others(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_own_group(status.st_gid)


def _is_own_group(group: int) -> bool:
    """Check whether a group is the user's alone: many systems create one for each user, with write permission."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:  # a number without an entry, as in some containers
        return False
    return found.gr_name == user and set(found.gr_mem) <= {user}


def _compile(path: Path, instructions: InstructionSet) -> None:
    """Compile the library into a file, which another process sees complete or not at all."""
    import shutil
    import tempfile

    from elmokit.storage.atomic import sync

    command = compiler_command()[0]
    if shutil.which(command) is None:
        raise ElmoError(f"there is no C compiler {command!r}. Install one, or name another one with CC.")
    with tempfile.TemporaryDirectory(dir=path.parent) as build_directory:
        output = Path(build_directory, "kernels.so")
        compile_sources(output, instructions, BUILD_SECONDS)
        output.chmod(0o700)  # whatever the umask is
        sync(output)
        output.replace(path)
        sync(path.parent)
