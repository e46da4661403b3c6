from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from elmokit.engine import c_sources, compiler, instruction_sets
from elmokit.engine.c_sources import compile_sources, compiler_command, library_key
from elmokit.engine.instruction_sets import INSTRUCTION_SETS, InstructionSet
from elmokit.errors import ElmoError
from elmokit.storage.cache import cache_dir
from tests.helpers.instruction_sets import machine_library

RUN = subprocess.run


@pytest.fixture(scope="module", autouse=True)
def automatic_choice() -> Iterator[None]:
    """Leave the choice of the instruction set to elmokit, whichever the tests run with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(instruction_sets.VARIABLE, raising=False)
        forget_library()
        yield
    forget_library()


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


def forget_library() -> None:
    compiler._load.cache_clear()
    compiler._packaged.cache_clear()
    compiler._compiled.cache_clear()


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


def damage(library: Path) -> None:
    """Write a file in the place of a library, which this process still has open."""
    library.unlink()
    library.write_bytes(b"\x7fELF")


UNUSABLE: dict[str, Callable[[Path], object]] = {
    "a file is in its place": lambda directory: (shutil.rmtree(directory), directory.write_text("")),
    "all users can write to a parent": lambda directory: directory.parent.chmod(0o702),
    "a group can write to a parent": lambda directory: directory.parent.chmod(0o770),
    "another user has it": lambda directory: os.chown(directory, 54321, -1),
    "another user has a parent": lambda directory: os.chown(directory.parent, 54321, -1),
}


@pytest.mark.parametrize("why", UNUSABLE)
def test_a_cache_that_cannot_be_used_is_left_alone_with_a_warning(why: str, built: Path) -> None:
    if why.startswith("another") and os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    UNUSABLE[why](built.parent)
    with pytest.warns(UserWarning, match=f"for this process only.*{built.parents[1]}") as caught:
        assert compiler.load_library() is not None
    assert caught[0].filename == __file__


@pytest.mark.parametrize("mode", [0o770, 0o1777])
def test_a_directory_of_ours_that_was_open_to_others_is_closed_and_its_libraries_removed(
    built: Path, mode: int
) -> None:
    of_another_process = built.parent / "tmp"
    of_another_process.mkdir()
    damage(built)
    built.parent.chmod(mode)
    assert compiler.load_library() is not None
    assert set(built.parent.iterdir()) == {built, of_another_process}
    assert stat.S_IMODE(built.parent.stat().st_mode) == 0o700


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("system", "command", "reason"),
    [
        ("Linux", "false", "rejected the kernels"),
        ("Linux", "no-such-compiler-anywhere", "no-such-compiler-anywhere"),
        ("Linux", "cc '", "No closing quotation"),
        ("Darwin", "cc", "only compiles them on Linux"),
        ("Windows", "cc", "only compiles them on Linux"),
    ],
)
def test_without_a_library_there_is_a_reason(
    system: str, command: str, reason: str, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setenv("CC", command)
    assert compiler.load_library() is None
    assert reason in compiler.why_unavailable()


@pytest.mark.parametrize("cache", [None, "~no-such-user/cache", "/dev/null/cache"])
def test_the_library_of_the_package_needs_neither_compiler_nor_cache(
    cache: str | None, packaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cache is not None:
        monkeypatch.setenv("ELMOKIT_CACHE", cache)
    library = compiler.load_library()
    assert library.instructions == instruction_sets.available_sets()[0]
    assert list(packaged.parents[1].iterdir()) == [packaged.parent]
    forget_library()
    monkeypatch.setattr(c_sources, "source_files", lambda: {"changed.c": b""})
    assert compiler.load_library() is None  # that of other sources is not loaded


def test_the_sources_can_be_compiled_where_no_other_package_is_installed() -> None:
    # The build hook of the wheel imports this module in an environment without PyTorch.
    code = "import elmokit.engine.c_sources as c; assert 'lstm.c' in c.source_files()"
    root = Path(c_sources.__file__).parents[2]
    subprocess.run([sys.executable, "-S", "-c", code], check=True, cwd=root, env={"PYTHONPATH": str(root)})


def test_any_library_of_the_package_is_preferred_to_compiling(packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The package has no library of the best set: for example, the wheel was built for a system without it.
    best = instruction_sets.available_sets()[0]
    monkeypatch.setitem(instruction_sets.INSTRUCTION_SETS, "better", InstructionSet(None, (), ("-DBETTER",)))
    monkeypatch.setattr(instruction_sets, "available_sets", lambda: ["better", best])
    monkeypatch.setattr(compiler, "_compiled", lambda *_: pytest.fail("compiled"))
    library = compiler.load_library()
    assert library.instructions == best


def test_an_instruction_set_that_the_compiler_rejects_is_replaced_by_the_next(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, flag = subprocess.run, "-march=none-of-ours"
    monkeypatch.setattr(subprocess, "run", lambda c, **more: (RUN if flag in c else copy)(c, **more))
    monkeypatch.setattr(instruction_sets, "available_sets", lambda: ["unknown", "portable"])
    monkeypatch.setitem(instruction_sets.INSTRUCTION_SETS, "unknown", InstructionSet(None, (), (flag,)))
    library = compiler.load_library()
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
