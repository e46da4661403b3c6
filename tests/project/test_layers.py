"""The structure of the package: layers, and one name for one thing."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import elmokit

PACKAGE = Path(elmokit.__file__).parent
ROWS = [
    {"version"},
    {"errors", "former_names"},
    {"storage"},
    {"config"},
    {"engine"},
    {"text"},
    {"network"},
    {"pretrained"},
    {"formats"},
    {"embedding"},
    {"lm"},
    {"evaluation"},
    {"training"},
    {"tasks"},
    {"compat", "integrations", "serve"},
    {"cli"},
    {"__init__", "__main__"},
]
ROW = {name: row for row, names in enumerate(ROWS) for name in names}
COMPATIBLE = ("compat", "integrations")
"""Classes in compat keep the names of the programs that they replace, such as ``Elmo`` and ``ScalarMix``, and those in
integrations follow the library, such as ``ElmoConfig`` for a config of transformers."""
TWICE = {"bilm.py"}  # the old API has this name
"""Names that several files of the package share."""


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def forgotten_trees() -> Iterator[None]:
    """Forget the syntax trees afterwards: every later garbage collection would search their million nodes."""
    yield
    tree_of.cache_clear()


def statements_of(path: Path) -> list[ast.AST]:
    """Return all statements of a file, inner ones too. They are far fewer than its nodes."""
    found: list[ast.AST] = [*tree_of(path).body]
    for node in found:  # it grows meanwhile
        for inside in ("body", "handlers", "orelse", "finalbody", "cases"):
            found += getattr(node, inside, [])
    return found


def layer_member(module: str) -> str:
    """Return the top-level module or folder that ``module`` belongs to; the package itself is ``__init__``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported_modules(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the name and the line of every import of elmokit in a file: late ones and those for types, too."""
    for node in statements_of(path):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            # A name of a package may be a module.
            is_package = PACKAGE.parent.joinpath(*node.module.split(".")).is_dir()
            modules = [f"{node.module}.{name.name}" if is_package else node.module for name in node.names]
        yield from ((module, node.lineno) for module in modules if module.split(".")[0] == "elmokit")


def imports() -> set[tuple[str, str, str]]:
    """Return (importer, imported, location) for every import of elmokit inside elmokit."""
    return {
        (path.relative_to(PACKAGE).parts[0].removesuffix(".py"), layer_member(module), f"{path}:{line}")
        for path in PACKAGE.rglob("*.py")
        for module, line in imported_modules(path)
    }


def test_every_module_has_a_layer() -> None:
    names = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
    assert names <= set(ROW)


def test_imports_point_down_or_stay_in_their_folder() -> None:
    wrong = [
        f"{where}: {here} (row {ROW[here]}) imports {there} (row {ROW[there]})"
        for here, there, where in imports()
        if here != there and ROW[there] >= ROW[here]
    ]
    assert not wrong, "\n".join(sorted(wrong))


def test_no_modules_import_each_other_in_a_circle() -> None:
    files = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    graph = {name: {module for module, _ in imported_modules(path)} & files.keys() for name, path in files.items()}
    list(TopologicalSorter(graph).static_order())  # a circle is an error that names its modules


def test_subpackage_init_files_are_empty() -> None:
    for path in PACKAGE.glob("*/__init__.py"):
        assert not path.read_text(encoding="utf-8").strip(), path


def test_a_name_of_a_file_says_where_one_is() -> None:
    names = Counter(path.name for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    assert {name for name, n in names.items() if n > 1} <= TWICE


def test_no_two_public_classes_share_a_name() -> None:
    names = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in COMPATIBLE
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not {name for name, n in names.items() if n > 1}


def test_a_first_vector_needs_neither_pytorch_nor_the_readers_of_formats() -> None:
    code = """
import sys
import elmokit
from elmokit import Elmo
assert "elmokit.formats.open" not in sys.modules
Elmo.from_pretrained().embed([["Hello", "world"]])
assert not {"torch", "h5py"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
