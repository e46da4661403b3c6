"""The instruction sets that the C kernels are built for, and detection of those that this processor supports.

``ELMOKIT_INSTRUCTIONS`` selects one of them, for tests and measurements; ``auto`` selects the best one. It is read
once, when the kernels are first needed, because packed weights have the layout of one instruction set.
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

    machine: str | None  # the processor type, as returned by ``machine``; None for any
    features: tuple[str, ...]  # required processor features, as named in Linux's /proc/cpuinfo
    flags: tuple[str, ...]  # compiler flags for GCC and Clang
    systems: tuple[str, ...] = ("Linux", "Darwin", "Windows")  # as in Python's ``platform.system``


_X86, _ARM = "x86_64", "aarch64"
_AVX2_FEATURES = ("avx2", "fma", "f16c", "bmi1", "bmi2")
_AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2")
_AVX512_FEATURES = (*_AVX2_FEATURES, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_AVX512_FLAGS = (*_AVX2_FLAGS, "-mavx512f", "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512vl")
_VNNI_FLAGS = (*_AVX512_FLAGS, "-mavx512vnni")
_BF16_FLAGS = (*_VNNI_FLAGS, "-mavx512bf16")

# The best come first. The flags are explicit instead of `-march=native`, so a build for one set runs on every processor
# that supports it, with the same bits.
INSTRUCTION_SETS: dict[str, InstructionSet] = {
    "amx": InstructionSet(
        _X86,
        # Every processor with AMX also has AVX-512's conversion to bfloat16, which training needs.
        (*_AVX512_FEATURES, "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"),
        (*_BF16_FLAGS, "-DAMX"),
        ("Linux",),  # no Mac has AMX, and Windows manages tiles differently
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
# For tests of the surrounding code: special instructions are replaced with plain C on the same memory layout
# (`instructions.h`); all of them, or all but AMX's tiles.
EMULATED = {
    "emulated": InstructionSet(None, (), ("-DEMULATE", "-Wno-psabi")),
    "emulated-pairs": InstructionSet(None, (), ("-DEMULATE=0", "-Wno-psabi")),
}


def machine() -> str:
    """Return the processor type that this program runs on: ``x86_64``, ``aarch64``, or another name."""
    name = platform.machine()
    if platform.system() == "Windows":
        import sysconfig

        # Windows on Arm also runs x86 programs, for which `platform.machine` would return the computer's type.
        name = sysconfig.get_platform().rpartition("-")[2]
    return {"amd64": _X86, "arm64": _ARM}.get(name.lower(), name)


def sets_for(system: str, of_machine: str) -> list[str]:
    """Return the possible instruction sets of a system and processor type, best first."""
    return [
        name
        for name, instructions in INSTRUCTION_SETS.items()
        if instructions.machine in (None, of_machine) and system in instructions.systems
    ]


def available_sets() -> list[str]:
    """Return this processor's instruction sets, best first.

    If the system does not report them (macOS, Windows), all possible ones are returned. Each library then checks
    whether the processor supports its instructions (``elmokit_is_permitted``).
    """
    features = _features()
    return [
        name
        for name in sets_for(platform.system(), machine())
        if features is None or features.issuperset(INSTRUCTION_SETS[name].features)
    ]


def requested_sets() -> list[str]:
    """Return the instruction sets to try, best first: the one in ``ELMOKIT_INSTRUCTIONS``, or all available ones."""
    available, override = available_sets(), os.environ.get(VARIABLE) or "auto"
    if override == "auto":
        return available
    if override not in available:
        raise ConfigError(f"{VARIABLE} is {override!r}; on this processor, it is auto, {', '.join(available)}.")
    return [override]


@functools.cache
def _features() -> frozenset[str] | None:
    """Return the features that the first processor reports; None if the system does not list them."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return frozenset() if platform.system() == "Linux" else None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):  # on x86 and Arm
            return frozenset(value.split())
    return frozenset()
