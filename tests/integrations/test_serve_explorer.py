"""The explorer of ``elmokit serve``, in a real browser."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")
pytest.importorskip("nltk")
pytest.importorskip("playwright")
pytest.importorskip("axe_playwright_python")

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from elmokit import Elmo, LanguageModel
from elmokit.serve.app import PAGE, create_app
from elmokit.serve.config import ServeConfig
from elmokit.serve.examples import SENSES
from elmokit.serve.served_model import ServedModel
from tests.helpers.http_client import Client, running

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
TOKENS = ["The", "bank", "raised", "its", "rate", "."]
TEXT = " ".join(TOKENS)
VIEWS = ["sentence", "senses", "layers"]
PATIENCE = 90_000  # milliseconds: the slowest wait takes 3 seconds on an idle machine


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return ServedModel(Elmo.from_pretrained(), ServeConfig(), tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def server(served: ServedModel) -> Iterator[Client]:
    with running(create_app(served, ServeConfig())) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as started:
        # Chromium refuses to sandbox its processes as root, which is the user in many containers.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = started.chromium.launch(executable_path=CHROMIUM, args=options)
        yield opened
        opened.close()


@contextlib.contextmanager
def new_page(browser: Any, client: Client, address: str = "", **options: Any) -> Iterator[Any]:
    """Open the explorer in a window of its own. Faults of the page's scripts fail the test."""
    context = browser.new_context(base_url=f"http://127.0.0.1:{client.port}", **options)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
    page.goto(f"/{address}")
    try:
        yield page
        assert not faults
    finally:
        context.close()


@pytest.fixture
def page(browser: Any, server: Client) -> Iterator[Any]:
    with new_page(browser, server) as opened:
        opened.wait_for_selector("h2:has-text('Neighbors')")
        yield opened


def show(page: Any, text: str) -> None:
    page.get_by_label("A sentence").fill(text)
    page.get_by_role("button", name="Show").click()
    page.wait_for_selector("[aria-busy]", state="detached")


def open_view(page: Any, name: str) -> None:
    page.click(f"#tab-{name}")
    page.wait_for_selector(f"#panel-{name} h2")


def shown_nats(page: Any) -> list[float]:
    return [float(number) for number in page.locator("#panel-sentence .token small").all_text_contents()]


def table(page: Any, selector: str) -> list[list[str]]:
    rows = page.locator(f"{selector} tbody tr")
    return [rows.nth(number).locator("td").all_text_contents() for number in range(rows.count())]


def test_the_heat_map_shows_the_surprisal_of_each_direction(page: Any) -> None:
    (expected,) = LanguageModel.from_pretrained().surprisal([TOKENS])
    show(page, TEXT)
    assert_allclose(shown_nats(page), expected.nats[:, 1:-1].mean(axis=0), atol=0.051)
    for row, label in enumerate(("from the left", "from the right")):
        page.get_by_label(label).check()
        page.wait_for_url(f"**direction={('forward', 'backward')[row]}**")
        page.wait_for_selector("[aria-busy]", state="detached")
        assert_allclose(shown_nats(page), expected.nats[row, 1:-1], atol=0.051)
    least, most = (float(page.locator(".token").nth(i).evaluate(SHARE)) for i in (5, 1))
    assert least < most  # the colors follow the numbers


SHARE = "button => getComputedStyle(button).getPropertyValue('--share')"


def test_pointing_at_a_token_shows_the_expected_words(page: Any) -> None:
    show(page, TEXT)
    page.get_by_role("button", name="its, ").hover()
    expected = LanguageModel.from_pretrained().substitutes(TOKENS, 3, n=8)
    detail = page.locator("#detail").text_content()
    assert "Surprisal in nats" in detail
    assert all(one.word in detail for one in expected)


def test_a_token_chosen_by_keyboard_shows_neighbors_and_substitutes(page: Any, served: ServedModel) -> None:
    show(page, TEXT)
    token = page.get_by_role("button", name="bank, ")
    token.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("h2:has-text('Neighbors of “bank”')")
    assert token.get_attribute("aria-pressed") == "true"
    assert page.evaluate("document.activeElement.ariaLabel").startswith("bank,")  # the focus is where it was
    found = served.index.neighbors(served.elmo, TOKENS, 1)
    for layer, occurrences in found.layers.items():
        items = page.locator(f"div:has(> h3:text-is('Layer {layer}')) li").all_text_contents()
        assert items == [f"{one.similarity:.2f}{' '.join(one.words)}" for one in occurrences]
    for direction, title in (("forward", "From the left"), ("backward", "From the right"), ("both", "Both directions")):
        words = LanguageModel(served.elmo.model).substitutes(TOKENS, 1, direction, n=8)  # type: ignore[arg-type]
        items = page.locator(f"div:has(> h3:text-is('{title}')) li").all_text_contents()
        assert [item.split()[-1] for item in items] == [one.word for one in words]


