"""A real browser for tests of pages. It needs Playwright, so import this module after checking for that."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
VIEWS = ["senses", "sentence", "layers"]
AT_THE_TOP = "figure[data-layer='2']"  # the map has moved to the top layer
PATIENCE = 90_000  # milliseconds: the slowest wait takes 3 seconds on an idle machine


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """Run Chromium without a window."""
    with sync_playwright() as started:
        # Chromium refuses to sandbox its processes as root, which is the user in many containers.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = started.chromium.launch(executable_path=CHROMIUM, args=options)
        yield opened
        opened.close()


@contextlib.contextmanager
def new_page(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """Open a page in a window of its own, with options such as ``color_scheme``. Faults of scripts fail the test."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
    page.goto(address)
    try:
        yield page
        assert not faults
    finally:
        context.close()


@contextlib.contextmanager
def held(page: Any, url: str) -> Iterator[None]:
    """Let the requests of a page for a URL wait until the end of the block."""
    waiting: list[Any] = []
    page.route(url, lambda route: waiting.append(route))  # not the method itself, which Playwright cannot mark
    yield
    for route in waiting:
        route.continue_()
    page.unroute(url)


def open_view(page: Any, name: str) -> None:
    """Open a view of the explorer, and wait until it shows what it found."""
    page.click(f"#tab-{name}")
    page.wait_for_selector("[aria-busy]", state="detached")
    page.wait_for_selector(f"#panel-{name} h2")
