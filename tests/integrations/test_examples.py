"""The examples of the integrations run and are short."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.hosts import MODULES, need_host
from tests.helpers.paths import ROOT

PAGES = ROOT / "docs" / "how-to" / "integrations"
# A script of the same name as a library could not import it.
EXAMPLES = {
    path.stem.removeprefix("with-"): path for path in sorted((ROOT / "examples" / "integrations").glob("with-*.py"))
}


@pytest.mark.slow
@pytest.mark.parametrize("host", EXAMPLES)
def test_example_runs_and_is_short(host: str, tmp_path: Path) -> None:
    need_host(host)
    path = EXAMPLES[host]
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
    shutil.copy(ROOT / "examples" / "sentences.txt", tmp_path)
    # As a process of its own, because that is how users run it: its folder is then searched for modules first.
    subprocess.run([sys.executable, str(path)], check=True, cwd=tmp_path)


RECIPES = {"dataframes", "keras", "lm-eval", "mcp"}
"""Hosts for which a page has a recipe in place of a class of elmokit's."""


def test_every_host_has_an_example_a_page_and_a_test() -> None:
    assert set(EXAMPLES) == set(MODULES) - RECIPES
    assert {path.stem for path in PAGES.glob("*.md")} - {"index"} == set(MODULES)
    tests = {path.stem.removeprefix("test_").replace("_", "-") for path in Path(__file__).parent.glob("test_*.py")}
    # A host can have further tests, such as test_transformers_tokenizer.
    tests = {next((host for host in MODULES if test.startswith(f"{host}-")), test) for test in tests}
    others = {"examples", "model-structure", "npm", "serve", "serve-explorer", "serve-in-browser"}  # not hosts
    assert tests - others == set(MODULES) - RECIPES | {"lm-eval", "mcp"}
