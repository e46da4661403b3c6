"""The documents are written in plain English: no dialect, and pages that one can read in one go."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

GENERATED = {"docs/reference/settings.md"}
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
DIALECT = {
    r"\bstands (at|beside|for|in|on)\b": "is at, is next to, means",
    r"\bgo(es)? on\b": "continue, resume",
    r"\bcarry on\b|\btake up again\b|\bbegin again\b": "resume, restart",
    r"\bis told\b|\bwas told\b|\btells? you\b": "reports, logs, prints",
    r"\bbegun\b": "started",
    r"\blaid over\b": "override",
    r"\bat hand\b": "available",
    r"\bsuch (a )?(file|name|model|word) (does|do) not exist\b|\bno such\b": "does not exist",
    r"\bthat (is|are) no\b": "that is not a",
    r"\bas ever\b|\bas always\b": "(leave it out)",
    r"\bcould not be had\b": "was unavailable",
    r"\bby turns\b": "alternately",
    r"\bblanks\b": "spaces",
    r"\bnumber type\b": "dtype",
    r"\bwhere they (lie|stand)\b|\blies beside\b": "is next to",
    r"\bjudged? by\b": "evaluated on",
    r"\bthe house\b": "the architecture",
    r"(?m)^(Killed|Moved|Read|Asked), ": "a sentence with a subject",
    r"(?m)^Of (the|these|all) ": "a sentence that begins with its subject",
}
"""Expressions of an earlier style that readers stumbled over, and what to write instead."""
CODE = re.compile(r"^```.*?^```|^(?: {4}.*\n)+|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_is_in_plain_english(page: Path) -> None:
    prose = CODE.sub("", page.read_text(encoding="utf-8"))
    for pattern, instead in DIALECT.items():
        found = re.search(pattern, prose, re.IGNORECASE)
        assert found is None, f"{found[0]!r} in {page.name}. Write instead: {instead}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_has_at_most_200_lines_of_prose(page: Path) -> None:
    if page.relative_to(ROOT).as_posix() in {*GENERATED, "CHANGELOG.md"}:
        return
    prose = CODE.sub("", page.read_text(encoding="utf-8"))
    assert sum(bool(line.strip()) and not line.startswith("|") for line in prose.splitlines()) <= 200
