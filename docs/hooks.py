"""Hooks of MkDocs: pages of the site whose source is elsewhere in the repository, and what search finds.

The documents link to files of the repository by relative paths, such as ``../../results/speed.md``, so that the links
also work where a repository is browsed. MkDocs knows only the files below ``docs/``. So every linked file outside that
directory becomes a page of the site (or a picture, for the pages among them), and links to it are rewritten. Notebooks
are shown with their stored outputs, among the tutorials, with a link to download them.

Search finds pages and their sections, but no source code.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
from dark_pictures import with_dark_colors
from make_cli import cli_pages
from make_settings import settings_pages
from make_try import try_files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
ABOUT = ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md")
"""Files of the repository that belong to the section "About"."""
ALWAYS = (*ABOUT, "results/README.md")
"""Files outside ``docs/`` that become pages whether another page links to them or not."""
PICTURES = {".png", ".svg"}
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", "Dockerfile": "docker"}
"""The languages of source files, which are shown as one code block each."""
NOTEBOOKS = "examples/notebooks"
CLI = "reference/cli/"
SETTINGS = "reference/settings/"
TRY = "try/"
GENERATED = {
    "make_cli.py": f"{CLI}index.md",
    "make_settings.py": f"{SETTINGS}index.md",
    "make_try.py": f"{TRY}index.html",
}
"""Scripts whose pages are only in the site: a link to the script leads to what it makes."""
SEARCH_WEIGHTS = {
    "source/": 0.0,
    "about/": 0.2,
    "results/": 0.5,
    "contributing/": 0.0,
    "how-to/speed": 3.0,  # its precisions, and the formats of vector files, are named on many pages
    "reference/settings/": 1.5,
    "reference/vector-files": 2.0,
    "reference/environment": 2.0,
}
"""How much a match on pages whose path starts so counts in a search, where not 1. What weighs 0 is not found at all."""
FOLDED = "<details"
"""What a reader unfolds, the source code of functions, is not searched either."""
REPOSITORY = "<!-- repository -->"
"""Where the home page links to the repository, if its address is known."""
EXPLORER = "<!-- explorer -->"
"""Where a page links to the explorer, which is only in the site."""
SHORT_CODE = re.compile(r"<code>([^<\n]{1,36})</code>")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the page of each command in the navigation."""
    reference = next(part["Reference"] for part in config.nav or () if "Reference" in part)
    commands = next(part for part in reference if isinstance(part, dict) and "Command line" in part)
    commands["Command line"] = [f"{CLI}{name}" for name in cli_pages()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of commands and settings, the explorer, and the files outside ``docs/`` that pages link to."""
    explorer = try_files(guide="../how-to/browser/")
    for folder, made in ((CLI, cli_pages()), (SETTINGS, settings_pages()), (TRY, explorer)):
        for name, content in made.items():
            files.append(File.generated(config, folder + name, content=content))
    waiting = [(f"docs/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    for name in ALWAYS:
        if (ROOT / name).is_file():
            waiting.append((name, (ROOT / name).read_text(encoding="utf-8")))
    added: set[str] = set()
    while waiting:
        source, text = waiting.pop()
        if not source.startswith("docs/") and source not in added:
            added.add(source)
            files.append(_file_of(source, config))
            if source.endswith(".ipynb"):
                copy = posixpath.join(posixpath.dirname(_uri_of(source)), posixpath.basename(source))
                files.append(File.generated(config, copy, abs_src_path=str(ROOT / source)))
        for target in _links(source, text):
            if not target.startswith(("docs/", "..")) and target not in added and (ROOT / target).is_file():
                is_page = target.endswith((".md", ".ipynb"))
                waiting.append((target, _markdown_of(target) if is_page else ""))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to files outside ``docs/`` to their pages, and say how much the page weighs in a search."""
    weight = next((weight for path, weight in SEARCH_WEIGHTS.items() if page.file.src_uri.startswith(path)), 1.0)
    page.meta["search"] = {"boost": weight} if weight else {"exclude": True}
    here = posixpath.dirname(page.file.src_uri)
    source = _source_of(page.file.src_uri)

    def rewrite(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        uri = target.removeprefix("docs/") if target.startswith("docs/") else _uri_of(target)
        uri = GENERATED.get(uri, uri)
        return posixpath.relpath(uri, here or ".") if files.get_file_from_path(uri) else match[1]

    parts = re.split(f"({CODE.pattern})", markdown, flags=CODE.flags)
    parts[::2] = [LINK.sub(rewrite, part) for part in parts[::2]]
    text = "".join(parts)
    if source.endswith(".ipynb"):
        title, rest = text.split("\n", 1)
        text = f"{title}\n\n[Download this notebook]({posixpath.basename(source)}){{ .md-button }}\n{rest}"
    repository = _repository()
    button = f"[Repository]({repository}){{ .md-button }}" if repository else ""
    explorer = posixpath.relpath(f"{TRY}index.html", here or ".")
    text = text.replace(EXPLORER, f"[Open the explorer]({explorer}){{ .md-button }}")
    return text.replace(REPOSITORY, button)


def on_page_content(html: str, **kwargs: Any) -> str:
    """Mark what search skips, and short code, which the style sheet keeps on one line: ``--model`` has no break."""
    html = html.replace(FOLDED, f'{FOLDED} data-search-exclude="true"')
    return SHORT_CODE.sub(r'<code class="short">\1</code>', html)


def _repository() -> str:
    """Return the address of the repository: what the package says, or where this site is built."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if "Repository" in project.get("urls", ()):
        return str(project["urls"]["Repository"])
    name = os.environ.get("GITHUB_REPOSITORY")
    return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}" if name else ""


def _links(source: str, text: str) -> list[str]:
    """Return the paths in the repository that a Markdown file links to."""
    base = posixpath.dirname(source)
    return [posixpath.normpath(posixpath.join(base, link)) for link in LINK.findall(CODE.sub("", text))]


def _uri_of(path: str) -> str:
    """Return where a file of the repository is in the site, as if it were below ``docs/``."""
    if path in ABOUT:
        return f"about/{path.lower()}"
    if path.endswith(".ipynb"):
        return f"tutorials/{Path(path).stem}.md"
    return path if Path(path).suffix in {".md", *PICTURES} else f"source/{path}.md"


def _source_of(uri: str) -> str:
    """Return the path in the repository of a page: the inverse of ``_uri_of``."""
    if not (ROOT / "docs" / uri).exists():
        others = (uri, *ABOUT, f"{NOTEBOOKS}/{Path(uri).stem}.ipynb")
        return next((path for path in others if _uri_of(path) == uri and (ROOT / path).is_file()), f"docs/{uri}")
    return f"docs/{uri}"


def _file_of(path: str, config: MkDocsConfig) -> File:
    """Return a page or picture of the site for a file of the repository."""
    uri = _uri_of(path)
    if path.endswith(".ipynb"):
        return File.generated(config, uri, content=_markdown_of(path))
    if uri.endswith(".svg"):
        return File.generated(config, uri, content=with_dark_colors((ROOT / path).read_text(encoding="utf-8")))
    if not uri.startswith("source/"):
        return File.generated(config, uri, abs_src_path=str(ROOT / path))
    language = LANGUAGES.get(Path(path).suffix or path, "text")
    code = (ROOT / path).read_text(encoding="utf-8")
    return File.generated(config, uri, content=f"# {path}\n\n````{language}\n{code.rstrip()}\n````\n")


def _markdown_of(path: str) -> str:
    """Return the text of a page, or the cells and stored outputs of a notebook as Markdown."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if not path.endswith(".ipynb"):
        return text
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
        parts += map(_output, cell.get("outputs", ()))
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    """Return the best form of an output: HTML, a picture, or text."""
    data = {kind: "".join(value) for kind, value in output.get("data", {}).items()}
    if "text/html" in data:
        return f'<div class="output">{data["text/html"]}</div>'
    if "image/png" in data:
        return f'<img alt="Output of the code above" src="data:image/png;base64,{data["image/png"].strip()}">'
    return f"```text\n{data.get('text/plain', ''.join(output.get('text', ''))).rstrip()}\n```"
