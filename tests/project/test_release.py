"""What a release says about itself."""

from __future__ import annotations

import json
import subprocess

import elmokit
from tests.helpers.paths import ROOT


def notes_of(version: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / ".ci" / "notes", version], capture_output=True, text=True, check=False)


def test_the_notes_of_a_version_are_its_section_of_the_changelog() -> None:
    notes = notes_of(elmokit.__version__)
    assert notes.returncode == 0
    assert "### Added" in notes.stdout
    assert "## [" not in notes.stdout
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert notes.stdout.strip() in changelog.split(f"## [{elmokit.__version__}]")[1]


def test_a_version_without_notes_is_an_error_in_one_line() -> None:
    notes = notes_of("99.0")
    assert notes.returncode == 1
    assert notes.stderr == "CHANGELOG.md has no section about 99.0.\n"


def test_the_npm_package_has_the_version_of_the_package() -> None:
    package = json.loads((ROOT / "packages" / "js" / "package.json").read_text(encoding="utf-8"))
    assert package["version"] == elmokit.__version__
