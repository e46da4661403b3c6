"""The explorer that runs in the browser, without a server: the directory ``try/`` of the documentation site.

It is the page of ``elmokit serve``, with a module that asks the engine in a worker in the place of the one that asks
the server. The hook of MkDocs adds it to the site; ``python docs/make_try.py DIRECTORY`` writes it to a directory, for
any web server.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path

from elmokit.formats.folder import included_model
from elmokit.serve.served_model import LISTED, SENTENCES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "elmokit/serve/page"
PACKAGE = ROOT / "packages/js"
SERVICE_WORKER = "service-worker.js"
MODEL_FILES = ("config.json", "model.safetensors", "softmax.safetensors", "vocab.txt", "whitening.safetensors")
SERVER_LINKS = re.compile(r'<p id="server-links">.*?</p>', re.DOTALL)
IN_BROWSER = (
    '<p id="server-links">The engine and the model run in this browser: your text stays on this device, and the page '
    'works without a network. <a href="../how-to/browser/">How to use them in your own pages</a>.</p>'
)


def try_files() -> dict[str, bytes]:
    """Return the files of the page by their paths."""
    folders = (("", PAGE), ("", PACKAGE / "explorer"), ("elmokit/", PACKAGE / "src"))
    files = {
        prefix + path.name: path.read_bytes()
        for prefix, folder in folders  # a later one replaces server.js
        for path in sorted(folder.iterdir())
        if path.suffix != ".ts"
    }
    files |= {f"model/{name}": (included_model() / name).read_bytes() for name in MODEL_FILES}
    files["examples.json"] = json.dumps({"listed": LISTED, "indexed": SENTENCES}).encode()
    page, n_found = SERVER_LINKS.subn(IN_BROWSER, files["index.html"].decode())
    if n_found != 1:
        raise ValueError(f'index.html has {n_found} paragraphs <p id="server-links">; expected one.')
    files["index.html"] = page.encode()
    script = files.pop(SERVICE_WORKER)
    digest = hashlib.sha256(script)
    for name, content in sorted(files.items()):
        digest.update(name.encode() + content)
    facts = {"version": digest.hexdigest()[:16], "files": sorted(files)}
    files[SERVICE_WORKER] = f"const PAGE = {json.dumps(facts)};\n".encode() + script
    return files


def write_try_page(folder: Path) -> None:
    """Write the page into a directory."""
    for name, content in try_files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    write_try_page(Path(sys.argv[1]))
