"""The syntax trees of source files, each parsed once for all tests of a process."""

from __future__ import annotations

import ast
import functools
from pathlib import Path


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of the syntax tree of a file."""
    return list(ast.walk(tree_of(path)))


def statements_of(path: Path) -> list[ast.AST]:
    """Return all statements of a file, inner ones too. They are far fewer than its nodes."""
    found: list[ast.AST] = [*tree_of(path).body]
    for node in found:  # it grows meanwhile
        for inside in ("body", "handlers", "orelse", "finalbody", "cases"):
            found += getattr(node, inside, [])
    return found
