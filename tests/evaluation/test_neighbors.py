"""Neighbors in context: how they are shown."""

from __future__ import annotations

from elmokit.evaluation.neighbors import in_context


def test_words_in_context_are_aligned_and_never_cut() -> None:
    tokens = ["one", "two", "three", "four", "five"]
    assert in_context(tokens, 2, width=8) == " one two [three] four"
    assert in_context(tokens, 0, width=8) == "         [one] two"
    assert in_context(tokens, 4, width=3) == "    [five]"
