"""The explorer of ``elmokit serve``, in a real browser."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.testing import assert_allclose

pytest.importorskip("fastapi")
pytest.importorskip("granian")
pytest.importorskip("prometheus_client")
pytest.importorskip("playwright")
pytest.importorskip("axe_playwright_python")

from axe_playwright_python.sync_playwright import Axe

from elmokit import Elmo, LanguageModel, tokenize
from elmokit.serve.app import PAGE, application
from elmokit.serve.examples import EXAMPLES
from elmokit.serve.serve_config import ServeConfig
from elmokit.serve.served_model import ServedModel
from tests.helpers.browser import AT_THE_TOP, CHROMIUM, VIEWS, open_view
from tests.helpers.browser import new_page as new_page_at
from tests.helpers.http_client import Client, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
TOKENS = ["The", "bank", "raised", "its", "rate", "."]
TEXT = " ".join(TOKENS)


def new_page(browser: Any, client: Client, address: str = "", **options: Any) -> AbstractContextManager[Any]:
    """Open the explorer in a window of its own."""
    base = f"http://127.0.0.1:{client.port}"
    return new_page_at(browser, f"{base}/{address}", base_url=base, **options)


@pytest.fixture
def page(browser: Any, server: Client) -> Iterator[Any]:
    with new_page(browser, server) as opened:
        opened.wait_for_selector(AT_THE_TOP)
        yield opened


def show(page: Any, text: str) -> None:
    if page.locator("#sentence-form").is_hidden():
        page.click("#tab-sentence")
    page.get_by_label("One or more sentences").fill(text)
    page.get_by_role("button", name="Show").click()
    page.wait_for_selector("[aria-busy]", state="detached")


def shown_nats(page: Any) -> list[float]:
    return [float(number) for number in page.locator(".tokens .surprise small").all_text_contents()]


def table(page: Any, selector: str) -> list[list[str]]:
    rows = page.locator(f"{selector} tbody tr")
    return [rows.nth(number).locator("td").all_text_contents() for number in range(rows.count())]


def test_the_heat_map_shows_the_surprisal_of_each_direction(page: Any) -> None:
    (expected,) = LanguageModel.from_pretrained().surprisal([TOKENS])
    show(page, TEXT)
    assert_allclose(shown_nats(page), expected.nats[:, 1:-1].mean(axis=0), atol=0.051)
    for row, label in enumerate(("from the left", "from the right")):
        page.get_by_label(label).check(force=True)  # the label covers it
        page.wait_for_url(f"**direction={('forward', 'backward')[row]}**")
        page.wait_for_selector("[aria-busy]", state="detached")
        assert_allclose(shown_nats(page), expected.nats[row, 1:-1], atol=0.051)
    least, most = (float(page.locator(".token").nth(i).evaluate(SHARE)) for i in (5, 1))
    assert least < most  # the colors follow the numbers


SHARE = "button => getComputedStyle(button).getPropertyValue('--share')"


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
        assert items == [f"{one.similarity:.2f}{' '.join(one.words).replace(' .', '.')}" for one in occurrences]
    for direction, title in (("forward", "From the left"), ("backward", "From the right"), ("both", "Both sides")):
        words = LanguageModel(served.elmo.model).substitutes(TOKENS, 1, direction, n=8)  # type: ignore[arg-type]
        items = page.locator(f"div:has(> h3:text-is('{title}')) li").all_text_contents()
        assert [item.split("%")[1] for item in items] == [one.word for one in words]


def test_a_paragraph_is_read_as_a_document_and_shown_by_its_words(page: Any, served: ServedModel) -> None:
    text = "The trial didn't last.\nThey found him (not) guilty."
    lm, sentences = LanguageModel(served.elmo.model), tokenize(text)
    show(page, text)
    for documents in (True, False):
        rows = lm.word_surprisal([text], documents=documents)
        assert page.locator(".tokens li").evaluate_all(WITHOUT_NUMBERS) == [row.word for row in rows]
        assert_allclose(shown_nats(page), [np.mean([row.forward_nats, row.backward_nats]) for row in rows], atol=0.051)
        if documents:  # it stays chosen
            page.get_by_role("button", name="guilty, ").click()
        page.wait_for_selector("h2:has-text('Neighbors of “guilty”')")
        before = sentences[:1] if documents else []
        words = lm.substitutes(sentences[1], 6, n=8, before=before)
        items = page.locator("div:has(> h3:text-is('Both sides')) li").all_text_contents()
        assert [item.split("%")[1] for item in items] == [one.word for one in words]
        vectors = served.elmo.embed_documents([[*before, sentences[1]]])[0][-1]
        nearest = served.index.searches(vectors, sentences[1], 6, [2], 5, "any", 1)[2]()[0]
        item = page.locator("div:has(> h3:text-is('Layer 2')) li").first.text_content()
        assert item == f"{nearest.similarity:.2f}{' '.join(nearest.words).replace(' .', '.')}"
        assert "The sum of its 2 tokens" in page.locator("#detail").text_content()
        page.get_by_label("separately").check(force=True)
        page.wait_for_url("**reading=alone**")
        page.wait_for_selector("[aria-busy]", state="detached")


def test_an_unknown_word_is_expected_the_second_time_with_the_words_of_its_text_in_mind(
    page: Any, served: ServedModel
) -> None:
    text = "Zbigniew slept. Zbigniew ran."
    show(page, text)
    unknown = page.locator(".token.unknown")
    assert unknown.count() == 2
    page.get_by_label("with a cache").check(force=True)
    page.wait_for_url("**reading=cache**")
    page.wait_for_selector("[aria-busy]", state="detached")
    assert unknown.count() == 1
    row = LanguageModel(served.elmo.model).word_surprisal([text], documents=True, cache=True)[2]
    assert row.spelling_nats == 0
    mean = np.mean([row.forward_nats, row.backward_nats])
    assert f"Zbigniew, {mean:.1f} nats" in page.locator("button.token").nth(3).get_attribute("aria-label")
    page.get_by_role("button", name="Zbigniew, ").last.click()
    page.wait_for_selector("h2:has-text('Neighbors of “Zbigniew”')")
    page.get_by_label("as a document").check(force=True)
    page.wait_for_url("**reading=document**")
    page.wait_for_selector("[aria-busy]", state="detached")
    assert unknown.count() == 2


WITHOUT_NUMBERS = "all => all.map(one => [...one.querySelectorAll('button')].map(own => own.firstChild.data).join(''))"


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


def examples_of(word: str) -> list[list[str]]:
    return [sentence.split() for sense in EXAMPLES["senses"][word] for sentence in sense]


def word_vectors(word: str) -> np.ndarray:
    sentences = examples_of(word)
    arrays = Elmo.from_pretrained().embed(sentences)
    rows = np.stack([one[:, tokens.index(word)] for one, tokens in zip(arrays, sentences, strict=True)], axis=1)
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))


def test_senses_are_compared_by_layer(page: Any) -> None:
    page.get_by_role("button", name="watch", exact=True).click()
    page.wait_for_selector("h2:has-text('“watch” in 8 sentences')")
    is_same = np.equal.outer(np.arange(8) < 4, np.arange(8) < 4)
    for layer, rows in enumerate(word_vectors("watch")):
        cells = table(page, f"#panel-senses .tables > :nth-child({layer + 1})")
        shown = np.array([[100.0 if not cell.isdecimal() else float(cell) for cell in row] for row in cells])
        cosines = rows @ rows.T
        assert_allclose(shown, 100 * cosines, atol=0.51)
        page.get_by_label(str(layer), exact=True).check(force=True)
        note = page.locator("#layer-note").text_content()
        if layer:
            same, other = cosines[is_same & ~np.eye(8, dtype=bool)].mean(), cosines[~is_same].mean()
            assert same > other + 0.15  # the example was chosen for that
            assert note.endswith(f"with the same sense: {same:.2f}, with different senses: {other:.2f}.")
        else:
            assert note == "Layer 0. No context: all occurrences have the same vector."


@pytest.mark.parametrize("width", [1000, 1280])
def test_tables_of_similarities_are_shown_whole(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.click("summary:has-text('Pairwise similarities')")
    hidden = page.locator(".tables > *").evaluate_all("all => all.map((one) => one.scrollWidth - one.clientWidth)")
    assert hidden == [0, 0, 0]


def points(page: Any) -> np.ndarray:
    places = page.locator(".map g").evaluate_all("all => all.map(one => one.getAttribute('transform'))")
    return np.array([place.removeprefix("translate(").rstrip(")").split() for place in places], dtype=float)


def test_the_map_moves_from_layer_0_to_the_top(browser: Any, server: Client) -> None:
    with new_page(browser, server, "#word=left") as page:
        page.wait_for_selector(AT_THE_TOP)  # by itself, the first time
        page.wait_for_url("**layer=2**")
        top = points(page)
        page.get_by_label("2", exact=True).focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector("figure[data-layer='0']")
        bottom = points(page)
        assert np.ptp(bottom, axis=0).max() < 5 * POINT  # without context, all are one point and lie side by side
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        page.wait_for_selector(AT_THE_TOP)
        assert_allclose(points(page), top)
    vectors = word_vectors("left")[-1]
    centered = vectors - vectors.mean(axis=0)
    components = np.linalg.svd(centered)[2][:2]
    expected = centered @ components.T  # up to turning, mirroring and the scale of the drawing
    ratios = distances(top)[np.triu_indices(8, 1)] / distances(expected)[np.triu_indices(8, 1)]
    is_free = distances(expected)[np.triu_indices(8, 1)] > 0.35  # closer points were moved apart
    assert is_free.sum() > 10
    assert_allclose(ratios[is_free], np.median(ratios[is_free]), rtol=0.12)


POINT = 30  # pixels


def distances(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(rows[:, None] - rows[None], axis=-1))


def test_the_layers_are_compared_by_what_they_know(page: Any) -> None:
    open_view(page, "layers")
    titles = page.locator("#panel-layers caption").all_text_contents()
    assert titles == ["Spelling", "Parts of speech", "Word senses in running text", "Senses of the 12 example words"]
    spelling, _, _, senses = (
        [float(row[1].removesuffix("\xa0%")) for row in table(page, f".card:nth-child({number})")[::-1]]
        for number in range(1, 5)
    )
    assert spelling[0] > 1.5 * spelling[1] > 1.5 * spelling[2]
    is_right = []
    for word, groups in EXAMPLES["senses"].items():
        labels = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        vectors = word_vectors(word)
        cosines = vectors @ vectors.swapaxes(1, 2) - 3 * np.eye(len(labels))
        nearest = cosines >= cosines.max(axis=-1, keepdims=True) - 1e-6
        is_right.append((nearest & (labels == labels[:, None])).sum(axis=-1) / nearest.sum(axis=-1))
    assert_allclose(senses, 100 * np.concatenate(is_right, axis=1).mean(axis=1), atol=0.06)


@pytest.mark.parametrize("view", ["senses", "sentence"])
def test_pictures_are_saved_as_svg_and_png(page: Any, view: str, tmp_path: Path) -> None:
    if view == "sentence":
        show(page, 'The <b> "wug\x02" bank & co .')  # XML has no control characters, but copied text may
        page.get_by_role("button", name="bank, ").click()
        page.wait_for_selector("h2:has-text('in place of “bank”')")
    for kind in ("svg", "png"):
        with page.expect_download() as download:
            page.click(f"#save-{kind}")
        name = "play" if view == "senses" else "The-b-wug-bank-co-"
        assert download.value.suggested_filename == f"elmokit-{name}.{kind}"
        download.value.save_as(tmp_path / f"picture.{kind}")
    root = ElementTree.parse(tmp_path / "picture.svg").getroot()
    lines = ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]
    if view == "senses":
        assert {"“play” in 8 sentences", "He wrote a play about two sisters.", "Layer 2"} <= set(lines)
    else:
        expected = LanguageModel.from_pretrained().substitutes(
            ["The", "<b>", '"', "wug\x02", '"', "bank", "&", "co", "."], 5
        )
        assert {'"wug\ufffd"', "unknown", "&", expected[0].word} <= set(lines)
    header = (tmp_path / "picture.png").read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    size = [int.from_bytes(header[at : at + 4], "big") for at in (16, 20)]
    assert size == [2 * int(root.attrib[name]) for name in ("width", "height")]


def compare_two(page: Any, word: str, *sentences: str) -> None:
    """Compare a word of one's own in two sentences."""
    page.click("summary:has-text('Try your own word')")
    page.get_by_label("A word", exact=True).fill(word)
    page.get_by_label("Sentences that contain it").fill("\n\n".join(sentences))
    page.get_by_role("button", name="Compare").click()
    page.wait_for_selector(f"h2:has-text('“{word}” in 2 sentences')")


