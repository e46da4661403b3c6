"""The examples of the integrations run and are short."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest

from tests.helpers.hosts import MODULES, need_host

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "integrations"
EXAMPLES = sorted((ROOT / "examples" / "integrations").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_is_short(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_host(path.stem)
    assert len(path.read_text(encoding="utf-8").splitlines()) < 60
    shutil.copy(ROOT / "examples" / "sentences.txt", tmp_path)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")


def test_every_host_has_an_example_a_page_and_a_test() -> None:
    assert {path.stem for path in EXAMPLES} == set(MODULES)
    assert {path.stem for path in PAGES.glob("*.md")} == set(MODULES)
    tests = {path.stem.removeprefix("test_").replace("_", "-") for path in Path(__file__).parent.glob("test_*.py")}
    assert tests - {"examples"} == set(MODULES)
