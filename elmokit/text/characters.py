"""The characters of a token as a model reads them: their ids, and ASCII marks in place of typographic ones.

A character is a UTF-8 byte. The ids are those of all published models: bytes are 1 to 256, followed by five marks.
They are one higher than in bilm-tf's training code, so that 0 can mean "no token here".

Text from the web, from books and from word processors has typographic marks, such as the apostrophe U+2019; the corpora
of most models have ASCII marks only. A token keeps its characters, and is read in ASCII where its ids are looked up.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

N_CHARS = 261
BEGIN_SENTENCE_CHAR = 257
END_SENTENCE_CHAR = 258
BEGIN_TOKEN_CHAR = 259
END_TOKEN_CHAR = 260
PADDING_CHAR = 261

BEGIN_SENTENCE = "<S>"
END_SENTENCE = "</S>"
UNKNOWN = "<UNK>"

_BOUNDARY_CHARS = {BEGIN_SENTENCE: BEGIN_SENTENCE_CHAR, END_SENTENCE: END_SENTENCE_CHAR}

CharIds = NDArray[np.int64]


def encode_tokens(tokens: Sequence[str], max_chars: int) -> CharIds:
    """Return the character ids of tokens ``(tokens, max_chars)``: a begin mark, the UTF-8 bytes, an end mark, padding.

    As in bilm-tf and AllenNLP, bytes beyond ``max_chars - 2`` are cut off, even in the middle of a character, and lone
    surrogates are dropped. The tokens ``<S>`` and ``</S>`` get the marks of a sentence boundary.
    """
    ids = np.full((len(tokens), max_chars), PADDING_CHAR, dtype=np.int64)
    ids[:, 0] = BEGIN_TOKEN_CHAR
    for row, token in zip(ids, tokens, strict=True):
        if token in _BOUNDARY_CHARS:
            row[1] = _BOUNDARY_CHARS[token]
            row[2] = END_TOKEN_CHAR
            continue
        data = token.encode("utf-8", errors="ignore")[: max_chars - 2]
        row[1 : 1 + len(data)] = np.frombuffer(data, dtype=np.uint8)
        row[1 : 1 + len(data)] += 1
        row[1 + len(data)] = END_TOKEN_CHAR
    return ids


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
