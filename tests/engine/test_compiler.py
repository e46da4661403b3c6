from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.engine import c_sources, compiler, instruction_sets
from elmokit.engine.c_sources import compile_sources, compiler_command, library_key
from elmokit.engine.config import BiLMConfig
from elmokit.engine.instruction_sets import INSTRUCTION_SETS, InstructionSet
from elmokit.engine.library import Library
from elmokit.engine.lstm import LSTM
from elmokit.engine.network import NetworkInput
from elmokit.engine.precision import VARIABLE
from elmokit.engine.softmax import Matrix
from elmokit.engine.state import State
from elmokit.errors import ElmoError
from elmokit.network.lstm_module import LSTMStack, LSTMState
from elmokit.storage.cache import cache_dir
from tests.helpers.instruction_sets import machine_library
from tests.helpers.rounding import Rounded, assert_rounded

RUN = subprocess.run


@pytest.fixture(scope="module")
def compiled() -> Path:
    """The library in the cache of this machine, compiled if these sources and this compiler are new to it."""
    name = machine_library().instructions
    instructions = INSTRUCTION_SETS[name]
    try:
        compiler._compiled(name, instructions)
    except ElmoError as error:
        pytest.skip(str(error))
    return cache_dir() / "kernels" / f"{library_key(instructions, compiler_command())}.so"


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Nothing built yet; the cache is an empty folder, and the package carries no library."""
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path))
    monkeypatch.setattr(compiler, "PACKAGED_LIBRARIES", tmp_path / "package")
    forget_library()
    yield tmp_path
    monkeypatch.undo()
    forget_library()


@pytest.fixture
def built(fresh: Path, compiled: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library in the cache, and a compiler that takes no time."""

    def compile_quickly(command: Sequence[str], **_: object) -> None:
        shutil.copy(compiled, command[command.index("-o") + 1])

    monkeypatch.setattr(subprocess, "run", compile_quickly)
    assert compiler.load_library() is not None
    forget_library()
    (library,) = (fresh / "kernels").iterdir()
    return library


