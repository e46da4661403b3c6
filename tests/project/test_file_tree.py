"""The list of files in CONTRIBUTING.md is that of the package, and every file says what it is for."""

from __future__ import annotations

import re
import runpy

from tests.helpers.paths import ROOT

MAKER = runpy.run_path(str(ROOT / "docs" / "make_file_tree.py"))


def test_the_list_of_files_is_up_to_date() -> None:
    listed = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split(MAKER["BEGIN"])[1].split(MAKER["END"])[0]
    assert listed == MAKER["file_tree"](), "run python docs/make_file_tree.py --write"


def test_every_file_says_what_it_is_for() -> None:
    silent = re.findall(r"^  \S+$", MAKER["file_tree"](), re.MULTILINE)
    assert not silent
