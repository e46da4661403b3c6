"""Split text in any language into sentences and tokens by Unicode character classes, without other libraries.

Words are not separated in scripts without spaces, such as Thai, and abbreviations are unknown.
"""

from __future__ import annotations

import re
from functools import cache
from unicodedata import category

from elmokit.text.english import Span, without_invisible
from elmokit.text.marks import INVISIBLE

_FULL_WIDTH = "\u3002\uff01\uff0e\uff1f\uff61"  # not followed by a space
_ENDS = f".?!\u2026\u0589\u061f\u06d4\u0700\u0964\u0965\u104b\u1362\u1367\u17d4\u1803{_FULL_WIDTH}"
"""Marks that end a sentence: in Latin, Armenian, Arabic, Urdu, Syriac, Indian, Burmese, Ethiopic, Khmer, Mongolian,
Chinese and Japanese text."""
_CLASSES = {"L": "l", "M": "m", "N": "d"}
"""By Unicode's category: letters, marks on the character before, and digits."""
_OWN_CLASSES = {"'": "a", "\u2019": "a", ".": "p", ",": "p", "\u200c": "m", "\u200d": "m"}
"""Apostrophes, points and joiners."""
_TOKEN = re.compile("l[lm]*(?:al[lm]*)*|d[dm]*(?:pd[dm]*)*|[^s]m*")


def token_spans(text: str) -> list[Span]:
    """Return the character offsets of the tokens: sequences of letters, of digits, and single marks.

    An apostrophe between letters is part of the word, and a period or comma between digits is part of the number, as in
    Unicode's word boundary rules (UAX 29).
    """
    return without_invisible(_token_spans, text)


def _token_spans(text: str) -> list[Span]:
    classes = "".join(map(_class, text))
    return [match.span() for match in _TOKEN.finditer(classes)]


@cache
def _class(char: str) -> str:
    """Return a character's class: letter, combining mark, digit, apostrophe, point, space or other."""
    if char.isspace():
        return "s"
    return _OWN_CLASSES.get(char) or _CLASSES.get(category(char)[0], "x")


def split_any(line: str) -> list[list[str]]:
    """Split a line into sentences and tokens."""
    sentences: list[list[str]] = []
    end = ""  # the mark that may have ended the sentence
    before, stop = "", 0  # the token before, and where it stops
    for start, next_stop in token_spans(line):
        token = line[start:next_stop]
        has_gap = bool(line[stop:start].strip(INVISIBLE))
        if not sentences or _begins_sentence(token, end, has_gap):
            sentences.append([])
            end = ""
        if token in _ENDS:
            is_initial = token == "." and len(before) == 1 and before.isalpha()
            end = "" if is_initial else token
        elif has_gap or not _closes(token):
            end = ""
        sentences[-1].append(token)
        before, stop = token, next_stop
    return sentences


def _begins_sentence(token: str, end: str, has_gap: bool) -> bool:
    """Check whether a token begins a sentence, given the mark, if any, that may have ended the previous one."""
    if not end or token[0].islower():
        return False
    return has_gap or (end in _FULL_WIDTH and not _closes(token))


def _closes(token: str) -> bool:
    """Check for a mark that can follow the end of a sentence, such as a quotation mark."""
    return token in f"{_ENDS}\"'" or category(token[0]) in ("Pe", "Pf")
