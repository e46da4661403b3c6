from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.lm.spelling import N_SYMBOLS, Spelling

WORDS = ["the", "then", "cat", "cats", "Ätna"]


@pytest.mark.slow
@given(st.lists(st.text(max_size=5), max_size=6), st.binary(max_size=4))
def test_the_probabilities_of_every_context_sum_to_one(words: list[str], context: bytes) -> None:
    spelling = Spelling(words)
    total = sum(spelling.probability(symbol, tuple(context)) for symbol in range(N_SYMBOLS))
    assert total == pytest.approx(1.0)


def test_without_words_every_byte_costs_the_same() -> None:
    assert Spelling([]).bits("cat") == pytest.approx(4 * math.log2(257))
    assert Spelling([]).bits("Ä") == pytest.approx(3 * math.log2(257))


def test_costs_equal_the_formula_by_hand() -> None:
    spelling = Spelling(["ab"])
    start = 1 / 257
    first = (1 + 3 * start) / (3 + 3)  # after nothing: a, b and the end, once each
    second = (1 + first) / 2  # after a: b, once
    end = (1 + (1 + first) / 2) / 2  # after b, then after ab: the end, once each
    assert spelling.bits("ab") == pytest.approx(-sum(map(math.log2, (first, second, end))))


def test_a_word_like_those_of_the_vocabulary_is_cheaper() -> None:
    spelling = Spelling(WORDS)
    assert spelling.bits("cathen") < spelling.bits("ncthea") < spelling.bits("qqqqqq")
