from __future__ import annotations

import runpy

from tests.helpers.paths import ROOT

DOCS = ROOT / "docs"


def test_the_reference_of_settings_is_up_to_date() -> None:
    pages = runpy.run_path(str(DOCS / "make_settings.py"))["settings_pages"]()
    stored = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "reference" / "settings").glob("*.md")}
    assert stored == pages, "Run: python docs/make_settings.py"
