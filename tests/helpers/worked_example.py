"""Follow a page that shows with a worked example how to add something to the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.helpers.paths import ROOT
from tests.project.test_docs import blocks

NEW_FILE = re.compile(r"# (elmokit/\S+)\n+")
"""The first line of a block that is a whole file."""


def follow(page: Path, folder: Path) -> set[str]:
    """Copy the package into a folder, change it as the page says, and return the files that this touches."""
    shutil.copytree(ROOT / "elmokit", folder / "elmokit", ignore=shutil.ignore_patterns("libraries", "__pycache__"))
    touched = {_apply(change, folder) for change in blocks(page, "diff")}
    for code in blocks(page, "python"):
        if head := NEW_FILE.match(code):
            file = folder / head[1]
            assert not file.exists()
            file.write_text(code.removeprefix(head[0]), encoding="utf-8")
            touched.add(head[1])
    return touched


def run_in(folder: Path, code: str, **variables: str) -> None:
    """Run code with the changed package."""
    environment = {**os.environ, "PYTHONPATH": str(folder), **variables}
    environment.pop("ELMOKIT_BACKEND", None)
    run = subprocess.run([sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def _apply(change: str, folder: Path) -> str:
    head, _, body = change.partition("\n")
    name, lines = head.removeprefix("--- "), body.splitlines()
    old, new = ("\n".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +"))
    file = folder / name
    if not file.exists():  # outside the package
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, file)
    content = file.read_text(encoding="utf-8")
    assert content.count(old) == 1, f"{name} does not have this once: {old}"
    file.write_text(content.replace(old, new), encoding="utf-8")
    return name