def open_saved_picture(page: Any, folder: Path) -> None:
    with page.expect_download() as download:
        page.click("#save-svg")
    download.value.save_as(folder / "picture.svg")
    page.goto((folder / "picture.svg").as_uri())


def test_a_saved_picture_breaks_long_sentences_into_lines(page: Any, tmp_path: Path) -> None:
    sentence = " ".join(["The steep bank was covered with flowers, trees and a row of old chestnuts"] * 3)
    compare_two(page, "bank", "A bank lends money.", sentence)
    open_saved_picture(page, tmp_path)
    edges = page.locator("text").evaluate_all("all => all.map((one) => one.getBBox().x + one.getBBox().width)")
    assert max(edges) < 960
    shown = " ".join(page.locator("text").all_text_contents())
    assert sentence in shown


@pytest.mark.parametrize("view", ["senses", "sentence"])
def test_a_saved_picture_shortens_words_that_are_wider_than_it(page: Any, view: str, tmp_path: Path) -> None:
    word = "Donaudampfschifffahrtsgesellschaftskapitän" * 5
    text = f"We saw {word} there."
    if view == "sentence":
        show(page, text)
        page.get_by_role("button", name=f"{word}, ").click()
        page.wait_for_selector("h2:has-text('What the model expects in place of')")
    else:
        compare_two(page, word, text, f"Nobody saw {word} here.")
    open_saved_picture(page, tmp_path)
    boxes = page.locator("text").evaluate_all("all => all.map((one) => [one.getBBox().x, one.getBBox().width])")
    assert all(left >= 32 and left + width <= 928 for left, width in boxes)
    shortened = [one for one in page.locator("text").all_text_contents() if "Donaudampfschiff" in one]
    assert len(shortened) > 1
    assert all("…" in one for one in shortened)


