"""The kernels' libraries for every instruction set, for tests."""

from __future__ import annotations

import pytest

from elmokit.nn.kernels import compiler, instruction_sets
from elmokit.nn.kernels.native import NativeLibrary

# ``emulated`` has plain C in place of the special instructions and runs everywhere.
ALL_SETS = {**instruction_sets.INSTRUCTION_SETS, "emulated": instruction_sets.EMULATED}


def one_per_set() -> list[object]:
    """Return parameters for a test of every set."""
    # The library of the best set exists in most caches; each other one takes seconds to compile.
    best = instruction_sets.available_sets()[0]
    return [pytest.param(name, marks=[] if name == best else pytest.mark.slow) for name in ALL_SETS]


def build(name: str) -> NativeLibrary:
    """Return the library for a set; skip the test where this machine cannot build or run it."""
    if name not in (*instruction_sets.available_sets(), "emulated"):
        pytest.skip(f"this processor lacks {name}")
    if compiler.load_library() is None:
        pytest.skip(compiler.why_unavailable())
    try:
        return compiler.build(name, ALL_SETS[name])
    except compiler.InstructionsError as error:
        pytest.skip(str(error))
