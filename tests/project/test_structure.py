"""The structure that readers rely on: one name for one thing, and few modules behind the main class."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import elmokit
from tests.helpers.syntax import tree_of

PACKAGE = Path(elmokit.__file__).parent
# Classes in compat keep the names of the programs that they replace, such as ``Elmo`` and ``ScalarMix``. Those in
# integrations follow the naming of the library, such as ``ElmoConfig`` for a config of transformers.
FOREIGN = ("compat", "integrations")


def public_definitions(kind: type[ast.ClassDef] | type[ast.FunctionDef]) -> dict[str, list[str]]:
    """Return the modules that define each public top-level class or function."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        if inside.parts[0] in FOREIGN:
            continue
        for node in tree_of(path).body:
            if isinstance(node, kind) and not node.name.startswith("_"):
                found[node.name].append(str(inside))
    return found


def test_no_two_public_classes_share_a_name() -> None:
    assert not {name: files for name, files in public_definitions(ast.ClassDef).items() if len(files) > 1}


def test_importing_elmo_loads_the_network_and_not_the_readers_of_formats() -> None:
    code = "import sys; from elmokit import Elmo; print(*[name for name in sys.modules if name.startswith('elmokit')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = ran.stdout.split()
    assert "elmokit.embedding.elmo" in loaded
    assert "elmokit.formats.open" not in loaded


def test_few_files_run_until_a_first_vector_and_no_pytorch() -> None:
    code = """
import sys
from elmokit import Elmo
Elmo.from_pretrained().embed([["Hello", "world"]])
assert not {"torch", "h5py"} & sys.modules.keys()
print(*[module.__file__ for name, module in sys.modules.items() if name.startswith("elmokit")], sep="\\n")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    sizes = [len(Path(file).read_text(encoding="utf-8").splitlines()) for file in ran.stdout.splitlines()]
    assert sum(size > 0 for size in sizes) <= 35  # without the empty files of subpackages
    assert sum(sizes) <= 6000
