"""Nothing uses a private name of another library: it may change in any release."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.syntax import nodes_of, tree_of

FILES = [file for folder in ("elmokit", "recipes", "examples") for file in sorted((ROOT / folder).rglob("*.py"))]
OURS = ("elmokit", "tests", "__future__", "_typeshed")  # the last one is read by type checkers only


DOCUMENTED = {"_asdict", "_exit", "_fields", "_jsonnet", "_replace"}
"""Public in spite of their names: of named tuples, of ``os``, and the module of the package jsonnet."""

WITHOUT_ANOTHER = {
    "_model": "thinc: what a wrapper of a PyTorch module wraps",
    "_parameters": "torch: a short sentence would wait for the loops of parameters()",
    "_modules": "torch: likewise, of modules()",
    "_tokenizer": "transformers: to replace the Rust tokenizer, which backend_tokenizer only reads",
}
"""Private names for which the library has no public way, or a much slower one."""


def is_private(name: str) -> bool:
    known = name in DOCUMENTED or name in WITHOUT_ANOTHER
    return name.startswith("_") and not name.endswith("__") and not known


def own_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a file defines: functions, classes, variables, and attributes of ``self``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def private_names(path: Path, ours: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of every private module, class, function or attribute that is not among ``ours``."""
    libraries: set[str] = set()  # the names under which the file knows what it imports
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names = [(alias.name, alias.asname or alias.name.split(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(f"{node.module}.{alias.name}", alias.asname or alias.name) for alias in node.names]
        else:
            continue
        for name, known in names:
            if name.split(".")[0] not in OURS:
                libraries.add(known)
                if any(map(is_private, name.split("."))):
                    yield node.lineno, name
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            root = node.value
            while isinstance(root, ast.Attribute | ast.Call):
                root = root.value if isinstance(root, ast.Attribute) else root.func
            is_of_library = isinstance(root, ast.Name) and root.id in libraries
            if is_of_library or node.attr not in ours:
                yield node.lineno, ast.unparse(node)


@pytest.mark.slow
def test_no_private_name_of_a_library_is_used() -> None:
    ours = {name for path in FILES for name in own_names(tree_of(path))}
    found = [f"{path}:{line}: {name}" for path in FILES for line, name in private_names(path, ours)]
    assert not found, "\n".join(found)
