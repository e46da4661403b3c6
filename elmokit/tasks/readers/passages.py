"""Raw passages to tokens that know where they stand, for tasks whose answers are slices of the text.

Sentences by NLTK's Punkt with a fixed list of abbreviations, words in the manner of the Penn Treebank by NLTK, then
more splits at hyphens, slashes, quotes, currency signs and dashes, as in Clark and Gardner's program, so that an
answer rarely cuts a token. Theirs took Punkt's learned abbreviations for English, a file that NLTK downloads; this
needs none.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from elmokit.errors import MissingExtraError

ABBREVIATIONS = (
    "mr mrs ms dr prof st mt ft sr jr rev hon gen col lt capt sgt maj gov sen rep pres co corp inc ltd bros vs etc al",
    "approx jan feb mar apr jun jul aug sep sept oct nov dec no vol pp ed eds cf ca fig u.s u.k u.n e.g i.e a.m p.m",
    "b.c a.d ph.d",
)
DOUBLE_QUOTES = "\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}\N{DOUBLE LOW-9 QUOTATION MARK}«»"
SINGLE_QUOTES = "\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}"
DASHES = "\N{EN DASH}\N{EM DASH}\N{MINUS SIGN}"
BREAK = re.compile(rf"``|''|(?<=[^_])_(?=[^_])|[-/~\"'°£€¥¢₹{DOUBLE_QUOTES}{SINGLE_QUOTES}{DASHES}]")
PLAIN = {
    **dict.fromkeys(("``", "''", *DOUBLE_QUOTES), '"'),
    **dict.fromkeys(SINGLE_QUOTES, "'"),
    "\N{MINUS SIGN}": "-",
}
"""What a token is read as where it differs from its slice of the text: quotes and minus signs have one form each."""


class PlacedToken(NamedTuple):
    """A token and its slice ``text[start:stop]`` of the passage."""

    token: str
    start: int
    stop: int


def passage_tokenizer() -> Callable[[str], list[PlacedToken]]:
    """A function from a raw passage to its tokens in order, with their places.

    Raises:
        MissingExtraError: NLTK is not installed.
    """
    try:
        from nltk.tokenize import NLTKWordTokenizer
        from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer
    except ImportError:
        raise MissingExtraError("Tokenising raw passages", "tokenize") from None
    parameters = PunktParameters()
    parameters.abbrev_types = set(" ".join(ABBREVIATIONS).split())
    sentences, words = PunktSentenceTokenizer(parameters), NLTKWordTokenizer()

    def tokenize(text: str) -> list[PlacedToken]:
        tokens = []
        for sentence_start, sentence_stop in sentences.span_tokenize(text):
            for start, stop in words.span_tokenize(text[sentence_start:sentence_stop]):
                tokens += _split(text, sentence_start + start, sentence_start + stop)
        return tokens

    return tokenize


def _split(text: str, start: int, stop: int) -> list[PlacedToken]:
    """The pieces of one word: what ``BREAK`` matches, and what stands between."""
    cuts = [start]
    for match in BREAK.finditer(text, start, stop):
        cuts += [match.start(), match.end()]
    cuts.append(stop)
    pieces = [(text[first:last], first, last) for first, last in itertools.pairwise(cuts) if first < last]
    return [PlacedToken(PLAIN.get(piece, piece), first, last) for piece, first, last in pieces]


def covering_tokens(places: Sequence[tuple[int, int]], start: int, stop: int) -> tuple[int, int] | None:
    """The first and the last token that share a character with ``text[start:stop]``; None where none does.

    Args:
        places: start and stop of each token.
    """
    covered = [index for index, (first, last) in enumerate(places) if last > start and first < stop]
    return (covered[0], covered[-1]) if covered else None
