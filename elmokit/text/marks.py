"""How a model reads a token: with the marks and character codes of its vocabulary.

Tokens keep their characters in all results. They are respelled only to look up ids:

* Typographic marks. Text from the web, books and word processors has marks such as the apostrophe U+2019; the corpora
of most models have only ASCII marks.
* Characters with several codes. "é" is one code, or "e" and an accent (from macOS file systems, PDF files and some
keyboards); Korean syllables can be written letter by letter; Latin letters have full-width forms, and Arabic letters
have forms for each position in a word.
* Marks of other programs, such as the escape &apos; (see ``foreign``), with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    # Ligatures, as in PDF files.
    "ff": "\ufb00",
    "fi": "\ufb01",
    "fl": "\ufb02",
    "ffi": "\ufb03",
    "ffl": "\ufb04",
    "st": "\ufb05\ufb06",
}
MARKS: dict[int, str] = {ord(mark): plain for plain, marks in _READ_AS.items() for mark in marks}
"""Maps typographic marks to plain ones, for ``str.translate``."""
TYPOGRAPHIC = frozenset(map(chr, MARKS)) - {"\u2013"}
"""Marks that show that a text was not converted to ASCII marks. En dashes often remain."""
INVISIBLE = _READ_AS[""]
"""Soft hyphens and zero-width marks, except joiners, which are letters of some scripts."""

# Armenian ligatures, Arabic forms (two blocks), and full- and half-width Latin, Japanese and Korean letters.
_FORM_RANGES = (range(0xFB13, 0xFB18), range(0xFB50, 0xFDFE), range(0xFE70, 0xFEFD), range(0xFF01, 0xFFEF))


def _forms() -> dict[int, str]:
    """Map forms of characters to the characters, except where that would add a space to a token."""
    forms = {}
    for code in chain(*_FORM_RANGES):
        char = normalize("NFKC", chr(code))
        if char != chr(code) and " " not in char:
            forms[code] = char
    return forms


FORMS = _forms()
"""Maps forms of characters to the plain characters, for ``str.translate``."""
FORM_CHARS = frozenset(map(chr, FORMS))


class MarkReader:
    """Determines how a model reads tokens.

    A token that the model knows is read unchanged. Other words are read with plain marks, composed or decomposed, if
    the model knows them in that form. Everything else is composed, and marks that the model does not know become ASCII.

    Args:
        words: The words that the model knows.
        chars: The characters that it knows.
        composes: Compose letters and accents in words that the model does not know.
        all_chars: The only characters that the model can read, or None for any. Composition yields no other ones.
        ranks: The rank of each word by frequency, from 0, to choose its case in sentences in capitals.
    """

    def __init__(
        self,
        words: Collection[str] = (),
        chars: Iterable[str] = (),
        *,
        composes: bool = True,
        all_chars: Iterable[str] | None = None,
        ranks: Mapping[str, int] | None = None,
    ) -> None:
        self._words = words
        self._all_chars = None if all_chars is None else frozenset(all_chars)
        self._ranks = ranks
        known = set(chars)
        self.marks = {mark: plain for mark, plain in MARKS.items() if chr(mark) not in known}
        """Typographic marks that the model does not know."""
        self.forms = {form: plain for form, plain in FORMS.items() if chr(form) not in known}
        """Forms of characters that the model does not know."""
        self.composes = composes

    def __call__(self, token: str) -> str:
        if token in self._words or (token.isascii() and token.isalnum()):
            return token
        foreign = find_foreign(token)
        if foreign is not None and foreign not in self.foreign:
            return self._read_foreign(token, foreign)
        if token.isascii():
            return token
        for spelling in _spellings(token):
            if spelling in self._words:
                return spelling
        return self.compose(token.translate(self.forms)).translate(self.marks) or token

    def in_case(self, tokens: Sequence[str]) -> Sequence[str]:
        """Return a sentence's tokens in the case in which the model knows them; see :func:`read_capitals`."""
        if self._ranks is None:
            return tokens
        read = read_capitals(tokens, self._ranks)
        if read is not tokens:
            warnings.warn(
                "Sentences in capitals are read in the case that their words have in the vocabulary.",
                stacklevel=1,
            )
        return read

    @cached_property
    def foreign(self) -> frozenset[str]:
        """Keys of the foreign marks in the model's vocabulary, because it was trained on text with them."""
        return frozenset(filter(None, map(find_foreign, {*self._words} - {UNKNOWN})))

    def _read_foreign(self, token: str, key: str) -> str:
        """Read a token with marks of another program, with a warning."""
        marks = FOREIGN[key]
        if marks.plain is None or (key == "unknown" and UNKNOWN not in self._words):
            warn_of_foreign(key, "are read as words")
            return token
        warn_of_foreign(key, f"are read as {marks.plain_name}")
        return marks.plain(token)

    @property
    def is_plain(self) -> bool:
        """Whether it knows neither typographic marks nor forms of characters, and composes letters and accents."""
        return self.composes and self._all_chars is None and (self.marks, self.forms) == (MARKS, FORMS)

    def compose(self, token: str) -> str:
        """Compose a token's letters and accents, if that is how the model reads them."""
        if not self.composes or token.isascii():
            return token
        composed = normalize("NFC", token)
        if self._all_chars is None or self._all_chars.issuperset(composed):
            return composed
        return token


