"""The commands that install elmokit work today, in documents and in error messages."""

from __future__ import annotations

import subprocess
import sys

from tests.helpers.paths import ROOT

SCRIPT = ROOT / "docs" / "make_install_lines.py"


def test_every_document_installs_from_where_the_package_is() -> None:
    ran = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True)
    assert not ran.stdout.split(), "run: python docs/make_install_lines.py --write"
