"""Pages quote the report of the included model as it is."""

from __future__ import annotations

import subprocess
import sys

from tests.helpers.paths import ROOT


def test_pages_have_the_numbers_of_the_report() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "quote_results.py"), "--check"]
    ran = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
