"""How a model reads a token: with the marks and the character codes that its words have.

A token keeps its characters in all results. Only where its ids are looked up is it read in another spelling:

* Typographic marks. Text from the web, from books and from word processors has marks such as the apostrophe U+2019; the
  corpora of most models have ASCII marks only.
* Characters with several codes. "é" is one code, or "e" and an accent (as file systems of macOS, PDF files and some
  keyboards write it); Korean syllables can be written letter by letter; Latin letters have forms as wide as Chinese
  ones, and Arabic letters have forms for each place in a word.
* Marks of other programs, such as the escape &apos; (see ``foreign``), which is also said in a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from unicodedata import is_normalized, normalize

from elmokit.text.characters import UNKNOWN
from elmokit.text.foreign import FOREIGN, NEVER_WORDS, find_foreign, warn_of_foreign

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
MARKS: dict[int, str] = {ord(mark): plain for plain, marks in _READ_AS.items() for mark in marks}
"""How typographic marks are read, for ``str.translate``."""
TYPOGRAPHIC = frozenset(map(chr, MARKS)) - {"\u2013"}
"""The marks that show that a text was not changed to ASCII marks. En dashes often stay."""
INVISIBLE = _READ_AS[""]
"""Soft hyphens and marks without a width. Joiners are not among them: they are letters of some scripts."""

# Armenian ligatures, Arabic forms (two blocks), and wide and narrow forms of Latin, Japanese and Korean letters.
_FORM_RANGES = (range(0xFB13, 0xFB18), range(0xFB50, 0xFDFE), range(0xFE70, 0xFEFD), range(0xFF01, 0xFFEF))


def _forms() -> dict[int, str]:
    """Map the forms of a character to the character itself, but for those that would bring a space into a token."""
    forms = {}
    for code in chain(*_FORM_RANGES):
        char = normalize("NFKC", chr(code))
        if char != chr(code) and " " not in char:
            forms[code] = char
    return forms


FORMS = _forms()
"""How forms of a character are read, for ``str.translate``: as the character without a width or a place in a word."""
FORM_CHARS = frozenset(map(chr, FORMS))


class MarkReader:
    """Says how a model reads tokens.

    A token that the model knows is read as it is. Another word is read with plain marks, composed or decomposed, if the
    model knows it so. All else is composed, with ASCII marks in place of those that the model does not know.

    Args:
        words: The words that the model knows.
        chars: The characters that it knows.
        composes: Compose letters and their accents in words that the model does not know.
        all_chars: The only characters that it can read; None for any. Nothing is composed to another one.
        exact: Read every token as it is, as the original programs do.
        ranks: The rank of each word by frequency, from 0, to choose its case in a sentence in capitals.
    """

    def __init__(
        self,
        words: Collection[str] = (),
        chars: Iterable[str] = (),
        *,
        composes: bool = True,
        all_chars: Container[str] | None = None,
        exact: bool = False,
        ranks: Mapping[str, int] | None = None,
    ) -> None:
        self._words = words
        self._all_chars = all_chars
        self._exact = exact
        self._ranks = ranks
        known = {ord(char) for char in chars if len(char) == 1}
        self.marks = {mark: plain for mark, plain in MARKS.items() if mark not in known}
        """Typographic marks that the model does not know."""
        self.forms = {form: plain for form, plain in FORMS.items() if form not in known}
        """Forms of characters that the model does not know."""
        self.composes = composes and not exact

    def __call__(self, token: str) -> str:
        if not isinstance(token, str) or token in self._words:
            return token
        if token.isascii() and token.isalnum():
            return token
        foreign = find_foreign(token)
        if foreign is not None and foreign not in self.foreign:
            return self._read_foreign(token, foreign)
        if self._exact or token.isascii():
            return token
        known = self._known_spelling(token)
        if known is not None:
            return known
        return self.compose(token.translate(self.forms)).translate(self.marks) or token

    def _known_spelling(self, token: str) -> str | None:
        """Return another spelling of a word that the model knows, or None."""
        if not self._words or not any(map(str.isalnum, token)):
            return None
        for spelling in _spellings(token):
            if spelling in self._words:
                return spelling
        return None

    def in_case(self, tokens: Sequence[str]) -> Sequence[str]:
        """Return the tokens of a sentence in the case in which the model knows them; see :func:`read_capitals`."""
        if self._exact or self._ranks is None:
            return tokens
        read = read_capitals(tokens, self._ranks)
        if read is not tokens:
            warnings.warn(
                "Sentences in capitals are read in the case in which the vocabulary has their words.",
                stacklevel=1,
            )
        return read

    @cached_property
    def foreign(self) -> frozenset[str]:
        """The keys of the foreign marks that are words of the model: it was trained on text with such marks."""
        keys = {find_foreign(word) for word in self._words if word != UNKNOWN}
        return frozenset(key for key in keys if key is not None)

    def _read_foreign(self, token: str, key: str) -> str:
        """Read a token with marks of another program, and say so."""
        marks = FOREIGN[key]
        if self._exact and key not in NEVER_WORDS:
            return token
        if self._exact or marks.plain is None or (key == "unknown" and UNKNOWN not in self._words):
            warn_of_foreign(key, "are read as words")
            return token
        warn_of_foreign(key, f"are read as {marks.plain_name}")
        return marks.plain(token)

    @property
    def is_plain(self) -> bool:
        """Whether it knows no typographic mark and no form of a character, and composes letters and accents."""
        return self.composes and self._all_chars is None and (self.marks, self.forms) == (MARKS, FORMS)

    def compose(self, token: str) -> str:
        """Return a token with one code for each letter and its accents, if the model reads it so."""
        if not self.composes or token.isascii():
            return token
        composed = normalize("NFC", token)
        if self._all_chars is not None and not all(char in self._all_chars for char in composed):
            return token
        return composed


def _spellings(token: str) -> Iterable[str]:
    """Yield other spellings of a word, those first that most models know."""
    plain_forms = token.translate(FORMS)
    for form in ("NFC", "NFD"):
        spelling = normalize(form, plain_forms)
        yield spelling.translate(MARKS)
        yield spelling


MAX_LOWER = 0.1
"""In a sentence in capitals, at most this fraction of its words has a lower-case letter."""


def read_capitals(tokens: Sequence[str], ranks: Mapping[str, int]) -> Sequence[str]:
    """Return a sentence in capitals in the case in which its words are most frequent, and other sentences as they are.

    A sentence is in capitals if it has two words in capitals, (nearly) no other, and a word that is known in another
    case only: *US TROOPS*, but not *US* or *NATO*. Of a word in capitals, lower case, capitalized and capitals are
    compared; one that is known in none of them is read in lower case. The first word is capitalized, if it is known so.
    """
    n_capitals = sum(map(str.isupper, tokens))
    if n_capitals < 2:
        return tokens
    n_others = sum(token != token.upper() for token in tokens)
    if n_others > MAX_LOWER * n_capitals:
        return tokens
    n_words = len(ranks)
    read: list[str] = []
    is_in_capitals = False
    is_first = True
    for token in tokens:
        if not token.isupper():
            read.append(token)
            continue
        lower = token.lower()
        capitalized = token[:1] + lower[1:]
        best = min(lower, capitalized, token, key=lambda word: ranks.get(word, n_words))  # the first of equal ones
        if token not in ranks and best in ranks:
            is_in_capitals = True
        if is_first and best == lower and capitalized in ranks:
            best = capitalized
        is_first = False
        read.append(best)
    return read if is_in_capitals else tokens


def are_composed(words: Iterable[str]) -> bool:
    """Say whether all words have one code for each letter and its accents. If one has not, neither had its text."""
    return is_normalized("NFC", "\n".join(words))  # nothing composes with the end of a line


EXACT = MarkReader(exact=True)
"""Reads every token as it is, as the original programs do."""
PLAIN = MarkReader()
"""Reads all marks and codes as plain ones: nothing says what the model knows."""
