"""What a release says about itself."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

import elmokit
from tests.helpers.paths import ROOT


def notes_of(version: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROOT / ".ci" / "notes", version], capture_output=True, text=True, check=False)


def test_the_notes_of_a_version_are_its_section_of_the_changelog() -> None:
    notes = notes_of(elmokit.__version__)
    assert notes.returncode == 0
    assert notes.stdout.strip().startswith("### Changed")  # what an upgrade needs comes first
    assert "## [" not in notes.stdout
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert notes.stdout.strip() in changelog.split(f"## [{elmokit.__version__}]")[1]


def test_the_npm_package_has_the_version_of_the_package() -> None:
    package = json.loads((ROOT / "packages" / "js" / "package.json").read_text(encoding="utf-8"))
    assert package["version"] == elmokit.__version__
    page = (ROOT / "docs" / "how-to" / "browser.md").read_text(encoding="utf-8")
    assert set(re.findall(r"elmokit-([\d.]+)\.tgz", page)) == {elmokit.__version__}


def test_the_source_distribution_has_every_file_of_the_repository_and_none_that_git_ignores() -> None:
    sdist = pytest.importorskip("hatchling.builders.sdist", reason="hatchling is not installed")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a clone of the repository")
    tracked = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    included = {file.distribution_path for file in sdist.SdistBuilder(str(ROOT)).recurse_included_files()}
    assert len(tracked) > 900
    # What is not yet added may be in a directory that is included.
    assert tracked - included == {"pyproject.toml", ".gitignore"}  # hatchling adds these two in any case
    ignored = subprocess.run(
        ["git", "check-ignore", "--stdin"],
        cwd=ROOT,
        input="\n".join(included),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ignored.stdout == ""
