"""Write a section of a report that several programs write together."""

from __future__ import annotations

import re
from pathlib import Path

LAST = "## What was not tried"
"""The section that stays at the end."""


def replace_section(path: Path, title: str, content: str) -> None:
    """Replace what is below a heading of the second level, or add the section before the last one."""
    text = path.read_text(encoding="utf-8")
    section = f"## {title}\n\n{content.strip()}\n\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    if pattern.search(text):
        text = pattern.sub(lambda _: section, text, count=1)
    else:
        start = text.find(f"\n{LAST}\n") + 1 or len(text) + 1
        text = f"{text[:start].rstrip()}\n\n{section}{text[start:]}"
    path.write_text(text.rstrip() + "\n", encoding="utf-8")
