"""Passages are split into tokens that are slices of them."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from elmokit.tasks.readers.squad import covering_tokens, tokenize_passage
from elmokit.text.characters import INVISIBLE


def tokens_of(text: str) -> list[str]:
    return [token.token for token in tokenize_passage(text)]


def test_a_full_stop_ends_every_sentence_and_stays_with_abbreviations() -> None:
    text = "Dr. Brown came in May. She left the U.S. in 1999. Why?"
    assert tokens_of(text) == [
        *("Dr.", "Brown", "came", "in", "May", "."),
        *("She", "left", "the", "U.S.", "in", "1999", ".", "Why", "?"),
    ]


def test_hyphens_slashes_currency_and_dashes_are_tokens() -> None:
    assert tokens_of("a well-known 1990\N{EN DASH}1995 and/or £5 deal") == [
        *("a", "well", "-", "known", "1990", "\N{EN DASH}", "1995", "and", "/", "or", "£", "5", "deal")
    ]


def test_quotes_and_minus_signs_are_read_in_one_form_and_kept_in_the_text() -> None:
    text = "He said “go” at \N{MINUS SIGN}5 and 'no'."
    tokens = tokenize_passage(text)
    assert [token.token for token in tokens][2:5] == ['"', "go", '"']
    assert [text[token.start : token.stop] for token in tokens][2:5] == ["“", "go", "”"]
    assert "-" in [token.token for token in tokens]


STRANGE = " ab.,'\"`-_“”\N{RIGHT SINGLE QUOTATION MARK}$€n\n\té\u00a0\u2009\N{EM DASH}?!0"


@given(st.text(alphabet=st.sampled_from(STRANGE), max_size=40) | st.text(max_size=40))
def test_tokens_are_in_order_and_contain_every_visible_character(text: str) -> None:
    position, seen = 0, ""
    for _, start, stop in tokenize_passage(text):
        assert position <= start < stop
        position, seen = stop, seen + text[start:stop]
    seen, text = (re.sub(rf"[\s{INVISIBLE}]", "", part) for part in (seen, text))
    assert seen == text


def test_an_answer_that_cuts_a_token_is_widened_to_it() -> None:
    places = [(start, stop) for _, start, stop in tokenize_passage("The 1990s ended.")]
    assert covering_tokens(places, 4, 8) == (1, 1)
    assert covering_tokens(places, 0, 15) == (0, 2)
    assert covering_tokens([(0, 1), (3, 4)], 1, 3) is None
