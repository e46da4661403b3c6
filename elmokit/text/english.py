"""Split English text into sentences and tokens in the style of the Penn Treebank, in linear time.

The rules are those of NLTK's ``NLTKWordTokenizer``, and of its Punkt with a fixed list of abbreviations. For ASCII
text, the results are the same, except that sentences do not end within *"Why?" she asked* or after *Mr.* in *"Mr.
Smith?"*. Typographic marks, which NLTK's rules cover only in part, are split like the corresponding ASCII marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from unicodedata import category

from elmokit.text.marks import INVISIBLE

Span = tuple[int, int]

_ABBREVIATIONS = frozenset(
    " ".join(
        (
            "mr mrs ms dr prof st mt ft sr jr rev hon gen col lt capt sgt maj gov sen rep pres co corp inc ltd bros vs",
            "etc al approx jan feb mar apr jun jul aug sep sept oct nov dec no vol pp ed eds cf ca fig u.s u.k u.n e.g",
            "i.e a.m p.m b.c a.d ph.d",
        )
    ).split()
)
# Unicode's white space. Python's \s also has the four separators before the space, which end tokens, too.
_SPACE = r"\t-\r\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_INVISIBLE = re.compile(f"[{INVISIBLE}]")

# Tokens. The rules are applied in order, each to the result of the previous one; finally, the text is split at spaces.
_CURLY = re.compile("[\u2018\u2019]")
_CLITIC = re.compile("re|ve|ll|[mtsdn]", re.IGNORECASE)
# Marks that never open a quotation.
_APOSTROPHES = str.maketrans("\u02bc\u00b4\u2032\u2033", "'''\"")
_OPENING_QUOTES = [
    (re.compile("[\u00ab\u201c\u2018\u201e\u201a\u201b\u201f\u2039]|`+"), r" \g<0> "),
    (re.compile('^"'), "``"),
    (re.compile("``"), r" \g<0> "),
    (re.compile("([ (\\[{<])(?:\"|'{2})"), r"\1 `` "),
]
_PUNCTUATION = [
    # The final period, and the quotes and brackets after it.
    (re.compile(rf"([^.])(\.)([\])}}>\"'\u00bb\u201d\u2019\u203a ]*+)[{_SPACE}]*$"), r"\1 \2 \3 "),
    (re.compile(r"([:,])(\D)"), r" \1 \2"),
    (re.compile(r"([:,])$"), r" \1 "),
    (re.compile(r"\.*\u2026[.\u2026]*|\.{2,}"), r" \g<0> "),
    (re.compile("[;@#$%&\u2012-\u2015]"), r" \g<0> "),
    (re.compile(rf"([^.])(\.)([\])}}>\"']*)[{_SPACE}]*$"), r"\1 \2\3 "),
    (re.compile("[?!]"), r" \g<0> "),
    (re.compile("([^'])' "), r"\1 ' "),
    (re.compile(r"[*\][(){}<>]"), r" \g<0> "),
    (re.compile("--"), r" -- "),
]
_CLOSING_QUOTES = [
    (re.compile("[\u00bb\u201d\u2019\u203a]"), r" \g<0> "),
    (re.compile("''|\""), " '' "),
    (re.compile(f"[{_SPACE}]+"), " "),
    (re.compile("([^' ])('[sSmMdD]|') "), r"\1 \2 "),
    (re.compile("([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) "), r"\1 \2 "),
]
_CONTRACTIONS = [
    (re.compile(pattern, re.IGNORECASE), r" \1 \2 ")
    for pattern in (
        r"\b(can)(not)\b",
        r"\b(d)('ye)\b",
        r"\b(gim)(me)\b",
        r"\b(gon)(na)\b",
        r"\b(got)(ta)\b",
        r"\b(lem)(me)\b",
        r"\b(more)('n)\b",
        r"\b(wan)(na)(?=\s)",
        r" ('t)(is|was)\b",
    )
]
_DOUBLE_QUOTES = re.compile("``|''|\"")

# Sentences.
_CLOSING = "\u2018\u2019\u201c\u201d\u00ab\u00bb\u2039\u203a"
_NO_WORD = rf"[)\";}}\]*:@'({{\[?!{_CLOSING}]"
_DOTS_OR_DASHES = rf"-{{2,}}|\.{{2,}}|(?:\.[{_SPACE}]){{2,}}\."
_WORDS = re.compile(
    rf"{_DOTS_OR_DASHES}|[^(\"`{{\[:;&#*@)}}\]\-,{_SPACE}]"
    rf"[^{_SPACE}]*?(?=[{_SPACE}]|$|{_NO_WORD}|{_DOTS_OR_DASHES}|,(?:$|[{_SPACE}]|{_NO_WORD}|{_DOTS_OR_DASHES}))"
    rf"|[^{_SPACE}]"
)
_QUOTED_END = re.compile(rf"[?!][\"')\]{_CLOSING}]+[{_SPACE}]+[a-z]")
_END = re.compile(rf"[.?!](?=(?P<after>{_NO_WORD}|[{_SPACE}]++(?P<next>[^{_SPACE}]++)))")
_AFTER_END = re.compile(rf"[\"')\]}}{_CLOSING}]+?(?:[{_SPACE}]+|(?=--|[\u2012-\u2015])|$)", re.MULTILINE)
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*$")
_CONTINUING = frozenset(";:,.!?")
"""Marks that cannot follow the end of a sentence."""


def token_spans(sentence: str) -> list[Span]:
    """Return the character offsets of the tokens of a sentence."""
    return without_invisible(_token_spans, sentence)


def sentence_spans(text: str) -> list[Span]:
    """Return the character offsets of the sentences of a text."""
    return without_invisible(_sentence_spans, text)


def without_invisible(spans: Callable[[str], list[Span]], text: str) -> list[Span]:
    """Find spans as if there were no soft hyphens and zero-width characters, which would hide the ends of words."""
    if not _INVISIBLE.search(text):
        return spans(text)
    kept = [position for position, char in enumerate(text) if char not in INVISIBLE]
    visible = "".join(text[position] for position in kept)
    in_text = []
    for start, stop in spans(visible):
        in_text.append((kept[start], kept[stop - 1] + 1))
    return in_text


def _token_spans(sentence: str) -> list[Span]:
    if not sentence.isascii():
        # The same length, so offsets stay valid.
        sentence = _CURLY.sub(_apostrophe_or_quote, sentence.translate(_APOSTROPHES))
    text = sentence
    for pattern, replacement in _OPENING_QUOTES:
        text = pattern.sub(replacement, text)
    text = re.sub("'", _opening_or_clitic, text)
    for pattern, replacement in _PUNCTUATION:
        text = pattern.sub(replacement, text)
    text = f" {text} "
    for pattern, replacement in (*_CLOSING_QUOTES, *_CONTRACTIONS):
        text = pattern.sub(replacement, text)
    # The rules write quotes as `` and ''. The original form is restored here.
    quotes = iter(_DOUBLE_QUOTES.findall(sentence))
    spans, stop = [], 0
    for token in text.split():
        own = next(quotes, token) if token in ('"', "``", "''") else token
        start = sentence.index(own, stop)
        stop = start + len(own)
        spans.append((start, stop))
    return spans


def _is_word_char(text: str, position: int) -> bool:
    """Check for a letter, mark, digit or joining character. Python's ``\\w`` includes fractions but not marks."""
    if not 0 <= position < len(text):
        return False
    char = text[position]
    if char.isascii():
        return char.isalnum() or char == "_"
    return category(char) in _WORD_CATEGORIES or char in "\u200c\u200d" or char in _CIRCLED_LETTERS


