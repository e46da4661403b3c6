"""The kernels' libraries for every instruction set, for tests."""

from __future__ import annotations

import pytest

from elmokit.engine import compiler, engine, instruction_sets
from elmokit.engine.library import Library
from elmokit.engine.precision import Kernels, Precision

# Those of ``EMULATED`` have plain C in place of the special instructions and run everywhere.
ALL_SETS = {**instruction_sets.INSTRUCTION_SETS, **instruction_sets.EMULATED}
WITHOUT_DOT = ("neon", "portable")
WITH_PAIRS = ("avx512", "avx2")
WITH_BFLOAT16 = ("amx", "avx512-bf16", *instruction_sets.EMULATED)


def one_per_set(*wanted: str) -> list[object]:
    """Return parameters for a test of every set that runs here, or of those among the wanted ones."""
    # The library of the best set exists in most caches; each other one takes seconds to compile. Pairs of bfloat16 are
    # emulated where no instruction multiplies them.
    available = instruction_sets.available_sets()
    emulated = [
        name for name in instruction_sets.EMULATED if name != "emulated-pairs" or "avx512-bf16" not in available
    ]
    names = [name for name in (*available, *emulated) if not wanted or name in wanted]
    return [pytest.param(name, marks=[] if name == available[0] else pytest.mark.slow) for name in names]


def lacking_sets() -> list[str]:
    """Return the sets that this processor lacks."""
    return [name for name in instruction_sets.INSTRUCTION_SETS if name not in instruction_sets.available_sets()]


def build(name: str) -> Library:
    """Return the library for a set that this processor has; skip the test where this machine cannot build it."""
    if compiler.load_library() is None:
        pytest.skip(compiler.why_unavailable())
    try:
        return compiler.build(name, ALL_SETS[name])
    except compiler.InstructionsError as error:
        pytest.skip(str(error))


def machine_library() -> Library:
    """Return the library that elmokit uses here; skip the test where there is none."""
    library = compiler.load_library()
    if library is None:
        pytest.skip(compiler.why_unavailable())
    return library


def rounds_inputs(library: Library, precision: Precision) -> bool:
    """Return whether the products of a precision round their inputs too."""
    if precision == "bfloat16":
        return library.instructions in WITH_BFLOAT16
    return precision != "float32" and library.instructions not in WITHOUT_DOT


def most_precise(library: Library, precision: Precision) -> Precision:
    """Return the most precise one of the precisions that are as fast: 7 bits help only products of pairs."""
    return "int8" if precision == "int7" and library.instructions not in WITH_PAIRS else precision


def choose_kernels_as_if(monkeypatch: pytest.MonkeyPatch, *widened: Precision) -> None:
    """Let models choose kernels as for small layers where only the weights of these precisions are widened."""

    def choose(library: Library, precision: Precision, _: int) -> Kernels:
        chosen: Precision = "float32" if precision in widened else precision
        return Kernels(chosen, chosen, library.instructions)

    monkeypatch.setattr(engine, "choose_kernels", choose)
