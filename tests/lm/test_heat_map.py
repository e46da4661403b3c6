"""What a notebook shows of a model and its results."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np

import elmokit
from elmokit import Elmo, HeatMap, LanguageModel
from elmokit.evaluation.occurrences import build_index
from tests.conftest import random_model

HOSTILE = ["<script>alert(1)</script>", '"quoted"', "a&b"]


class Page(HTMLParser):
    """The texts and tags of a piece of HTML; every tag must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.titles: list[str] = []
        self.opened: list[str] = []
        self.feed(html)
        self.close()
        assert not self.opened

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.titles += [value for name, value in attributes if name == "title" and value]
        if tag != "br":
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_sentence_is_shown_with_its_surprisal_and_expected_words() -> None:
    lm = LanguageModel(random_model())
    tokens = ["the", "cat", "sat"]
    shown = elmokit.show(tokens, lm, n_expected=2)
    (expected,) = lm.surprisal([tokens])
    page = Page(shown._repr_html_())
    for row in expected.nats[:, 1:-1]:
        for token, nats in zip(tokens, row, strict=True):
            assert page.texts[page.texts.index(token, 1) :].count(f"{nats:.1f}") >= 1
    assert page.texts.count("cat") == 2
    assert len(page.titles) == 6
    words = [one.word for one in lm.substitutes(tokens, 1, "backward", n=2)]
    assert page.titles[4] == f"{expected.nats[1, 2]:.2f} nats. Expected: {', '.join(words)}"


def test_a_terminal_shows_the_same_as_a_table() -> None:
    shown = elmokit.show(["the", "cat"], LanguageModel(random_model()))
    header, first, second = str(shown).splitlines()
    assert header.split() == ["token", "forward", "backward", "expected"]
    assert (first.split()[0], second.split()[0]) == ("the", "cat")
    assert f"{shown.surprisal.nats[1, 2]:.2f}" in second


def test_a_sentence_without_tokens_is_an_empty_table() -> None:
    assert str(elmokit.show([], LanguageModel(random_model()))).split() == ["token", "forward", "backward", "expected"]


def test_a_text_is_split_into_tokens() -> None:
    shown = elmokit.show("The cat sat.", LanguageModel(random_model()))
    assert shown.surprisal.tokens[1:-1] == ["The", "cat", "sat", "."]


def test_a_model_is_opened_by_its_path(tmp_path: Path) -> None:
    elmokit.save_model(random_model(), tmp_path / "model")
    assert isinstance(elmokit.show(["the"], tmp_path / "model"), HeatMap)


def test_tokens_are_never_read_as_html() -> None:
    lm = LanguageModel(random_model())
    for html in (elmokit.show(HOSTILE, lm)._repr_html_(), lm.surprisal([HOSTILE])[0]._repr_html_()):
        page = Page(html)
        assert "script" not in page.tags
        assert set(HOSTILE) <= set(page.texts)


def test_models_are_shown_with_their_facts() -> None:
    model = random_model()
    for shown in (model, Elmo(model), LanguageModel(model)):
        page = Page(shown._repr_html_())
        assert {"format", "parameters", f"{model.n_parameters:,}"} <= set(page.texts)


def test_neighbors_are_shown_as_a_table(tmp_path: Path) -> None:
    elmo = Elmo(random_model())
    sentences = [["the", "cat", "sat"], ["a", "dog", "<b>ran</b>"]]
    found = build_index(elmo, lambda: iter(sentences), tmp_path / "index").neighbors(elmo, ["the", "dog"], 1)
    page = Page(found._repr_html_())
    assert "Neighbors of the [dog]" in page.texts
    assert {"layer", "cosine", "occurrence"} <= set(page.texts)
    assert any("<b>ran</b>" in text for text in page.texts)


def test_the_sentences_of_a_text_are_read_by_themselves() -> None:
    model = LanguageModel(random_model())
    both = elmokit.show("the cat sat. the dog ran.", model)
    first, second = elmokit.show("the cat sat.", model), elmokit.show("the dog ran.", model)
    assert both.surprisal.tokens == [*first.surprisal.tokens[:-1], *second.surprisal.tokens[1:]]
    expected = np.concatenate([first.surprisal.nats[:, :-1], second.surprisal.nats[:, 1:]], axis=1)
    assert np.array_equal(both.surprisal.nats, expected, equal_nan=True)
    assert both.expected == first.expected + second.expected