@pytest.mark.parametrize("view", VIEWS)
def test_the_copied_python_code_computes_what_is_shown(browser: Any, server: Client, view: str) -> None:
    allowed = {"permissions": ["clipboard-read", "clipboard-write"]}
    with new_page(browser, server, **allowed) as page:
        page.wait_for_selector(AT_THE_TOP)
        if view != "senses":
            open_view(page, view)
        page.get_by_role("button", name="Copy as Python").click()
        page.wait_for_selector("#copied:has-text('Copied the code.')")
        code = page.evaluate("navigator.clipboard.readText()")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "copied.py", "exec"), {})
        lines = printed.getvalue().splitlines()
        if view == "sentence":
            n_words = len(shown_nats(page))
            means = [np.mean(list(map(float, line.split()[1:]))) for line in lines[:n_words]]
            assert_allclose(means, shown_nats(page), atol=0.051)
            words = page.locator("div:has(> h3:text-is('Both sides')) li").all_text_contents()
            assert lines[n_words + 2] == f"both {[word.split('%')[1] for word in words]}"
        elif view == "layers":
            shown = [row[1].replace("\xa0", " ") for row in table(page, ".card:last-child")[::-1]]
            assert lines == [f"layer {layer}: {share}" for layer, share in enumerate(shown)]
        else:
            assert [line for line in lines if line.startswith("layer")] == ["layer 0", "layer 1", "layer 2"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(browser: Any, server: Client, scheme: str) -> None:
    with new_page(browser, server, color_scheme=scheme) as page:
        page.wait_for_selector(AT_THE_TOP)
        for view in VIEWS:
            open_view(page, view)
            found = Axe().run(page)
            assert not found.response["violations"], found.generate_report()


def test_the_page_fits_a_phone(browser: Any, server: Client) -> None:
    with new_page(browser, server, viewport={"width": 360, "height": 740}) as page:
        page.wait_for_selector(AT_THE_TOP)
        for view in VIEWS:
            open_view(page, view)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_nothing_comes_from_another_host_and_the_page_is_small(browser: Any, server: Client) -> None:
    asked: list[str] = []
    context = browser.new_context()
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"http://127.0.0.1:{server.port}/")
    page.wait_for_selector(AT_THE_TOP)
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
    page.click("summary:has-text('Try your own word')")
    page.get_by_label("A word", exact=True).fill("<b>")
    page.get_by_label("Sentences that contain it").fill("a <b> c\nd <b> e")
    page.get_by_role("button", name="Compare").click()
    page.wait_for_selector("[aria-busy]", state="detached")
    assert page.locator("main b").count() == 0