_WORD_CATEGORIES = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "Pc"}
_CIRCLED_LETTERS = frozenset(
    map(chr, [*range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A), *range(0x1F170, 0x1F18A)])
)


def _precedes_clitic(mark: re.Match[str]) -> bool:
    """Check for an apostrophe before a contraction, such as *'ll*, that is not attached to a word."""
    text, after = mark.string, mark.end()
    clitic = _CLITIC.match(text, after)
    return clitic is not None and not _is_word_char(text, clitic.end())


def _apostrophe_or_quote(mark: re.Match[str]) -> str:
    """Return ``'`` for an apostrophe; leave quotation marks and plural possessives unchanged."""
    if not _is_word_char(mark.string, mark.end()):
        return mark[0]
    if _is_word_char(mark.string, mark.start() - 1):
        return "'"
    if mark[0] == "\u2019" and _precedes_clitic(mark):
        return "'"
    return mark[0]


def _opening_or_clitic(mark: re.Match[str]) -> str:
    """Separate an opening quotation mark from the word after it."""
    precedes_word = _is_word_char(mark.string, mark.end())
    follows_word = _is_word_char(mark.string, mark.start() - 1)
    opens = precedes_word and not follows_word and not _precedes_clitic(mark)
    return "' " if opens else "'"


def _sentence_spans(text: str) -> list[Span]:
    spans: list[Span] = []
    start = 0
    for word, end in _possible_ends(text):
        if _QUOTED_END.match(text, end.start()):
            continue
        if _has_end(text[word : end.end()], end["after"]):
            spans.append((start, end.end()))
            start = end.start("next") if end["next"] else end.end()
    spans.append((start, len(text.rstrip())))
    return _with_closing_marks(text, spans)


def _with_closing_marks(text: str, spans: list[Span]) -> list[Span]:
    """Move quotes and brackets after the end of a sentence into the sentence."""
    aligned: list[Span] = []
    n_taken = 0  # characters at the start of a sentence that belong to the previous one
    for (start, stop), following in zip(spans, [*spans[1:], None], strict=True):
        start += n_taken
        closing = None if following is None else _AFTER_END.match(text, *following)
        n_taken = 0
        if closing is not None:
            stop = closing.start() + len(closing[0].rstrip())
            n_taken = len(closing[0])
        if start < stop:
            aligned.append((start, stop))
    return aligned


def _possible_ends(text: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield the marks that may end a sentence (the last one per word), with the start of the word."""
    last: re.Match[str] | None = None
    word = stop = 0  # of the last one
    for match in _END.finditer(text):
        space = max(text.rfind(char, stop, match.start()) for char in " \t\n\r\x0b\x0c")
        begin = space + 1 if space > stop else word
        if last is not None and stop <= begin:
            yield word, last
        last, word, stop = match, begin, match.start()
    if last is not None:
        yield word, last


def _has_end(word: str, after: str) -> bool:
    """Check whether a sentence ends with a word, given what follows."""
    for token, following in pairwise(_WORDS.finditer(word + after)):
        if token.start() < len(word) and _ends(token[0], following[0]):
            return True
    return False


def _ends(token: str, following: str) -> bool:
    """Check whether a sentence ends with a token, given the next one."""
    if token in ("?", "!", "."):
        return True
    if not token.endswith(".") or token.endswith(".."):
        return False
    stem = token[:-1].lower()
    if stem in _ABBREVIATIONS or stem.split("-")[-1] in _ABBREVIATIONS:
        return False
    is_initial = len(token) == 2 and not token[0].isdecimal() and _is_word_char(token, 0)
    if not is_initial and not _NUMBER.match(token):
        return True
    if following in _CONTINUING or following[0].islower():
        return False
    return not (is_initial and following[0].isupper())
