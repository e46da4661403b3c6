"""The engine, compiled for other systems and processors, equals the portable one.

Linux on Arm runs under QEMU, Windows under Wine. macOS cannot be run here: its libraries are inspected.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from elmokit.engine import c_sources, compiler
from elmokit.engine.architecture import BiLMConfig, CharCNNConfig, tensor_shapes
from elmokit.engine.c_sources import SUFFIXES, TARGETS
from elmokit.engine.instruction_sets import INSTRUCTION_SETS, sets_for
from elmokit.engine.interface import NetworkInput
from elmokit.engine.library import Library, parse_header
from elmokit.engine.precision import NAMES, PRECISIONS
from elmokit.engine.softmax import Matrix
from elmokit.engine.state import Floats
from elmokit.engine.token_layer import TokenLayer
from tests.helpers.engine_lstm import lstm_config, random_arrays, random_lstm, random_state
from tests.helpers.paths import ROOT

MAIN = ROOT / "tests" / "helpers" / "engine_main.c"
ARM_COMPILER, ARM_LIBRARIES = "aarch64-linux-gnu-gcc", "/usr/aarch64-linux-gnu"
QEMU_ARM, QEMU_X86, WINE = ("qemu-aarch64", "-cpu", "max", "-L", ARM_LIBRARIES), ("qemu-x86_64",), ("wine",)
pytestmark = pytest.mark.slow


class Case(NamedTuple):
    """A build of the engine, and what runs it here."""

    target: str
    instructions: str
    runs_on: tuple[str, ...]
    compiler: str = "zig"

    @property
    def needs(self) -> tuple[str, str]:
        return self.runs_on[0], "zig" if self.compiler == "zig" else ARM_COMPILER


# GCC, which compiles Arm's own wheel, and zig, which compiles the others.
CASES = [Case("linux-aarch64", name, QEMU_ARM, "gcc") for name in ("neon-i8mm", "neon-dotprod", "neon")]
CASES += [Case("linux-aarch64", name, QEMU_ARM) for name in ("neon-i8mm", "neon")]
CASES += [Case("windows-x86_64", name, WINE) for name in sets_for("Windows", "x86_64")]


class Program(NamedTuple):
    """A program that computes with the engine."""

    command: list[str]
    directory: Path

    def run(self, *arguments: str) -> bytes:
        """Return what the program prints."""
        # Wine's own files, and no messages about what it lacks.
        environment = {**os.environ, "WINEPREFIX": str(self.directory.parent / "wine"), "WINEDEBUG": "-all"}
        printed = self.directory / "printed"
        with printed.open("wb") as file:  # not a pipe, which Wine's server would keep open for seconds
            command = [*self.command, *arguments]
            subprocess.run(command, check=True, stdout=file, stderr=subprocess.DEVNULL, timeout=240, env=environment)
        return printed.read_bytes()


def missing(*programs: str) -> str | None:
    """Return the first of some programs that this machine lacks."""
    for program in programs:
        if not (importlib.util.find_spec("ziglang") if program == "zig" else shutil.which(program)):
            return program
    return None


def require(*programs: str) -> None:
    if program := missing(*programs):
        pytest.skip(f"no {program}")


def cases_to_try() -> list[Case]:
    """Return the cases that run here, and of those that lack the same program only the first, which is skipped."""
    cases, lacking = [], set()
    for case in CASES:
        program = missing(*case.needs)
        if program is None or program not in lacking:
            cases.append(case)
        lacking.add(program)
    return cases


def build(case: Case, directory: Path) -> Program:
    """Compile the program and the library that it is linked to, as the wheel has it."""
    for name, content in c_sources.source_files().items():
        (directory / name).write_bytes(content)
    target, instructions = TARGETS[case.target], INSTRUCTION_SETS[case.instructions]
    library = directory / f"libelmokit{SUFFIXES[target.system]}"
    main = directory / ("main.exe" if target.system == "Windows" else "main")
    if case.compiler == "gcc":
        command = [ARM_COMPILER]
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setenv("CC", ARM_COMPILER)
            c_sources.compile_sources(library, instructions)
    else:
        command = target.compiler()
        c_sources.compile_sources(library, instructions, target=target)
    rpath = [] if target.system == "Windows" else [f"-Wl,-rpath,{directory}"]
    command += [f"-I{directory}", "-o", str(main), str(MAIN), str(library), *rpath]
    subprocess.run(command, check=True)
    return Program([*case.runs_on, str(main)], directory)


@pytest.fixture(
    params=cases_to_try(), ids=lambda case: f"{case.target}-{case.instructions}-{case.compiler}", scope="module"
)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Program:
    case: Case = request.param
    require(*case.needs)
    built = build(case, tmp_path_factory.mktemp("built"))
    try:
        built.run("permitted")
    except subprocess.CalledProcessError:
        pytest.skip(f"this processor lacks {case.instructions}")
    return built


@pytest.fixture
def portable() -> Library:
    if compiler.load_library() is None:
        pytest.skip(compiler.why_unavailable())
    return compiler.build("portable", INSTRUCTION_SETS["portable"])


def run(program: Program, what: str, precision: str, counts: list[int], arrays: list[np.ndarray]) -> Floats:
    """Run the program on some numbers; return those that it writes."""
    parts = [np.array(counts, np.int64).tobytes()]
    for array in arrays:
        parts += [np.int64(array.nbytes).tobytes(), np.ascontiguousarray(array).tobytes()]
    path = program.directory / "numbers"
    path.write_bytes(b"".join(parts))
    return np.frombuffer(program.run(what, str(NAMES.index(precision)), str(path)), np.float32)  # type: ignore[arg-type]


# The last one is large enough for several threads.
SHAPES = [(1, 70, 40), (2, 300, 33), (3, 64, 16), (4, 513, 8), (21, 65, 50), (64, 520, 300)]


def test_products_equal_the_portable_ones(program: Program, portable: Library) -> None:
    generator = np.random.default_rng(0)
    for precision in PRECISIONS:
        for n_rows, n_inputs, n_outputs in SHAPES:
            inputs = generator.integers(-127, 128, (n_rows, n_inputs)).astype(np.float32)
            inputs[:, 0] = 127  # inputs that are rounded keep their values
            weight = generator.normal(size=(n_outputs, n_inputs)).astype(np.float32)
            expected = Matrix(weight, precision, portable)(inputs)
            found = run(program, "product", precision, [n_rows, n_inputs, n_outputs], [inputs, weight])
            np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=2e-3, rtol=1e-5)


def test_products_of_whole_numbers_are_exact(program: Program) -> None:
    generator = np.random.default_rng(1)
    for precision in PRECISIONS:
        for n_rows, n_inputs, n_outputs in SHAPES:
            inputs = generator.integers(-127, 128, (n_rows, n_inputs)).astype(np.float32)
            weight = generator.integers(-127, 128, (n_outputs, n_inputs)).astype(np.float32)
            inputs[:, 0] = weight[:, 0] = 127  # scales of 1
            if precision == "int7":  # for two neighbors, it is their sum that becomes 127
                weight = weight.clip(-63, 63)
                weight[:, 0] = 64
                weight[:, 1] = 63
            found = run(program, "product", precision, [n_rows, n_inputs, n_outputs], [inputs, weight])
            np.testing.assert_array_equal(found.reshape(n_rows, n_outputs), inputs @ weight.T)


def test_token_vectors_equal_the_portable_ones(program: Program, portable: Library) -> None:
    cnn = CharCNNConfig(((1, 3), (2, 40), (5, 70)), char_dim=5, n_chars=30, max_chars=12)
    config = BiLMConfig(cnn, projection_dim=9, hidden_dim=9)
    generator = np.random.default_rng(0)
    arrays = {
        name: (generator.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32)
        for name, shape in tensor_shapes(config).items()
        if name.startswith("token_layer.")
    }
    ids = generator.integers(0, 31, (20, 12))
    ids[:, 7:] = 30
    widths, n_filters = (np.array(column) for column in zip(*cnn.filters, strict=True))
    counts = [*ids.shape, cnn.n_chars + 1, cnn.char_dim, len(widths), cnn.n_highway, config.projection_dim]
    for precision in PRECISIONS:
        expected = TokenLayer(config, arrays, precision, portable)(ids)
        found = run(program, "tokens", precision, counts, [widths, n_filters, *arrays.values(), ids])
        # With dot products, inputs are rounded to bytes, too.
        within = 0.1 if precision in ("int8", "int7") else 1e-5
        np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=within, rtol=0)


def test_layers_equal_the_portable_ones(program: Program, portable: Library) -> None:
    config = lstm_config(50, 20, 2, bidirectional=True)
    generator = np.random.default_rng(0)
    words, start = generator.integers(0, 7, 15), random_state(config, 1)
    vectors = generator.normal(size=(7, 20)).astype(np.float32)
    lstm = random_lstm(portable, "float32", config)
    (expected,), _ = lstm.layers(NetworkInput(vectors, words, np.array([15]), start), range(3))
    arrays = [np.array(config.read_backward, np.int64), *random_arrays(config).values(), words, np.arange(3)]
    for precision in PRECISIONS:
        found = run(program, "lstm", precision, [15, 2, 2, 20, 50], [*arrays, vectors, *start])
        # Small layers are computed in float32, unless there are dot products.
        within = 0.2 if precision in ("int8", "int7") else 1e-5
        np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=within, rtol=0)


def test_a_library_knows_that_the_processor_lacks_its_instructions(tmp_path: Path) -> None:
    require("zig", "qemu-aarch64", "qemu-x86_64")
    old = {"linux-aarch64": ("qemu-aarch64", "-cpu", "cortex-a53", "-L", ARM_LIBRARIES)}
    old["linux-x86_64"] = ("qemu-x86_64", "-cpu", "Nehalem")
    for target, name, is_permitted in (
        ("linux-aarch64", "neon", True),
        ("linux-aarch64", "neon-dotprod", False),
        ("linux-aarch64", "neon-i8mm", False),
        ("linux-x86_64", "portable", True),
        ("linux-x86_64", "avx2", False),
        ("linux-x86_64", "avx512-bf16", False),
        ("linux-x86_64", "amx", False),
    ):
        directory = tmp_path / name
        directory.mkdir()
        program = build(Case(target, name, old[target]), directory)
        environment = {**os.environ, "LD_BIND_NOW": "1"}
        found = subprocess.run([*program.command, "permitted"], env=environment, capture_output=True, timeout=60)
        assert found.returncode == (0 if is_permitted else 1), (name, found.stderr)


DECLARED = set(parse_header(c_sources.header_text()).functions)


@pytest.mark.parametrize("target", TARGETS)
def test_libraries_export_the_functions_of_the_headers_and_need_those_of_the_system(
    target: str, tmp_path: Path
) -> None:
    require("zig")
    lief = pytest.importorskip("lief", reason="no lief")
    system, machine = TARGETS[target].system, TARGETS[target].machine
    for name in sets_for(system, machine):
        library = tmp_path / f"{name}{SUFFIXES[system]}"
        c_sources.compile_sources(library, INSTRUCTION_SETS[name], target=TARGETS[target])
        read = lief.parse(str(library))
        if system == "Linux":
            exported = {str(symbol.name) for symbol in read.exported_symbols}
            needed = {library.partition(".so")[0] for library in read.libraries}
            allowed = {"libc", "libm", "libpthread", "ld-linux-x86-64", "ld-linux-aarch64"}
        elif system == "Windows":
            exported = {entry.name for entry in read.get_export().entries}
            needed = {entry.name.lower().partition("-l1")[0].removesuffix(".dll") for entry in read.imports}
            allowed = {"kernel32", "ntdll"} | {n for n in needed if n.startswith("api-ms-win-crt-")}
        else:
            exported = {entry.symbol.name.removeprefix("_") for entry in read.dyld_info.exports}
            exported -= {"_mh_dylib_header", "__dso_handle"}  # the linker's own
            needed = {each.name for each in read.libraries if each.command != lief.MachO.LoadCommand.TYPE.ID_DYLIB}
            allowed = {"/usr/lib/libSystem.B.dylib"}
            assert machine != "aarch64" or read.has_code_signature  # else macOS kills the process
            bound = {str(binding.library.name) for binding in read.bindings if binding.has_library}
            assert bound == allowed
        assert {name.removeprefix("elmokit_") for name in exported} == DECLARED
        assert needed <= allowed
