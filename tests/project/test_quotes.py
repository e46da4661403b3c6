"""Pages quote the report of the included model as it is."""

from __future__ import annotations

import subprocess
import sys

from tests.helpers.paths import ROOT


def test_pages_have_the_numbers_of_the_report() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "quote_results.py"), "--check"]
    ran = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_pages_with_a_dev_score_of_sentence_similarity_have_that_of_test_too() -> None:
    for page in (
        "results/README.md",
        "results/similarity.md",
        "results/en-mini-training.md",
        "docs/how-to/compare-sentences.md",
    ):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert "0.752" in text
        assert "0.674" in text, page
        assert "0.734" in text, page
