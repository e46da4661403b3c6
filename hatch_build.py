"""Hooks of hatchling: the links of the package, and the C kernels in the wheel (see ``make wheel``).

The kernels are not part of ordinary builds: ``pip install .`` makes a wheel without libraries, which compiles them when
they are first needed. Set ``HATCH_BUILD_HOOK_ENABLE_CUSTOM=true`` to compile them. The wheel is for the system that
the C compiler compiles for (``CC`` may name another compiler), or for the one that ``ELMOKIT_TARGET`` names, such as
``windows-x86_64``: zig then compiles.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

if TYPE_CHECKING:
    from elmokit.engine.c_sources import Target

VARIABLE = "ELMOKIT_TARGET"
ZIG = "ziglang==0.17.1"  # a fixed version, so that a release can be built again
# What every Linux system with glibc has.
LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
OLDEST_GLIBC = 17  # the oldest version 2.x that manylinux has a tag for
NEWEST_GLIBC = 28  # what the wheels of PyTorch need


class AddressesHook(MetadataHookInterface):
    """Adds the addresses of the repository, which the environment of a release names."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add them to the links of the package."""
        metadata["urls"] = {"Paper": "https://aclanthology.org/N18-1202"}
        if name := os.environ.get("GITHUB_REPOSITORY"):
            repository = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
            metadata["urls"] |= {
                "Repository": repository,
                "Documentation": f"{repository}/tree/main/docs",
                "Changelog": f"{repository}/blob/main/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }


class KernelsHook(BuildHookInterface):
    """Adds the compiled libraries and the platform's tag to the wheel."""

    def dependencies(self) -> list[str]:
        """Return what the build needs beyond hatchling."""
        return [ZIG] if os.environ.get(VARIABLE) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the libraries, unless the installation is editable."""
        if version == "editable":
            return
        # The build environment is empty: what is imported from here uses the standard library only.
        sys.path.insert(0, self.root)
        self.output = tempfile.TemporaryDirectory()
        target = requested_target()
        libraries = compile_libraries(Path(self.output.name), target)
        for path in libraries:
            build_data["force_include"][str(path)] = f"elmokit/engine/{path.parent.name}/{path.name}"
        build_data["pure_python"] = False
        # No Python ABI, because the libraries are loaded with ctypes.
        build_data["tag"] = f"py3-none-{platform_tag(libraries, target)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the compiled libraries, which the wheel now has."""
        if version != "editable":
            self.output.cleanup()


def requested_target() -> Target | None:
    """Return the target that ``ELMOKIT_TARGET`` names; None for that of the C compiler."""
    from elmokit.engine.c_sources import TARGETS

    name = os.environ.get(VARIABLE)
    if name and name not in TARGETS:
        raise SystemExit(f"{VARIABLE} is {name!r}. Use one of {', '.join(TARGETS)}.")
    return TARGETS[name] if name else None


def compile_libraries(output: Path, target: Target | None) -> list[Path]:
    """Compile a library for each instruction set of the target, and return the files."""
    from elmokit.engine.c_sources import PACKAGED, SUFFIXES, compile_sources, packaged_name
    from elmokit.engine.instruction_sets import INSTRUCTION_SETS, sets_for

    system, machine = (target.system, target.machine) if target else ("Linux", compiler_machine())
    build, directory = output / "build", output / PACKAGED
    build.mkdir()
    directory.mkdir()

    def compile_one(name: str) -> Path:
        instructions = INSTRUCTION_SETS[name]
        path = build / f"{name}{SUFFIXES[system]}"
        try:
            compile_sources(path, instructions, target=target)
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"The C compiler rejected the kernels for {name}:\n{error.stderr.decode()}") from None
        return path.rename(directory / f"{packaged_name(name, instructions, machine)}{path.suffix}")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, sets_for(system, machine)))


def compiler_machine() -> str:
    """Return the kind of processor that the C compiler compiles for, such as ``x86_64``."""
    from elmokit.engine.c_sources import TARGETS, compiler_command

    printed = subprocess.run([*compiler_command(), "-dumpmachine"], check=True, capture_output=True, text=True).stdout
    machine, _, system = printed.strip().partition("-")
    if "linux" not in system:
        raise SystemExit(
            f"The C compiler compiles for {printed.strip()}, but kernels for other systems than Linux need zig. "
            f"Set {VARIABLE} to one of {', '.join(TARGETS)}."
        )
    return machine


def platform_tag(libraries: list[Path], target: Target | None) -> str:
    """Return the part of the wheel's tag that names the system, its oldest version, and the processor."""
    return target.tag if target else f"manylinux_2_{required_glibc(libraries)}_{compiler_machine()}"


def required_glibc(libraries: list[Path]) -> int:
    """Return the N of the oldest glibc, 2.N, that has every function of the libraries.

    The loader compares version names such as ``GLIBC_2.27``, which a library contains as plain text next to the names
    of the libraries that it needs.
    """
    newest = OLDEST_GLIBC
    for path in libraries:
        content = path.read_bytes()
        needed = {name.decode() for name in re.findall(rb"\0((?:lib|ld-)[\w.+-]*\.so\.\d+)(?=\0)", content)}
        if needed - LIBRARIES:
            raise SystemExit(f"{path.name} needs {', '.join(sorted(needed - LIBRARIES))}, which not every system has.")
        newest = max(newest, *map(int, re.findall(rb"\0GLIBC_2\.(\d+)", content)))
        if newest > NEWEST_GLIBC:
            raise SystemExit(
                f"{path.name} calls functions of glibc 2.{newest}, but PyTorch runs with 2.{NEWEST_GLIBC}. "
                "Find them with `objdump -T`, and call others."
            )
    return newest
