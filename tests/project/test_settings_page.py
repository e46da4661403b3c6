from __future__ import annotations

import runpy

from tests.helpers.paths import ROOT

DOCS = ROOT / "docs"


def test_the_reference_of_settings_is_up_to_date() -> None:
    page = runpy.run_path(str(DOCS / "make_settings.py"))["settings_page"]()
    assert (DOCS / "reference" / "settings.md").read_text(encoding="utf-8") == page, (
        "Run: python docs/make_settings.py > docs/reference/settings.md"
    )
