"""The instruction sets that the C kernels are built for, and which of them this processor has.

``ELMOKIT_INSTRUCTIONS`` names one of them, for tests and measurements; ``auto`` takes the best one. It is read once,
when the kernels are first needed: packed weights have the layout of one instruction set.
"""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path
from typing import NamedTuple

from elmokit.errors import ConfigError

VARIABLE = "ELMOKIT_INSTRUCTIONS"


class InstructionSet(NamedTuple):
    """One way to build the kernels."""

    machine: str | None  # the kind of processor, as ``machine`` returns it; None for any
    features: tuple[str, ...]  # what the processor must report, by the names of Linux's /proc/cpuinfo
    flags: tuple[str, ...]  # for the compiler: as GCC and Clang understand them
    systems: tuple[str, ...] = ("Linux", "Darwin", "Windows")  # names by Python's ``platform.system``


_X86, _ARM = "x86_64", "aarch64"
_AVX2_FEATURES = ("avx2", "fma", "f16c", "bmi1", "bmi2")
_AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2")
_AVX512_FEATURES = (*_AVX2_FEATURES, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_AVX512_FLAGS = (*_AVX2_FLAGS, "-mavx512f", "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512vl")
_VNNI_FLAGS = (*_AVX512_FLAGS, "-mavx512vnni")
_BF16_FLAGS = (*_VNNI_FLAGS, "-mavx512bf16")

# The best first. The flags are explicit, not `-march=native`: a build for one set runs on every processor that has it,
# and gives the same bits on all of them.
INSTRUCTION_SETS: dict[str, InstructionSet] = {
    "amx": InstructionSet(
        _X86,
        # Every processor with AMX has AVX-512's conversion to bfloat16, which training needs.
        (*_AVX512_FEATURES, "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"),
        (*_BF16_FLAGS, "-DAMX"),
        ("Linux",),  # no Mac has AMX, and Windows hands out tiles in a way of its own
    ),
    "avx512-bf16": InstructionSet(_X86, (*_AVX512_FEATURES, "avx512_vnni", "avx512_bf16"), _BF16_FLAGS),
    "avx512-vnni": InstructionSet(_X86, (*_AVX512_FEATURES, "avx512_vnni"), _VNNI_FLAGS),
    "avx512": InstructionSet(_X86, _AVX512_FEATURES, _AVX512_FLAGS),
    "avx2-vnni": InstructionSet(_X86, (*_AVX2_FEATURES, "avx_vnni"), (*_AVX2_FLAGS, "-mavxvnni")),
    "avx2": InstructionSet(_X86, _AVX2_FEATURES, _AVX2_FLAGS),
    "neon-i8mm": InstructionSet(_ARM, ("asimd", "asimddp", "i8mm"), ("-march=armv8.2-a+dotprod+i8mm",)),
    "neon-dotprod": InstructionSet(_ARM, ("asimd", "asimddp"), ("-march=armv8.2-a+dotprod",)),
    "neon": InstructionSet(_ARM, ("asimd",), ()),
    "portable": InstructionSet(None, (), ()),
}
# Special instructions replaced by plain C on the same memory layout (`instructions.h`), to test what surrounds them:
# all of them, or all but AMX's tiles.
EMULATED = {
    "emulated": InstructionSet(None, (), ("-DEMULATE", "-Wno-psabi")),
    "emulated-pairs": InstructionSet(None, (), ("-DEMULATE=0", "-Wno-psabi")),
}


def machine() -> str:
    """Return the kind of processor that this program runs on: ``x86_64``, ``aarch64``, or another name."""
    name = platform.machine()
    if platform.system() == "Windows":
        import sysconfig

        # Windows on Arm also runs programs for x86, and `platform.machine` names the computer instead of the program.
        name = sysconfig.get_platform().rpartition("-")[2]
    return {"amd64": _X86, "arm64": _ARM}.get(name.lower(), name)


def sets_for(system: str, of_machine: str) -> list[str]:
    """Return the instruction sets that there may be on a system and a kind of processor, the best first."""
    return [
        name
        for name, instructions in INSTRUCTION_SETS.items()
        if instructions.machine in (None, of_machine) and system in instructions.systems
    ]


def available_sets() -> list[str]:
    """Return the instruction sets of this processor, the best first.

    Where the system does not report them (macOS, Windows), these are all that there may be: each library then knows
    whether the processor has its instructions (``elmokit_is_permitted``).
    """
    features = _features()
    return [
        name
        for name in sets_for(platform.system(), machine())
        if features is None or features.issuperset(INSTRUCTION_SETS[name].features)
    ]


def requested_sets() -> list[str]:
    """Return the instruction sets to try, the best first: that of ``ELMOKIT_INSTRUCTIONS``, or all available ones."""
    available, override = available_sets(), os.environ.get(VARIABLE) or "auto"
    if override == "auto":
        return available
    if override not in available:
        raise ConfigError(f"{VARIABLE} is {override!r}; on this processor, it is auto, {', '.join(available)}.")
    return [override]


@functools.cache
def _features() -> frozenset[str] | None:
    """Return what the first processor reports; None if the system has no list of it."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return frozenset() if platform.system() == "Linux" else None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):  # on x86 and Arm
            return frozenset(value.split())
    return frozenset()
