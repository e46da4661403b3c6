"""The explorer of the documentation site, which needs no server, in a real browser."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import re
import runpy
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from numpy.testing import assert_allclose

pytest.importorskip("fastapi")
pytest.importorskip("granian")
pytest.importorskip("prometheus_client")
pytest.importorskip("playwright")
pytest.importorskip("axe_playwright_python")

from axe_playwright_python.sync_playwright import Axe

from elmokit.serve.examples import SENTENCES
from tests.helpers.browser import AT_THE_TOP, CHROMIUM, VIEWS, held, new_page, open_view
from tests.helpers.http_client import Client
from tests.helpers.paths import ROOT

PACKAGE = ROOT / "packages/js"
EXAMPLE = ROOT / "examples/javascript/surprisal.html"
MAKE_TRY = runpy.run_path(str(ROOT / "docs/make_try.py"))
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
TEXT = "The bank didn't raise its rate (yet)."
MAX_BYTES = 16_000_000
LARGEST_DIFFERENCE = 0.05
"""Of numbers of the two engines: they round differently, and an input may move to the next of 255 levels in int8."""


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_: Any) -> None:
        pass


class Site(NamedTuple):
    """A web server of files, which can be stopped."""

    address: str
    server: http.server.ThreadingHTTPServer


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Site]:
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Site(f"http://127.0.0.1:{server.server_port}/", server)
        server.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("try")
    MAKE_TRY["write_try_page"](folder)
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[Site]:
    with serving(folder) as site:
        yield site


@pytest.fixture(scope="module")
def page(browser: Any, site: Site) -> Iterator[Any]:
    with new_page(browser, site.address) as opened:
        opened.wait_for_selector(AT_THE_TOP)
        yield opened


def ask(page: Any, path: str, body: Any = None) -> Any:
    """Ask the engine of the page."""
    return page.evaluate("async ([path, body]) => (await import('./server.js')).ask(path, body)", [path, body])


def assert_same(found: Any, expected: Any, what: str = "answer") -> None:
    """Compare two answers, of which numbers may differ in their last digits."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), what
        for name, value in expected.items():
            assert_same(found[name], value, f"{what}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), what
        for number, value in enumerate(expected):
            assert_same(found[number], value, f"{what}[{number}]")
    elif isinstance(expected, float):
        assert_allclose(found, expected, rtol=LARGEST_DIFFERENCE, atol=LARGEST_DIFFERENCE, err_msg=what)
    else:
        assert found == expected, what


def test_the_module_that_asks_the_engine_has_the_exports_of_the_one_that_asks_the_server() -> None:
    exported = re.compile(r"^export (?:async )?(?:const|let|class|function|\{) (\w+)", re.MULTILINE)
    names = [
        sorted(exported.findall(path.read_text(encoding="utf-8")))
        for path in (ROOT / "elmokit/serve/page/server.js", PACKAGE / "explorer/server.js")
    ]
    assert names[0] == names[1]


def test_page_engine_and_model_are_small_and_all_kept_for_use_without_a_network() -> None:
    files = MAKE_TRY["try_files"]()
    n_bytes = sum(map(len, files.values()))
    assert n_bytes < MAX_BYTES
    assert f"{n_bytes / 1e6:.0f} MB" in files["server.js"].decode()  # which says how much is loaded
    kept = re.search(r'"files": (\[.*?\])', files["service-worker.js"].decode())
    assert {*files} - {"service-worker.js"} == {*json.loads(kept[1])}


def test_page_links_to_the_guide_only_in_the_documentation_site() -> None:
    pages = [MAKE_TRY["try_files"](guide=guide)["index.html"].decode() for guide in (None, "../how-to/browser/")]
    assert ["how-to/browser" in page for page in pages] == [False, True]


def test_a_second_explorer_takes_a_free_port(tmp_path: Path) -> None:
    """Two people who share a machine, or one who starts it twice."""
    (tmp_path / "index.html").write_text("explorer")
    with MAKE_TRY["file_server"](tmp_path) as first, MAKE_TRY["file_server"](tmp_path) as second:
        assert first.server_port != second.server_port


@needs_browser
@pytest.mark.slow
def test_answers_are_those_of_the_server(page: Any, server: Client) -> None:
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("v1/surprisal", {"input": [TEXT, SENTENCES[0]], "n_expected": 3}),
        ("v1/surprisal", {"input": [f"{TEXT} Prices fell."], "documents": True, "words": True}),
        ("v1/neighbors", {"sentence": SENTENCES[3].split(), "position": 4, "n": 3}),
        ("v1/neighbors", {"sentence": f"{TEXT} Prices fell.", "position": 12, "n": 3, "documents": True}),
    ]
    for path, body in bodies:
        assert_same(ask(page, path, body), server.post(f"/{path}", body).json(), path)
    expected = server.post("/v1/tokens", {"input": [TEXT], "layers": "all"}).json()["data"][0]
    found = page.evaluate(
        "async (text) => { const [{ tokens, layers }] = await (await import('./server.js')).tokenVectors([text]);"
        "return { tokens, vectors: layers.map((layer) => layer.map((vector) => [...vector])) }; }",
        TEXT,
    )
    assert_same(found, {name: expected[name] for name in ("tokens", "vectors")})
    facts, own = server.get("/v1/models").json()["data"][0], ask(page, "v1/models")["data"][0]
    assert {name: facts[name] for name in own} == own
    assert ask(page, "v1/examples") == server.get("/v1/examples").json()


