"""Hook of MkDocs: ``llms.txt``, the list of pages that language models read (llmstxt.org), and ``llms-full.txt``.

The first lists each page of the navigation with its first sentence; the second has the text of the guides themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

OPTIONAL = "Optional"
"""The section of llms.txt that may be skipped if a short context is needed."""
OPTIONAL_SECTIONS = ("Results", "About")
FULL_TEXT = ("Home", "Tutorials", "How-to guides", "Reference", "Explanation")
IS_TEXT = re.compile(r"[A-Za-z*`\"]")
"""How a paragraph starts that is neither a heading, a table, a picture nor HTML."""
SENTENCE_END = re.compile(r"(?<!al)(?<=\.)\s")
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_nav: list[Navigation] = []


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Keep the navigation until its pages have been read."""
    _nav[:] = [nav]


def on_post_build(config: MkDocsConfig) -> None:
    """Write both files into the site."""
    sections: dict[str, list[Page]] = {}
    for item in _nav[0].items:
        sections[str(item.title)] = list(_pages(item))
    site = Path(config.site_dir)
    base = config.site_url or ""
    parts = [f"# {config.site_name}", f"> {config.site_description}"]
    optional = []
    for title, pages in sections.items():
        lines = [f"- [{page.title}]({base}{page.url or './'}){_first_sentence(page)}" for page in pages]
        if title in OPTIONAL_SECTIONS:
            optional += lines
        else:
            parts += [f"## {title}", "\n".join(lines)]
    parts += [f"## {OPTIONAL}", "\n".join(optional)]
    (site / "llms.txt").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    full = [page.markdown or "" for title in FULL_TEXT for page in sections.get(title, ())]
    # Pages of the Python reference hold names, which become text only as HTML.
    texts = [markdown.strip() for markdown in full if not re.search("^::: ", markdown, re.MULTILINE)]
    (site / "llms-full.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")


def _pages(item: object) -> Iterator[Page]:
    if isinstance(item, Page):
        yield item
    elif isinstance(item, Section):
        for child in item.children:
            yield from _pages(child)


def _first_sentence(page: Page) -> str:
    """Return what the first paragraph of a page starts with, after a colon."""
    for paragraph in re.split(r"\n\s*\n", page.markdown or ""):
        if IS_TEXT.match(paragraph):
            text = LINK.sub(r"\1", " ".join(paragraph.split()))
            return f": {SENTENCE_END.split(text, maxsplit=1)[0]}"
    return ""