def test_the_address_leads_back_to_the_view(browser: Any, server: Client, page: Any) -> None:
    show(page, TEXT)
    page.get_by_role("button", name="rate, ").click()
    page.wait_for_selector("h2:has-text('Neighbors of “rate”')")
    with new_page(browser, server, "#" + page.url.partition("#")[2]) as again:
        again.wait_for_selector("h2:has-text('Neighbors of “rate”')")
        assert again.locator("#panel-sentence").inner_html() == page.locator("#panel-sentence").inner_html()
    open_view(page, "layers")
    page.go_back()
    page.wait_for_selector("#panel-sentence:not([hidden])")
    assert page.locator(".token").all_text_contents()[4].startswith("rate")


def word_vectors(word: str) -> np.ndarray:
    sentences = [text.split() for text in SENSES[word]]
    arrays = Elmo.from_pretrained().embed(sentences)
    rows = np.stack([one[:, tokens.index(word)] for one, tokens in zip(arrays, sentences, strict=True)], axis=1)
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))


def test_senses_are_compared_by_layer(page: Any) -> None:
    open_view(page, "senses")
    page.select_option("#sense-example", "match")
    page.wait_for_selector("h2:has-text('Occurrences of “match”')")
    for layer, rows in enumerate(word_vectors("match")):
        cells = table(page, f"#panel-senses .columns > :nth-child({layer + 1})")
        shown = np.array([[100.0 if not cell.isdecimal() else float(cell) for cell in row] for row in cells])
        assert_allclose(shown, 100 * (rows @ rows.T), atol=0.51)


def points(page: Any) -> np.ndarray:
    places = page.locator(".map g").evaluate_all("all => all.map(one => one.getAttribute('transform'))")
    return np.array([place.removeprefix("translate(").rstrip(")").split() for place in places], dtype=float)


def test_the_map_moves_from_layer_0_to_the_top(page: Any) -> None:
    open_view(page, "senses")
    slider = page.get_by_label("Layer", exact=True)
    top = points(page)
    slider.focus()
    page.keyboard.press("Home")
    assert np.ptp(points(page), axis=0).max() < 0.2  # without context, all occurrences are one point
    assert page.locator("output").text_content().strip() == "layer 0"
    page.keyboard.press("ArrowRight")
    assert page.locator("output").text_content().strip() == "between layers 0 and 1"
    page.keyboard.press("End")
    assert_allclose(points(page), top)
    vectors = word_vectors("bank")[-1]
    centered = vectors - vectors.mean(axis=0)
    components = np.linalg.svd(centered)[2][:2]
    expected = centered @ components.T  # up to turning, mirroring and the scale of the drawing
    ratios = distances(top)[np.triu_indices(6, 1)] / distances(expected)[np.triu_indices(6, 1)]
    assert_allclose(ratios, ratios.mean(), rtol=0.02)


def distances(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(rows[:, None] - rows[None], axis=-1))


def test_maps_of_layers_are_turned_towards_each_other(page: Any) -> None:
    generator = np.random.default_rng(0)
    target = generator.normal(size=(7, 2))
    turn = np.linalg.qr(generator.normal(size=(2, 2)))[0]
    for mirror in (1, -1):
        given = target @ turn @ np.diag([1, mirror])
        found = page.evaluate(
            "async ([a, b]) => (await import('/geometry.js')).turnedTowards(a, b)", [given.tolist(), target.tolist()]
        )
        assert_allclose(found, target, atol=1e-9)


def test_the_layers_of_each_token_are_compared(page: Any) -> None:
    show(page, TEXT)
    open_view(page, "layers")
    (layers,) = Elmo.from_pretrained().embed([TOKENS])
    layers /= np.linalg.norm(layers, axis=-1, keepdims=True)
    expected = (layers[1:] * layers[:-1]).sum(axis=-1).T
    shown = np.array(table(page, "#panel-layers"), dtype=float)
    assert_allclose(shown, [*expected, expected.mean(axis=0)], atol=0.0051)


