"""Write the commands that install elmokit into all documents: ``python docs/make_install_lines.py --write``.

As long as the package is not on the package index, they install it from a copy of the repository: ``pip install .``.
``ON_PACKAGE_INDEX`` in ``elmokit/version.py`` says which. Without ``--write``, this prints the files that differ, and
fails if there are any.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from elmokit.version import ON_PACKAGE_INDEX

ROOT = Path(__file__).parents[1]
WITH_EXTRA = re.compile(r"'(?:elmokit|\.)(\[[\w,-]+\]')")
BARE = re.compile(r"\b(pip install(?: --editable)?) (?:elmokit|\.)(?=$|[`\s\"])", re.MULTILINE)
PATTERNS = ("README.md", "docs/**/*.md", "examples/**/*.py", "examples/**/*.ipynb")
NAME = "elmokit" if ON_PACKAGE_INDEX else "."


def install_lines(text: str) -> str:
    """Return a document with the commands that work today."""
    return BARE.sub(rf"\1 {NAME}", WITH_EXTRA.sub(rf"'{NAME}\1", text))


def changed_documents() -> Iterator[tuple[Path, str]]:
    """Yield each document whose commands do not work today, with its new text."""
    for path in sorted(file for pattern in PATTERNS for file in ROOT.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        if (new := install_lines(text)) != text:
            yield path, new


if __name__ == "__main__":
    changed = list(changed_documents())
    for path, text in changed:
        if "--write" in sys.argv[1:]:
            path.write_text(text, encoding="utf-8", newline="\n")
        print(path.relative_to(ROOT))
    sys.exit(bool(changed) and "--write" not in sys.argv[1:])