def test_problems_are_explained_and_old_results_go(page: Any) -> None:
    show(page, TEXT)
    show(page, "   ")
    page.wait_for_selector("#problem:has-text('Please type a text.')")
    assert page.locator(".token").count() == 0  # they were those of another sentence
    assert page.locator("#tools").is_hidden()
    show(page, "long " * 20_000)
    page.wait_for_selector("#problem:has-text('Please try a shorter text.')")
    open_view(page, "senses")
    page.click("summary:has-text('Try your own word')")
    page.get_by_label("A word", exact=True).fill("heron")
    page.get_by_role("button", name="Compare").click()
    page.wait_for_selector("#problem:has-text('Sentence 1 does not contain the word “heron”')")
    page.get_by_label("A word", exact=True).fill("constructor")
    page.get_by_role("button", name="Compare").click()
    page.wait_for_selector("#problem:has-text('Sentence 1 does not contain the word “constructor”')")
    assert page.locator(".point").count() == 0
    show(page, TEXT)
    assert page.locator("#problem").is_hidden()
    assert len(shown_nats(page)) == len(TOKENS)


def use_token(page: Any, token: str) -> None:
    page.get_by_label("This server needs a token").fill(token)
    page.get_by_role("button", name="Use this token").click()


def test_a_server_with_a_token_asks_for_it(browser: Any, served: ServedModel) -> None:
    with running(application(served, ServeConfig(), token="secret")) as client, new_page(browser, client) as page:
        page.wait_for_selector("#token-form")
        assert page.locator("#problem").is_hidden()  # nobody did anything wrong yet
        use_token(page, "wrong")
        page.wait_for_selector("#problem:has-text('does not accept this token')")
        use_token(page, "secret")
        page.wait_for_selector(".point")
        assert page.locator("#token-form").is_hidden()
        assert page.locator("#problem").is_hidden()
