"""No C function reads or writes beyond its buffers, and the buffers of these tests notice if one does."""

from __future__ import annotations

import subprocess
import sys

import pytest

from elmokit.engine import c_sources
from elmokit.engine.library import parse_header
from tests.helpers.instruction_sets import build, machine_library, one_per_set
from tests.helpers.paths import ROOT
from tests.sanitize.buffers import GuardedBuffers, HeapBuffers
from tests.sanitize.calls import SCENARIOS, CountedLibrary, run
from tests.sanitize.full import TESTS_OF_KERNELS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="guard pages are made with Linux's functions")


def test_every_declared_function_is_called() -> None:
    library = machine_library()
    counted = CountedLibrary(library)
    for name in SCENARIOS:
        for seed in range(4):
            run(counted, name, seed, HeapBuffers)
    assert counted.calls.keys() == parse_header(c_sources.header_text()).functions.keys()


def test_the_tests_that_run_with_guard_pages_exist() -> None:
    assert [name for name in TESTS_OF_KERNELS if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("name", one_per_set())
def test_no_function_touches_the_pages_around_its_buffers(name: str) -> None:
    library = CountedLibrary(build(name))
    for seed in range(4):
        for scenario in SCENARIOS:
            run(library, scenario, seed, GuardedBuffers)


@pytest.mark.parametrize(
    "access",
    [
        "ctypes.string_at(at(array) + array.nbytes, 1)",
        "ctypes.string_at(at(array) // PAGE * PAGE - 1, 1)",
        "ctypes.memset(at(array), 0, 4)",
        "ctypes.memset(at(written) + written.nbytes, 0, 1)",
    ],
)
def test_a_guarded_buffer_kills_whoever_leaves_it(access: str) -> None:
    code = f"""
import ctypes, numpy as np
from tests.sanitize.buffers import GuardedBuffers, PAGE, at
buffers = GuardedBuffers()
array, written = buffers.of(np.ones((3, 5))), buffers.output(7)
written[...] = array.sum()
assert written[6] == 15
print("inside", flush=True)
{access}
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "inside\n"
    assert ran.returncode == -11, ran.stderr