class ExactReader(MarkReader):
    """Reads all tokens unchanged, like the original programs; marks that are never words still give a warning."""

    def __init__(self, words: Collection[str] = ()) -> None:
        super().__init__(words, composes=False)

    def __call__(self, token: str) -> str:
        foreign = find_foreign(token)
        if foreign in NEVER_WORDS and token not in self._words and foreign not in self.foreign:
            warn_of_foreign(foreign, "are read as words")
        return token


def _spellings(token: str) -> Iterable[str]:
    """Yield other spellings of a word, starting with those that most models know; none for a mark."""
    if not any(map(str.isalnum, token)):
        return
    plain_forms = token.translate(FORMS)
    for form in ("NFC", "NFD"):
        spelling = normalize(form, plain_forms)
        yield spelling.translate(MARKS)
        yield spelling


MAX_LOWER = 0.1
"""Maximum fraction of words with a lower-case letter in a sentence in capitals."""


def read_capitals(tokens: Sequence[str], ranks: Mapping[str, int]) -> Sequence[str]:
    """Return a sentence in capitals in the case in which its words are most frequent; leave other sentences unchanged.

    A sentence is in capitals if it has at least two words in capitals, (nearly) no others, and a word that is only
    known in another case: *US TROOPS*, but not *US* or *NATO*. For each word in capitals, lower case, capitalized and
    capitals are compared; words that are unknown in all three are read in lower case. The first word is capitalized, if
    it is known in that form.
    """
    n_capitals = sum(map(str.isupper, tokens))
    if n_capitals < 2:
        return tokens
    n_others = sum(token != token.upper() for token in tokens)
    if n_others > MAX_LOWER * n_capitals:
        return tokens
    read = [_in_usual_case(token, ranks) for token in tokens]
    unknown_in_capitals = [word for token, word in zip(tokens, read, strict=True) if token not in ranks]
    if ranks.keys().isdisjoint(unknown_in_capitals):
        return tokens
    first = list(map(str.isupper, tokens)).index(True)
    capitalized = tokens[first][:1] + read[first][1:]
    if read[first].islower() and capitalized in ranks:
        read[first] = capitalized
    return read


def _in_usual_case(token: str, ranks: Mapping[str, int]) -> str:
    """Return a word in capitals in the case in which it is most frequent; others unchanged."""
    if not token.isupper():
        return token
    lower = token.lower()
    # The first one if they are equal.
    return min(lower, token[:1] + lower[1:], token, key=lambda word: ranks.get(word, len(ranks)))


def are_composed(words: Iterable[str]) -> bool:
    """Check whether letters and accents are composed in all words. If not, they were not composed in the corpus."""
    return is_normalized("NFC", "\n".join(words))  # nothing composes with a line end


EXACT = ExactReader()
"""Reads all tokens unchanged, like the original programs."""
PLAIN = MarkReader()
"""Reads all marks and codes as plain ones, for models whose vocabulary is unknown."""
