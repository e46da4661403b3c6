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

    machines: tuple[str, ...]  # names by Python's ``platform.machine``; empty for any
    features: tuple[str, ...]  # what the processor must report, by the names of Linux's /proc/cpuinfo
    flags: tuple[str, ...]  # for the compiler


_X86 = ("x86_64", "AMD64")
_ARM = ("aarch64", "arm64")
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
    ),
    "avx512-bf16": InstructionSet(_X86, (*_AVX512_FEATURES, "avx512_vnni", "avx512_bf16"), _BF16_FLAGS),
    "avx512-vnni": InstructionSet(_X86, (*_AVX512_FEATURES, "avx512_vnni"), _VNNI_FLAGS),
    "avx512": InstructionSet(_X86, _AVX512_FEATURES, _AVX512_FLAGS),
    "avx2-vnni": InstructionSet(_X86, (*_AVX2_FEATURES, "avx_vnni"), (*_AVX2_FLAGS, "-mavxvnni")),
    "avx2": InstructionSet(_X86, _AVX2_FEATURES, _AVX2_FLAGS),
    "neon-dotprod": InstructionSet(_ARM, ("asimd", "asimddp"), ("-march=armv8.2-a+dotprod",)),
    "neon": InstructionSet(_ARM, ("asimd",), ()),
    "portable": InstructionSet((), (), ()),
}
# Special instructions replaced by plain C on the same memory layout (`instructions.h`), to test what surrounds them.
EMULATED = InstructionSet((), (), ("-DEMULATE", "-Wno-psabi"))


def available_sets() -> list[str]:
    """Return the instruction sets of this processor, the best first."""
    machine, features = platform.machine(), _features()
    return [
        name
        for name, instructions in INSTRUCTION_SETS.items()
        if machine in (instructions.machines or (machine,)) and features.issuperset(instructions.features)
    ]


def requested_sets() -> list[str]:
    """Return the instruction sets to try, the best first: the one of ``ELMOKIT_INSTRUCTIONS``, or all available ones.

    Raises:
        ConfigError: ``ELMOKIT_INSTRUCTIONS`` has an unknown value, or the processor lacks the instructions.
    """
    available, override = available_sets(), os.environ.get(VARIABLE) or "auto"
    if override == "auto":
        return available
    if override not in INSTRUCTION_SETS:
        raise ConfigError(f"{VARIABLE} is {override!r}. Use one of auto, {', '.join(INSTRUCTION_SETS)}.")
    if override not in available:
        raise ConfigError(f"{VARIABLE} is {override!r}, but this processor has only {', '.join(available)}.")
    return [override]


@functools.cache
def _features() -> frozenset[str]:
    """Return what the first processor reports. Without Linux's list, only ``portable`` remains."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):  # on x86 and Arm
            return frozenset(value.split())
    return frozenset()
