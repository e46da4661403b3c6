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

A library is code that runs with the user's rights. So one from the cache is loaded only if nobody but the user and root
can have written it. The cache directory is opened, checked, and then used through its descriptor only: whoever can
write to one of its parents could put another directory in its place, for example while the compiler runs. A library
from the package is loaded only if whoever can have written it can also write the package's Python files. (Windows does
not tell Python who can. There, a library has the permissions of its directory, as the Python files have.) Both are
loaded only if their content has the digest in their name.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import stat
import warnings
from collections.abc import Callable
from pathlib import Path

from elmokit.engine.c_sources import (
    PACKAGED,
    compile_sources,
    compiler_command,
    digest,
    header_text,
    library_key,
    packaged_prefix,
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
                except InstructionsError as error:
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
    """Load the library that a wheel carries; None if there is none, or none that can be trusted."""
    for path in _packaged_files(name, instructions):
        try:
            library = _load_verified(path, name, _is_as_safe_as_the_package)
        except OSError as error:
            raise InstructionsError(f"the library of the package cannot be loaded: {error}") from None
        if library is not None:
            return _permitted(library)
        warnings.warn(
            f"{path} is not used: it was changed after it was installed, or more users can write to it than to the "
            "rest of the package. Install elmokit again.",
            stacklevel=5,
        )
    return None


@functools.cache
def _compiled(name: str, instructions: InstructionSet) -> Library:
    """Load the library from the cache directory, or from a temporary one, compiling it if there is none to trust."""
    if platform.system() != "Linux":
        # Descriptors stand in for paths below (/proc/self/fd), which other systems do not have.
        raise ElmoError("elmokit compiles them on Linux only. Install a wheel that is built for this system.")
    import subprocess  # here, because a wheel needs no compiler: a first vector does not wait for this module

    try:
        try:
            library = _open_cached(name, instructions)
        except (OSError, OutputError, UnsafeCacheError) as problem:
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


class UnsafeCacheError(ElmoError):
    """A cache directory in which another user may have put a library."""


def is_packaged(name: str) -> bool:
    """Check whether the package has the library for an instruction set."""
    return bool(_packaged_files(name, INSTRUCTION_SETS[name]))


def _packaged_files(name: str, instructions: InstructionSet) -> list[Path]:
    return sorted(PACKAGED_LIBRARIES.glob(f"{packaged_prefix(name, instructions)}-*"))


def _is_as_safe_as_the_package(status: os.stat_result) -> bool:
    """Check that everyone who can change a file can change the package's Python files too."""
    if platform.system() == "Windows":
        return True  # the numbers of `stat` say nothing about permissions there
    # Not `_is_private`: many installations belong to a group or to another user, whose code runs anyway.
    package = Path(__file__).stat()
    is_same_owner = (status.st_uid, status.st_gid) == (package.st_uid, package.st_gid)
    writable_by = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return _is_private(status) or (is_same_owner and not writable_by & ~package.st_mode)


def _open_cached(name: str, instructions: InstructionSet) -> Library:
    """Load the library from the cache directory, compiling it if there is none that can be trusted."""
    from elmokit.storage.cache import cache_dir  # here, because a wheel needs none of it

    directory = cache_dir() / "kernels"
    directory.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    return _open_or_compile(directory, name, instructions)


def _open_temporary(name: str, instructions: InstructionSet) -> Library:
    """Compile the library in a temporary directory, which is deleted once the library is loaded."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="elmokit-") as directory:
        return _open_or_compile(Path(directory), name, instructions)


def _open_or_compile(directory: Path, name: str, instructions: InstructionSet) -> Library:
    """Load the library from a directory of this user, compiling it if there is none that can be trusted."""
    _check_owner(directory, directory.lstat())  # not `stat`: the target of a link is for whoever made it to choose
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _check_owner(directory, os.fstat(descriptor))
        opened = Path(f"/proc/self/fd/{descriptor}")
        key = library_key(instructions, compiler_command())
        for path in opened.glob(f"{key}-*.so"):
            if (library := _load_verified(path, name, _is_private)) is not None:
                return library
            path.unlink(missing_ok=True)
        path = _compile(opened, key, instructions, descriptor)
        if (library := _load_verified(path, name, _is_private)) is None:
            raise OSError(f"{directory / path.name} was changed while it was written")
        return library
    finally:
        os.close(descriptor)


def _check_owner(directory: Path, status: os.stat_result) -> None:
    """Refuse a directory in which someone else could put a library: loading one runs its code."""
    if stat.S_ISLNK(status.st_mode):
        problem = "is a symbolic link"
    elif status.st_uid not in _trusted_users():
        problem = "belongs to another user"
    elif not _is_private(status):
        problem = "is a directory that other users can write to"
    else:
        return
    raise UnsafeCacheError(
        f"{directory} {problem}, and a library from there would run with your rights. Delete it: elmokit creates it "
        "again, writable by you only. Or set ELMOKIT_CACHE to a directory of your own."
    )


def _is_private(status: os.stat_result) -> bool:
    """Check that only this user (and root) can change a file or directory."""
    return status.st_uid in _trusted_users() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _trusted_users() -> tuple[int, int]:
    # Root can change every program on the machine; and a container image often holds a cache that root has filled.
    return 0, os.geteuid()


def _load_verified(path: Path, instructions: str, is_safe: Callable[[os.stat_result], bool]) -> Library | None:
    """Load a library if its owner and permissions are safe and its content has the digest in its name.

    The digest finds accidents, such as a file cut short by a full disk: the loader maps a library without reading it,
    and a missing page kills the process (SIGBUS) at some later call.
    """
    by_descriptor = platform.system() == "Linux"
    # Where libraries are loaded by their path, whoever can write to the directory could exchange one after the check.
    if not by_descriptor and not is_safe(path.parent.stat()):
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))  # Windows does not have it
    except OSError:
        return None
    with open(descriptor, "rb", closefd=False) as file:
        is_verified = is_safe(os.fstat(descriptor)) and digest(file.read()) == path.stem.rpartition("-")[2]
    if is_verified and by_descriptor:
        # By its descriptor and not by its path: this is then the file that was verified, also if the path now leads
        # to another one. The descriptor stays open, because the loader knows the library by this name: another
        # library that got the same number would not be loaded.
        return Library(Path(f"/proc/self/fd/{descriptor}"), instructions, header_text())
    os.close(descriptor)
    return Library(path, instructions, header_text()) if is_verified else None


def _compile(directory: Path, key: str, instructions: InstructionSet, descriptor: int) -> Path:
    """Compile the library in a directory, which a descriptor leads to, and return its path, ``KEY-DIGEST.so``."""
    import shutil
    import tempfile

    from elmokit.storage.atomic import sync

    command = compiler_command()[0]
    if shutil.which(command) is None:
        raise ElmoError(f"there is no C compiler {command!r}. Install one, or name another one with CC.")
    with tempfile.TemporaryDirectory(dir=directory) as build_directory:
        output = Path(build_directory, "kernels.so")
        compile_sources(output, instructions, BUILD_SECONDS, [descriptor])
        output.chmod(0o700)  # whatever the umask is
        path = directory / f"{key}-{digest(output.read_bytes())}.so"
        sync(output)
        output.replace(path)  # atomic: another process sees no library or a complete one
        sync(directory)
    return path
