"""The map of the house: imports point down its rows or stay in their folder."""

from __future__ import annotations

import ast
from pathlib import Path

import elmokit

PACKAGE = Path(elmokit.__file__).parent
ROWS = [
    {"errors", "files", "configs", "hdf5", "figures"},
    {"nn", "text"},
    {"bilm"},
    {"weights", "long_text"},
    {"embedder"},
    {"train", "tasks", "corpus", "probe", "serve", "integrations", "compat"},
    {"cli", "__init__", "__main__"},
]
ROW = {room: row for row, rooms in enumerate(ROWS) for room in rooms}
DRAWN_EXCEPTIONS = {
    ("probe", "corpus"),
    ("serve", "corpus"),
    ("__main__", "cli"),
    ("files", "errors"),
    ("configs", "errors"),
    ("figures", "errors"),
    ("figures", "files"),
}


def room_of(module: str) -> str:
    """The room of ``elmokit.room...``; the package itself is ``__init__``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports() -> set[tuple[str, str, str]]:
    """(importing room, imported room, where) for every import of elmokit inside elmokit, late ones too."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        here = inside.parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [name.name for name in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                modules = [node.module]
                if node.module == "elmokit":
                    modules = [f"elmokit.{name.name}" for name in node.names]
            else:
                continue
            found |= {(here, room_of(m), f"{inside}:{node.lineno}") for m in modules if m.split(".")[0] == "elmokit"}
    return found


def test_every_room_of_the_package_is_on_the_map() -> None:
    rooms = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms - {"__pycache__", "models", "py.typed"} <= set(ROW)


def test_imports_point_down_or_stay_in_their_folder() -> None:
    wrong = [
        f"{where}: {here} (row {ROW[here]}) imports {there} (row {ROW[there]})"
        for here, there, where in imports()
        if here != there and ROW[there] >= ROW[here] and (here, there) not in DRAWN_EXCEPTIONS
    ]
    assert not wrong, "\n".join(sorted(wrong))


def test_no_import_is_relative() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}:{node.lineno}"


def test_subpackage_init_files_are_empty() -> None:
    for path in PACKAGE.glob("*/__init__.py"):
        assert not path.read_text(encoding="utf-8").strip(), path
