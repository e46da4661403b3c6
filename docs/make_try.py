"""The explorer that runs in the browser, without a server: the directory ``try/`` of the documentation site.

It is the page of ``elmokit serve``, with a module that asks the engine in a worker in the place of the one that asks
the server. The hook of MkDocs adds it to the site. ``make explore`` shows it in a copy of the repository, and
``python docs/make_try.py DIRECTORY`` writes it to a directory, for any web server. Nothing must be installed for that.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import http.server
import json
import re
import runpy
import tempfile
import webbrowser
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = runpy.run_path(str(ROOT / "elmokit/serve/examples.py"))  # elmokit need not be installed
MODEL = ROOT / "elmokit/models/en-mini"
PAGE = ROOT / "elmokit/serve/page"
PACKAGE = ROOT / "packages/js"
SERVICE_WORKER = "service-worker.js"
LEFT_OUT = "sentence_head.safetensors"
"""The file of the model that the explorer does not read."""
USUAL_PORT = 8300
SERVER_LINKS = re.compile(r'<p id="server-links">.*?</p>', re.DOTALL)
IN_BROWSER = (
    "The engine and the model run in this browser: your text stays on this device, and the page works without a "
    "network."
)


def try_files(guide: str | None = None) -> dict[str, bytes]:
    """Return the files of the page by their paths.

    Args:
        guide: The address of the guide that the page links to. Without the documentation site, there is none.
    """
    folders = (("", PAGE), ("", PACKAGE / "explorer"), ("elmokit/", PACKAGE / "src"))
    files = {
        prefix + path.name: path.read_bytes()
        for prefix, folder in folders  # a later one replaces server.js
        for path in sorted(folder.iterdir())
        if path.suffix != ".ts"
    }
    files |= {f"model/{path.name}": path.read_bytes() for path in sorted(MODEL.iterdir()) if path.name != LEFT_OUT}
    files["examples.json"] = json.dumps({"listed": EXAMPLES["LISTED"], "indexed": EXAMPLES["SENTENCES"]}).encode()
    about = IN_BROWSER
    if guide is not None:
        about += f' <a href="{guide}">How to use them in your own pages</a>.'
    page, n_found = SERVER_LINKS.subn(f'<p id="server-links">{about}</p>', files["index.html"].decode())
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


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def file_server(folder: Path, port: int | None = None) -> http.server.ThreadingHTTPServer:
    """Return a web server of files for this machine. Without a port: the usual one, or a free one if that is taken."""
    handler = functools.partial(Files, directory=str(folder))
    if port is not None:
        return http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    try:
        return http.server.ThreadingHTTPServer(("127.0.0.1", USUAL_PORT), handler)
    except OSError:
        return http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)


def show(port: int | None) -> None:
    """Serve the page to this machine, open it in a browser, and wait for Ctrl-C."""
    with tempfile.TemporaryDirectory() as name:
        write_try_page(Path(name))
        with file_server(Path(name), port) as server:
            address = f"http://127.0.0.1:{server.server_port}/"
            print(f"The explorer is at {address} (stop with Ctrl-C)", flush=True)
            webbrowser.open(address)
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()


def main() -> None:
    """Write the page into a directory, or show it."""
    parser = argparse.ArgumentParser(description="Show the explorer in a browser, or write it into a directory.")
    parser.add_argument("directory", nargs="?", type=Path, help="write it here, for any web server")
    parser.add_argument(
        "--port",
        type=int,
        help=f"show it at this port of this machine (default: {USUAL_PORT}, or a free one if it is taken)",
    )
    arguments = parser.parse_args()
    if arguments.directory is None:
        show(arguments.port)
    else:
        write_try_page(arguments.directory)


if __name__ == "__main__":
    main()