@pytest.mark.parametrize("view", VIEWS)
def test_the_copied_python_code_computes_what_is_shown(browser: Any, server: Client, view: str) -> None:
    allowed = {"permissions": ["clipboard-read", "clipboard-write"]}
    with new_page(browser, server, **allowed) as page:
        page.wait_for_selector("h2:has-text('Neighbors')")
        if view != "sentence":
            open_view(page, view)
        page.get_by_role("button", name="Copy as Python").click()
        page.wait_for_selector("#copied:has-text('Copied the code.')")
        code = page.evaluate("navigator.clipboard.readText()")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "copied.py", "exec"), {})
        lines = printed.getvalue().splitlines()
        if view == "sentence":
            numbers = [np.mean([float(part) for part in line.split("[")[1].rstrip("]").split()]) for line in lines[:9]]
            assert_allclose(numbers, shown_nats(page), atol=0.06)
            assert [line.split()[0] for line in lines[9:]] == ["forward", "backward", "both"]
        elif view == "layers":
            numbers = [line.split("[")[1].rstrip("]").split() for line in lines]
            assert_allclose(np.array(numbers, float), np.array(table(page, "#panel-layers")[:-1], float), atol=0.011)
        else:
            assert [line for line in lines if line.startswith("layer")] == ["layer 0", "layer 1", "layer 2"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(browser: Any, server: Client, scheme: str) -> None:
    with new_page(browser, server, color_scheme=scheme) as page:
        page.wait_for_selector("h2:has-text('Neighbors')")
        for view in VIEWS:
            open_view(page, view)
            found = Axe().run(page)
            assert not found.response["violations"], found.generate_report()


def test_the_page_fits_a_phone(browser: Any, server: Client) -> None:
    with new_page(browser, server, viewport={"width": 360, "height": 740}) as page:
        page.wait_for_selector("h2:has-text('Neighbors')")
        for view in VIEWS:
            open_view(page, view)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_tabs_follow_the_arrow_keys(page: Any) -> None:
    page.wait_for_selector(".token")
    page.locator("#tab-sentence").focus()
    for name in ("senses", "layers", "sentence"):
        page.keyboard.press("ArrowRight")
        page.wait_for_selector(f"#panel-{name}:not([hidden])")
        assert page.evaluate("document.activeElement.id") == f"tab-{name}"


def test_nothing_comes_from_another_host_and_the_page_is_small(browser: Any, server: Client) -> None:
    asked: list[str] = []
    context = browser.new_context()
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"http://127.0.0.1:{server.port}/")
    page.wait_for_selector("h2:has-text('Neighbors')")
    context.close()
    own = f"http://127.0.0.1:{server.port}/"
    assert all(url.startswith((own, "data:")) for url in asked)
    assert {url.removeprefix(own) for url in asked} >= {file.name for file in PAGE.iterdir()} - {"index.html"}
    assert sum(file.stat().st_size for file in PAGE.iterdir()) < 100_000


def test_text_is_never_read_as_html(page: Any) -> None:
    hostile = "<img src=x onerror=alert(1)> & \"quoted\" 'too' ؀\u202e end"
    show(page, hostile)
    assert page.locator("main img").count() == 0
    shown = page.locator("#panel-sentence .token").all_text_contents()
    assert any("img" in token for token in shown)
    open_view(page, "senses")
    page.get_by_label("A word", exact=True).fill("<b>")
    page.get_by_label("Sentences that contain it").fill("a <b> c\nd <b> e")
    page.get_by_role("button", name="Compare").click()
    page.wait_for_selector("[aria-busy]", state="detached")
    assert page.locator("main b").count() == 0


def test_problems_are_explained_and_the_page_goes_on(page: Any) -> None:
    show(page, "   ")
    page.wait_for_selector("#problem:has-text('empty')")
    open_view(page, "senses")
    page.get_by_label("A word", exact=True).fill("heron")
    page.get_by_role("button", name="Compare").click()
    page.wait_for_selector("#problem:has-text('Sentence 1 does not contain the word “heron”')")
    page.click("#tab-sentence")
    show(page, TEXT)
    assert page.locator("#problem").is_hidden()
    assert len(shown_nats(page)) == len(TOKENS)


def use_token(page: Any, token: str) -> None:
    page.get_by_label("This server needs a token").fill(token)
    page.get_by_role("button", name="Use this token").click()


def test_a_server_with_a_token_asks_for_it(browser: Any, served: ServedModel) -> None:
    with running(create_app(served, ServeConfig(), token="secret")) as client, new_page(browser, client) as page:
        page.wait_for_selector("#token-form")
        assert page.locator("#problem").is_hidden()  # nobody did anything wrong yet
        use_token(page, "wrong")
        page.wait_for_selector("#problem:has-text('does not accept this token')")
        use_token(page, "secret")
        page.wait_for_selector(".token")
        assert page.locator("#token-form").is_hidden()
        assert page.locator("#problem").is_hidden()


def test_a_late_answer_to_a_wrong_token_changes_nothing(browser: Any, served: ServedModel) -> None:
    held: list[Any] = []

    def hold_the_wrong(route: Any) -> None:
        if route.request.headers.get("authorization") == "Bearer wrong":
            held.append(route)
        else:
            route.continue_()

    with running(create_app(served, ServeConfig(), token="secret")) as client, new_page(browser, client) as page:
        page.wait_for_selector("#token-form")
        page.route("**/v1/models", hold_the_wrong)
        with page.expect_request("**/v1/models"):
            use_token(page, "wrong")
        use_token(page, "secret")  # while the answer to the wrong one is still on its way
        page.wait_for_selector(".token")
        with page.expect_response("**/v1/models"):
            held.pop().continue_()
        page.evaluate("new Promise(requestAnimationFrame)")
        assert page.locator("#token-form").is_hidden()
        assert page.locator("#problem").is_hidden()
