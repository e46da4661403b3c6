"""What is promised is tested: the pages that promise most name the tests that hold each promise, and these exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

PAGES = ("SECURITY.md", "docs/how-to/resume.md")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
UNSAFE = {"eval", "exec", "execfile", "compile"}
UNSAFE_MODULES = {"pickle", "marshal", "shelve", "joblib", "dill", "cloudpickle", "yaml"}


def rows(page: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the promises of a page and the tests that it names for each."""
    proof = (ROOT / page).read_text(encoding="utf-8").partition("\n## Proof\n")[2]
    lines = [line for line in proof.splitlines() if line.startswith("|")][2:]
    return [(cells[1].strip(), TEST.findall(cells[2])) for cells in (line.split("|") for line in lines)]


@pytest.mark.parametrize("page", PAGES)
def test_each_promise_is_on_the_page_and_names_tests_that_exist(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").partition("\n## Proof\n")[0].split())
    assert len(rows(page)) > 20
    for promise, tests in rows(page):
        assert promise in text, f"{page} does not say {promise!r}"
        assert tests, f"{page} names no test of {promise!r}"
        for path, name in tests:
            functions = {
                node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)
            }
            assert name in functions, f"{path} has no {name}, which {page} names for {promise!r}"


def calls(path: Path) -> list[tuple[int, str, dict[str, ast.expr]]]:
    """Return the line, the name and the keyword arguments of each call in a file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
            found.append((node.lineno, ast.unparse(node.func), keywords))
    return found


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
    path = tmp_path / "code.py"
    path.write_text(
        "pickle.load(f)\neval(x)\ntorch.load(f)\ntorch.load(f, weights_only=True)\nmodel.eval()\nnp.load(f)\n"
    )
    assert [line for line, name, keywords in calls(path) if is_unsafe(name, keywords)] == [1, 2, 3]
