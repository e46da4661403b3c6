"""Nothing in the package can run code from a file that it reads."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.helpers.paths import ROOT
from tests.helpers.syntax import nodes_of

UNSAFE = {"eval", "exec", "execfile", "compile"}
UNSAFE_MODULES = {"pickle", "marshal", "shelve", "joblib", "dill", "cloudpickle", "yaml"}


def calls(path: Path) -> list[tuple[int, str, dict[str, ast.expr]]]:
    """Return the line, the name and the keyword arguments of each call in a file."""
    found = []
    for node in nodes_of(path):
        if isinstance(node, ast.Call):
            keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
            found.append((node.lineno, _dotted(node.func), keywords))
    return found


def _dotted(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return f"{_dotted(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def is_unsafe(name: str, keywords: dict[str, ast.expr]) -> bool:
    """Check whether a call could run code that a file contains."""
    module, _, function = name.rpartition(".")
    if name in UNSAFE or (module in UNSAFE_MODULES and function in ("load", "loads", "Unpickler", "open")):
        return True
    if name == "torch.load":
        only = keywords.get("weights_only")
        return not (isinstance(only, ast.Constant) and only.value is True)
    return function == "load" and "allow_pickle" in keywords


def test_nothing_in_the_package_can_run_code_from_a_file() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "elmokit").rglob("*.py"))
        for line, name, keywords in calls(path)
        if is_unsafe(name, keywords)
    ]
    assert not found


def test_calls_that_could_run_code_are_recognized(tmp_path: Path) -> None:
    path, lines = tmp_path / "code.py", ("pickle.load(f)", "eval(x)", "torch.load(f)", "model.eval()", "np.load(f)")
    path.write_text("\n".join([*lines, "torch.load(f, weights_only=True)"]))
    assert [line for line, name, keywords in calls(path) if is_unsafe(name, keywords)] == [1, 2, 3]
