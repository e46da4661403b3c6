"""The documentation site: it builds without warnings, search finds what people type, and its pages can be read."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    ran = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr  # warnings are errors
    return folder


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_search_finds_the_page_that_answers_what_people_type(site: Path) -> None:
    assert runpy.run_path(str(ROOT / "docs" / "check_search.py"))["problems"](site) == []


def test_llms_txt_lists_every_section_with_pages_that_exist(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# elmokit\n\n> ")
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", text, re.MULTILINE)
    assert {"how-to/embed-corpus/", "reference/vector-files/", "results/speed/"} <= set(links)
    assert not [link for link in links if not (site / link / "index.html").is_file()]
    assert "# Embed a large corpus" in (site / "llms-full.txt").read_text(encoding="utf-8")
