"""No C function reads or writes beyond its buffers, and the buffers of these tests notice if one does."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import numpy as np
import pytest

from elmokit.engine import c_sources
from elmokit.engine.library import parse_header
from tests.helpers.instruction_sets import build, machine_library, one_per_set
from tests.sanitize.buffers import Buffers, GuardedBuffers, HeapBuffers, at, check_written
from tests.sanitize.calls import SCENARIOS, CountedLibrary, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="guard pages are made with Linux's functions")


def test_every_declared_function_is_called() -> None:
    library = machine_library()
    counted = CountedLibrary(library)
    for name in SCENARIOS:
        for seed in range(4):
            run(counted, name, seed, HeapBuffers)
    assert counted.calls.keys() == parse_header(c_sources.header_text()).functions.keys()


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


@pytest.mark.parametrize("kind", [GuardedBuffers, HeapBuffers])
def test_a_number_that_is_not_written_is_noticed(kind: type[Buffers]) -> None:
    with kind() as buffers:
        array = buffers.output(2, 3)
        array[...] = np.nan
        check_written(array)
        array = buffers.output(2, 3)
        array[:, :2] = 0
        with pytest.raises(AssertionError, match="2 of 6 numbers"):
            check_written(array)


def test_a_byte_behind_scratch_memory_is_noticed() -> None:
    buffers = GuardedBuffers()
    address = buffers.scratch(70)
    assert address % 64 == 0
    ctypes.memset(address, 0, 70)
    buffers.free()
    address = buffers.scratch(70)
    ctypes.memset(address + 70, 0, 1)
    with pytest.raises(AssertionError, match="behind its scratch memory"):
        buffers.free()


def test_memory_of_no_bytes_has_an_address() -> None:
    for kind in (GuardedBuffers, HeapBuffers):
        with kind() as buffers:
            assert buffers.output(0, 4).shape == (0, 4)
            assert at(buffers.of(np.zeros((3, 0)))) > 0
