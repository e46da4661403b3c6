"""Print the list of all source files for CONTRIBUTING.md: the first line of each file's docstring or comment.

python docs/make_file_tree.py --write puts it there, between the two marks; a test compares the two.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- files: made by docs/make_file_tree.py -->\n", "<!-- end of files -->\n"


def first_line(path: Path) -> str:
    """Return what a source file says about itself: its first sentence, or as much of it as is on its first line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        about = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = re.match(r"/\*\s*(.*?)\*/", text, re.DOTALL)
        about = comment.group(1) if comment else ""
    sentence = re.split(r"(?<=[.:])\s", re.sub(r"\s+", " ", about.split("\n\n")[0]), maxsplit=1)[0]
    named = re.sub(r":\w+:`~?([^`]+)`", lambda match: match.group(1).rsplit(".", 1)[-1], sentence)
    return named.replace("`", "").rstrip(".:")


def file_tree() -> str:
    """Return the files of the package by directory, one line for each."""
    lines = []
    sources = (path for path in (ROOT / "elmokit").rglob("*") if path.suffix in (".py", ".c", ".h"))
    files = [path for path in sources if path.read_text(encoding="utf-8").strip()]
    for directory in sorted({path.parent for path in files}):
        here = sorted(path for path in files if path.parent == directory)
        width = max(len(path.name) for path in here)
        lines += [f"{directory.relative_to(ROOT).as_posix()}/"]
        lines += [f"  {path.name:{width}}  {first_line(path)}".rstrip() for path in here]
    return "```text\n" + "\n".join(lines) + "\n```\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        before, rest = GUIDE.read_text(encoding="utf-8").split(BEGIN)
        GUIDE.write_text(before + BEGIN + file_tree() + END + rest.split(END)[1], encoding="utf-8")
    else:
        print(file_tree(), end="")
