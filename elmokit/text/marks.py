"""Read typographic marks, such as the apostrophe U+2019, as the ASCII marks that models know.

Text from the web, from books and from word processors has them; the corpora of most models have ASCII marks only. A
token keeps its characters, and is read in ASCII where its ids and characters are looked up.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

_READ_AS = {
    "'": "\u2018\u2019\u201a\u201b\u2039\u203a\u2032\u00b4\u02bc",
    '"': "\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033",
    "-": "\u2010\u2011\u2012\u2013\u2212",
    "--": "\u2014\u2015",
    "...": "\u2026",
    "": "\u00ad\u200b\u200e\u200f\u2060\ufeff",
    # Ligatures, which PDF files have.
    "ff": "\ufb00",
    "fi": "\ufb01",
    "fl": "\ufb02",
    "ffi": "\ufb03",
    "ffl": "\ufb04",
    "st": "\ufb05\ufb06",
}
MARKS: Mapping[int, str] = {ord(mark): plain for plain, marks in _READ_AS.items() for mark in marks}
"""How typographic marks are read, for ``str.translate``."""
TYPOGRAPHIC = frozenset(map(chr, MARKS)) - {"\u2013"}
"""The marks that show that a text was not changed to ASCII marks. En dashes often stay."""
INVISIBLE = _READ_AS[""]
"""Soft hyphens and marks without a width. Joiners are not among them: they are letters of some scripts."""


class MarkReader:
    """Says how a model reads tokens.

    A token that the model knows is read as it is. Another word is read with ASCII marks if the model knows it so, and
    all else with ASCII marks in place of those that the model does not know.

    Args:
        words: The words that the model knows.
        chars: The characters that it knows.
    """

    def __init__(self, words: Container[str] = (), chars: Iterable[str] = ()) -> None:
        self._words = words
        known = {ord(char) for char in chars if len(char) == 1}
        self.marks = {mark: plain for mark, plain in MARKS.items() if mark not in known}
        """Marks that the model does not know."""

    def __call__(self, token: str) -> str:
        if not isinstance(token, str) or token.isascii() or token in self._words:
            return token
        plain = token.translate(MARKS)
        is_known_word = plain in self._words and any(map(str.isalnum, token))
        return (plain if is_known_word else token.translate(self.marks)) or token


EXACT = MarkReader(chars=map(chr, MARKS))
"""Reads every token as it is, as the original programs do."""
