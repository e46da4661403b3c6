"""Tokenize raw passages with character offsets, for tasks whose answers are slices of the text.

Sentences and words are split as in the Penn Treebank. Tokens are then split further at hyphens, slashes, quotes,
currency signs and dashes, as in Clark and Gardner's program, so that an answer rarely starts or ends inside a token.
Their program used Punkt's learned English abbreviations; here it is a fixed list.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from elmokit.text.english import sentence_spans, token_spans

DOUBLE_QUOTES = "\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}\N{DOUBLE LOW-9 QUOTATION MARK}«»"
SINGLE_QUOTES = "\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}"
DASHES = "\N{EN DASH}\N{EM DASH}\N{MINUS SIGN}"
SPLIT_AT = re.compile(rf"``|''|(?<=[^_])_(?=[^_])|[-/~\"'°£€¥¢₹{DOUBLE_QUOTES}{SINGLE_QUOTES}{DASHES}]")
NORMALIZED = {
    **dict.fromkeys(("``", "''", *DOUBLE_QUOTES), '"'),
    **dict.fromkeys(SINGLE_QUOTES, "'"),
    "\N{MINUS SIGN}": "-",
}
"""Tokens that differ from their slice of the text: all quotes and minus signs are read in their ASCII form."""


class OffsetToken(NamedTuple):
    """A token and its slice ``text[start:stop]`` of the passage."""

    token: str
    start: int
    stop: int


def tokenize_passage(text: str) -> list[OffsetToken]:
    """Split a raw passage into its tokens with their character offsets."""
    tokens = []
    for sentence_start, sentence_stop in sentence_spans(text):
        for start, stop in token_spans(text[sentence_start:sentence_stop]):
            tokens += _split_word(text, sentence_start + start, sentence_start + stop)
    return tokens


def _split_word(text: str, start: int, stop: int) -> list[OffsetToken]:
    """Split one word into the matches of ``SPLIT_AT`` and the text between them."""
    cuts = [start]
    for match in SPLIT_AT.finditer(text, start, stop):
        cuts += [match.start(), match.end()]
    cuts.append(stop)
    pieces = [(text[first:last], first, last) for first, last in itertools.pairwise(cuts) if first < last]
    return [OffsetToken(NORMALIZED.get(piece, piece), first, last) for piece, first, last in pieces]


def covering_tokens(offsets: Sequence[tuple[int, int]], start: int, stop: int) -> tuple[int, int] | None:
    """Return the first and the last token that overlap with ``text[start:stop]``, or None if there is none."""
    first = bisect.bisect_right(offsets, start, key=lambda token: token[1])
    last = bisect.bisect_left(offsets, stop, key=lambda token: token[0]) - 1
    return (first, last) if first <= last else None
