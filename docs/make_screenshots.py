"""Take the pictures of the explorer: start ``elmokit serve``, then run this with its address.

Needs Debian's chromium, and Playwright (``pip install playwright``).
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright

PICTURES = Path(__file__).parent / "pictures"
TEXT = {"view": "sentence"}  # the first example, with its word
VIEWS = {
    "explorer-senses": ({"view": "senses", "word": "play", "layer": 2}, "light", 1000),
    "explorer-sentence": (TEXT, "light", 1000),
    "explorer-sentence-dark": (TEXT, "dark", 1000),
    "explorer-layers": ({"view": "layers"}, "dark", 1000),
    "explorer-phone": ({"view": "senses", "word": "watch", "layer": 2}, "dark", 390),
}
"""The address, color scheme and width of each picture."""


def main() -> None:
    """Write ``docs/pictures/explorer-*.png``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", nargs="?", default="http://127.0.0.1:8000")
    address = parser.parse_args().address.rstrip("/")
    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as started:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium has no sandbox for root
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        for name, (view, scheme, width) in VIEWS.items():
            page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
            page.goto(f"{address}/#{urlencode(view)}")
            page.wait_for_selector("[role=tabpanel]:not([hidden]):not([aria-busy]) h2")
            if "layer" in view:
                page.wait_for_selector(f"figure[data-layer='{view['layer']}']")
            page.screenshot(path=PICTURES / f"{name}.png", full_page=True)
        browser.close()


if __name__ == "__main__":
    main()