@needs_browser
@pytest.mark.slow
def test_the_page_works_without_a_network_once_it_was_loaded(browser: Any, folder: Path) -> None:
    with serving(folder) as site, new_page(browser, site.address) as page:
        page.wait_for_selector(AT_THE_TOP)
        page.evaluate("navigator.serviceWorker.ready.then(() => {})")
        page.wait_for_function("navigator.serviceWorker.controller !== null")
        site.server.shutdown()
        site.server.socket.close()
        page.context.set_offline(True)
        page.reload()
        page.wait_for_selector(AT_THE_TOP)
        for view in VIEWS[1:]:
            open_view(page, view)


@needs_browser
@pytest.mark.slow
def test_every_view_shows_something_and_the_page_answers_while_the_engine_computes(browser: Any, site: Site) -> None:
    with new_page(browser, site.address, viewport={"width": 360, "height": 740}) as page:
        page.wait_for_selector(AT_THE_TOP)
        for view in VIEWS:
            open_view(page, view)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            assert not Axe().run(page).response["violations"]
        assert page.locator("#server-links").text_content().startswith("The engine and the model run in this browser")
        # A long question, and frames of the page until its answer is there.
        frames = page.evaluate(
            """async () => {
              const { ask } = await import('./server.js');
              let frames = 0, done = false;
              const answer = ask('v1/surprisal', { input: ['a long text '.repeat(60)], n_expected: 8 });
              answer.then(() => (done = true));
              while (!done) { await new Promise(requestAnimationFrame); frames++; }
              return frames;
            }"""
        )
        assert frames > 5


@needs_browser
@pytest.mark.slow
def test_the_page_says_that_the_model_is_loaded_and_that_the_engine_computes(browser: Any, site: Site) -> None:
    with new_page(browser, site.address, service_workers="block") as page:
        with held(page, "**/model.safetensors"):
            page.reload()
            page.wait_for_selector("#progress:has-text('Loading the engine and the model, 15 MB')")
            assert page.locator("#tools").is_hidden()
        page.wait_for_selector(AT_THE_TOP)
        assert page.locator("#tools").is_visible()
        click = "document.getElementById('tab-layers').click()"
        assert page.evaluate(f"() => {{ {click}; return document.getElementById('tools').hidden; }}")
        page.wait_for_selector("#panel-layers h2")
        assert page.locator("#progress").text_content() == ""


@needs_browser
@pytest.mark.slow
def test_problems_are_explained(page: Any) -> None:
    for path, body, message in [
        ("v1/surprisal", {"input": ["  "]}, "Text 0 of input is empty"),
        ("v1/neighbors", {"sentence": ["a"], "position": 3}, "position is 3"),
        ("v1/embeddings", {}, "does not answer v1/embeddings"),
        ("v1/surprisal", {"input": ["a " * 5000], "n_expected": 1}, "Shorten it"),
    ]:
        told = page.evaluate(
            "async ([path, body]) => (await import('./server.js')).ask(path, body).catch((error) => error.message)",
            [path, body],
        )
        assert message in told


@needs_browser
@pytest.mark.slow
def test_the_example_colors_words_while_somebody_types(browser: Any, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE / "src", tmp_path / "elmokit/src")
    shutil.copytree(ROOT / "elmokit/models/en-mini", tmp_path / "elmokit/models/en-mini")
    shutil.copy(EXAMPLE, tmp_path)
    with serving(tmp_path) as site, new_page(browser, f"{site.address}{EXAMPLE.name}") as page:
        page.wait_for_selector("#words span:has-text('keyboard')")
        page.get_by_label("A sentence").press_sequentially(" The end")
        page.wait_for_selector("#words span:has-text('end')")
        assert "nats" in page.locator("#words span").first.get_attribute("title")