@pytest.fixture
def packaged(fresh: Path, compiled: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library in the package, as a wheel carries it, and no compiler."""
    monkeypatch.setenv("CC", "false")
    name = instruction_sets.available_sets()[0]
    (fresh / "package").mkdir()
    library = c_sources.packaged_name(name, instruction_sets.INSTRUCTION_SETS[name])
    return Path(shutil.copy(compiled, fresh / "package" / f"{library}.so"))


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that libraries are loaded from."""
    paths: list[Path] = []

    def load(path: Path, *arguments: str) -> Library:
        paths.append(path.resolve())
        return Library(path, *arguments)

    monkeypatch.setattr(compiler, "Library", load)
    return paths


def forget_library() -> None:
    compiler._load.cache_clear()
    compiler.load_library.cache_clear()
    compiler._packaged.cache_clear()
    compiler._compiled.cache_clear()


@settings(max_examples=25)
@given(rows=st.integers(1, 210), n_in=st.integers(1, 600), n_out=st.integers(1, 150))
def test_the_product_is_the_product(rows: int, n_in: int, n_out: int) -> None:
    library = machine_library()
    torch.manual_seed(n_in)
    inputs, weight = torch.randn(rows, n_in), torch.randn(n_out, n_in)
    found = torch.from_numpy(Matrix(weight.numpy(), "float32", library)(inputs.numpy()))
    assert_rounded(found, Rounded.exact(inputs).product(Rounded.exact(weight)))


def test_the_activations_are_good_to_a_few_units_in_the_last_place() -> None:
    library = machine_library()
    points = [np.linspace(-30, 30, 40_000), np.logspace(-30, 1, 4_000), -np.logspace(-30, 1, 4_000), [0.0, 1e4, -1e4]]
    x = np.concatenate(points).astype(np.float32)
    wide = np.full_like(x, 60)

    def cells(*gates: np.ndarray) -> np.ndarray:
        """Return the cells after a step from a state of zeros, whose gate sums are the bias: i, g, f, o."""
        config = BiLMConfig(
            None, n_words=1, projection_dim=1, hidden_dim=len(x), n_layers=1, cell_clip=None, bidirectional=False
        )
        arrays = {
            "weight": np.zeros((4 * len(x), 2)),
            "bias": np.concatenate(gates),
            "projection": np.zeros((1, len(x))),
        }
        lstm = LSTM(config, {f"directions.0.layers.0.{name}": a for name, a in arrays.items()}, "float32", library)
        one = np.zeros(1, np.int64)
        start = State.zero(config, 1)
        _, state = lstm.layers(NetworkInput(np.zeros((1, 1), np.float32), one, one + 1, start), [], returns_state=True)
        assert state is not None
        return state.cell.reshape(-1)

    # The forget gate is shut. With i open, the cell becomes tanh(g); with tanh(g) at 1, it becomes sigmoid(i).
    for found, expected in (
        (cells(wide, x, -wide, wide), np.tanh(x.astype(np.float64))),
        (cells(x, wide, -wide, wide), torch.from_numpy(x).double().sigmoid().numpy()),
    ):
        shown = (abs(expected) > 1e-37) | (expected == 0)
        assert (abs(found - expected) / abs(expected).clip(min=1e-30))[shown].max() < 4e-7


def test_the_library_is_compiled_once_and_then_found(built: Path) -> None:
    written = built.stat().st_mtime_ns
    assert compiler.load_library() is not None
    assert built.stat().st_mtime_ns == written
    assert list(built.parent.iterdir()) == [built]
    assert stat.S_IMODE(built.parent.stat().st_mode) == 0o700


def test_changed_sources_are_compiled_anew(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {**c_sources.source_files(), "lstm.c": b""}
    monkeypatch.setattr(c_sources, "source_files", lambda: sources)
    monkeypatch.setattr(compiler, "header_text", c_sources.header_text)
    assert compiler.load_library() is not None
    assert len(list(built.parent.iterdir())) == 2


def linked(directory: Path) -> Path:
    """Replace a directory by a link to it at another place, and return that."""
    moved = directory.rename(directory.with_name("elsewhere"))
    directory.symlink_to(moved)
    return moved


WRITERS: dict[str, Callable[[Path], object]] = {
    "all users": lambda directory: directory.chmod(0o702),
    "all users, who cannot replace files of others": lambda directory: directory.chmod(0o1777),
    "a group": lambda directory: directory.chmod(0o770),
    "all users, to a parent": lambda directory: directory.parent.chmod(0o702),
    "a group, to a parent": lambda directory: directory.parent.chmod(0o770),
    "all users, behind a link": lambda directory: linked(directory).chmod(0o702),
    "another user": lambda directory: os.chown(directory, 54321, -1),
    "another user, to a parent": lambda directory: os.chown(directory.parent, 54321, -1),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_directory_that_others_can_write_to_is_not_used(writer: str, built: Path, loaded: list[Path]) -> None:
    if writer.startswith("another") and os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    WRITERS[writer](built.parent)
    with pytest.warns(UserWarning, match=f"for this process only.*{built.parents[1]}"):
        assert compiler.load_library() is not None
    (path,) = loaded
    assert path != built.resolve()
    assert not path.parent.exists()


def test_a_library_that_cannot_be_loaded_is_compiled_for_the_process(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = built.parents[1] / "other"
    (other / "kernels").mkdir(mode=0o700, parents=True)
    (other / "kernels" / built.name).write_bytes(b"\x7fELF")
    monkeypatch.setenv("ELMOKIT_CACHE", str(other))
    with pytest.warns(UserWarning, match=f"for this process only.*{other}"):
        assert compiler.load_library() is not None


def test_several_processes_may_compile_at_once(fresh: Path, compiled: Path) -> None:
    slow = fresh / "cc"
    slow.write_text(f"""#!/bin/sh
while [ "$1" != -o ]; do shift; done
head -c 5000 '{compiled}' > "$2"; sleep 0.5; cp '{compiled}' "$2"
""")
    slow.chmod(0o700)
    code = f"""
from pathlib import Path
from elmokit.engine import compiler
compiler.PACKAGED_LIBRARIES = Path({str(fresh / "package")!r})
assert compiler.load_library() is not None, compiler.why_unavailable()
"""
    environment = {**os.environ, "ELMOKIT_CACHE": str(fresh / "cache"), "CC": str(slow)}
    command = [sys.executable, "-W", "error", "-c", code]
    processes = [subprocess.Popen(command, env=environment) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len(list((fresh / "cache" / "kernels").iterdir())) == 1


@pytest.mark.parametrize("command", ["false", "no-such-compiler-anywhere", "cc '"])
def test_without_a_compiler_the_layers_still_work(command: str, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", command)
    assert compiler.load_library() is None
    assert compiler.why_unavailable()
    torch.manual_seed(0)
    stack = LSTMStack(2, 6, 3, 3.0, 3.0, skip_connections=True, dropout=0.0).eval()
    stack.reset_parameters()
    inputs, states = torch.randn(4, 5, 3), [LSTMState(torch.zeros(4, 3), torch.zeros(4, 6))] * 2
    with torch.no_grad():
        outputs, _ = stack(inputs, states)
        monkeypatch.setenv(VARIABLE, "reference")
        torch.testing.assert_close(outputs, stack(inputs, states)[0])


def test_the_library_of_the_package_needs_neither_compiler_nor_cache(packaged: Path) -> None:
    library = compiler.load_library()
    assert library is not None
    assert library.instructions == instruction_sets.available_sets()[0]
    assert list(packaged.parents[1].iterdir()) == [packaged.parent]


def test_a_library_of_other_sources_is_not_loaded(packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_sources, "source_files", lambda: {"changed.c": b""})
    assert compiler.load_library() is None


def test_the_sources_can_be_compiled_where_no_other_package_is_installed() -> None:
    # The build hook of the wheel imports this module in an environment without PyTorch.
    code = "import elmokit.engine.c_sources as c; assert 'lstm.c' in c.source_files()"
    root = Path(c_sources.__file__).parents[2]
    subprocess.run([sys.executable, "-S", "-c", code], check=True, cwd=root, env={"PYTHONPATH": str(root)})


def test_with_a_cache_that_cannot_be_written_the_library_is_compiled_for_the_process(
    built: Path, loaded: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = built.parents[1] / "file"
    file.write_text("")
    monkeypatch.setenv("ELMOKIT_CACHE", str(file))
    with pytest.warns(UserWarning, match="for this process only.*File exists"):
        assert compiler.load_library() is not None
    assert not loaded[0].exists()


@pytest.mark.parametrize("cache", ["~no-such-user/cache", "/dev/null/cache"])
def test_a_library_of_the_package_is_used_whatever_the_cache_directory(
    cache: str, packaged: Path, loaded: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELMOKIT_CACHE", cache)
    assert compiler.load_library() is not None
    assert loaded == [packaged]


def test_any_library_of_the_package_is_preferred_to_compiling(packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The package has no library of the best set: for example, the wheel was built for a system without it.
    best = instruction_sets.available_sets()[0]
    monkeypatch.setitem(instruction_sets.INSTRUCTION_SETS, "better", InstructionSet(None, (), ("-DBETTER",)))
    monkeypatch.setattr(instruction_sets, "available_sets", lambda: ["better", best])
    monkeypatch.setattr(compiler, "_compiled", lambda *_: pytest.fail("compiled"))
    library = compiler.load_library()
    assert library is not None
    assert library.instructions == best


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_on_other_systems_nothing_is_compiled(system: str, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    assert compiler.load_library() is None
    assert "on Linux only" in compiler.why_unavailable()


def test_an_instruction_set_that_the_compiler_rejects_is_replaced_by_the_next(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, flag = subprocess.run, "-march=none-of-ours"
    monkeypatch.setattr(subprocess, "run", lambda c, **more: (RUN if flag in c else copy)(c, **more))
    monkeypatch.setattr(instruction_sets, "available_sets", lambda: ["unknown", "portable"])
    monkeypatch.setitem(instruction_sets.INSTRUCTION_SETS, "unknown", InstructionSet(None, (), (flag,)))
    library = compiler.load_library()
    assert library is not None
    assert library.instructions == "portable"
    assert compiler.why_unavailable() == ""
    monkeypatch.setattr(instruction_sets, "available_sets", lambda: ["unknown"])
    forget_library()
    assert compiler.load_library() is None
    assert "rejected the kernels" in compiler.why_unavailable()


def test_a_library_has_no_directory_of_the_machine_that_compiles_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The linker would write it into the library, and conda replaces it at installation: the library's hash changes.
    monkeypatch.setenv("LD_RUN_PATH", "/build/lib")
    seen = tmp_path / "seen"
    stand_in = tmp_path / "cc"
    stand_in.write_text(f"#!/bin/sh\nenv > '{seen}'\n", encoding="utf-8")
    stand_in.chmod(0o755)
    monkeypatch.setenv("CC", str(stand_in))
    compile_sources(tmp_path / "library.so", INSTRUCTION_SETS["portable"])
    variables = seen.read_text(encoding="utf-8")
    assert "TMPDIR=" in variables
    assert "LD_RUN_PATH" not in variables
