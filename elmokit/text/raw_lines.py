"""Lines of raw text: detect them in tokenized text, and join wrapped ones."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice, pairwise
from typing import Literal

from elmokit.errors import TextError
from elmokit.text.other_formats import HEAD_LINES

MAX_CHARACTERS = 20
"""Longer tokens in these scripts are considered unsplit text. Their words are rarely longer than ten characters."""
# Japanese, Chinese, Thai, Lao, Burmese and Khmer
_UNSPLIT = re.compile(
    "[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    "\u0e01-\u0e5b\u0e81-\u0edf\u1000-\u109f\u1780-\u17dd]"
)
_MARKS = frozenset(
    [*".,;:?!\"'()", "''", "``", "--", "...", "-LRB-", "-RRB-", *"\u2026\u201c\u201d\u00ab\u00bb\u060c\u061f\u3002"]
)
_SENTENCE_END = re.compile(r"[.!?\u2026]")
_ENDS_SENTENCE = re.compile(r"[.!?\u2026][\W_]*$")
_ATTACHED = re.compile(r"[^\W\d_]{2,}[.,;:?!][\"')\u2019\u201d]*")
MIN_ATTACHED = 3
"""Number of tokens such as "mat." that make a text look raw; in a text with few sentences, one suffices."""


def check_tokens(name: str, sentences: Iterable[Sequence[str]], is_split: bool = False, refuse: bool = False) -> None:
    """Warn, or raise a TextError, if the first sentences of a text do not look tokenized.

    If split at spaces, a line of Japanese is one token, and in English, "mat." is read as one word. Nothing fails, but
    the vectors mean little. In tokenized text, punctuation marks are separate tokens, so the first sentence with
    punctuation decides. None of 49 tokenized files in English, Turkish and Uyghur is mistaken for raw text.

    Args:
        name: The name of the text.
        sentences: The first sentences of the text, at most ``HEAD_LINES`` unless ``is_split``.
        is_split: Whether a tokenizer has split the text; punctuation is then not checked.
        refuse: Raise the error in clear cases: if a token such as "mat." ends a sentence, or there are several.
    """
    attached: list[str] = []  # tokens such as "mat."
    n_sentences = 0
    ends_attached = False
    for tokens in sentences:
        n_sentences += 1
        if (unsplit := _unsplit_token(tokens)) is not None:
            what = f"{unsplit[:10]!r}..., {len(unsplit)} characters, is read as one token"
            _report(name, what, "--raw --language CODE", refuse and not is_split)
            return
        if not _MARKS.isdisjoint(tokens):
            is_split = True
        if not is_split:
            attached += filter(_ATTACHED.fullmatch, tokens)
            if any(map(_ENDS_SENTENCE.search, tokens[-1:])):
                ends_attached = True
        if len(attached) >= MIN_ATTACHED:
            break
    if not attached:
        return
    what = f"{attached[0]!r} is read as one token"
    if len(attached) >= MIN_ATTACHED:
        _report(name, what, "--raw", refuse)
    elif n_sentences < HEAD_LINES and not is_split:
        _report(name, what, "--raw", refuse and ends_attached)


def _unsplit_token(tokens: Sequence[str]) -> str | None:
    """Return the first token that is too long to be a word of a script without spaces."""
    for token in tokens:
        if len(token) > MAX_CHARACTERS and len(_UNSPLIT.findall(token)) > MAX_CHARACTERS:
            return token
    return None


def _report(name: str, what: str, flags: str, refuse: bool) -> None:
    problem = f"{name} looks like raw text: {what}."
    if refuse:
        raise TextError(f"{problem} Pass {flags} to split it, or --text-kind tokens to read it as it is.")
    # The same location for all readers, so a text that is read twice is reported once.
    warnings.warn(
        f"{problem} Pass {flags}, if the command supports it, or separate the tokens with spaces (elmokit.tokenize).",
        stacklevel=1,
    )


Wrapped = Literal["auto", "yes", "no"]
"""Whether the lines of raw text are wrapped, as in e-mail or books: paragraphs then have several lines and end at a
blank line. "auto" decides from the first lines, with a warning if some seem to continue on the next."""
MIN_WIDTH, MIN_CONTINUED = 40, 2
"""Minimum line length of wrapped text, and the fraction of its lines that continue with a lower-case letter."""
MIN_CONTINUED_SHARE = 0.05
"""Fraction of unjoined lines that must continue with a lower-case letter to be reported."""


def are_wrapped(name: str, lines: Sequence[str]) -> bool:
    """Decide from the first lines of raw text whether they are wrapped; warn if they are or might be.

    Text is wrapped if most lines end inside a sentence and have no room for the next word, which would make them longer
    than nearly all others; or if most continue with a lower-case letter, and sentences begin with capitals.
    """
    lines = [line.strip() for line in lines]
    pairs = _lines_with_the_next(lines)
    inside = [pair for pair in pairs if not _ENDS_SENTENCE.search(pair[0])]
    continued = [pair for pair in inside if pair[1][0].islower()]
    is_prose = any(map(_SENTENCE_END.search, lines))
    if not continued or not is_prose:
        return False
    if _are_most_full(lines, pairs, inside) or _most_go_on(lines, pairs, continued):
        warnings.warn(
            f"The lines of {name} are wrapped, so they are joined: a blank line ends a paragraph. "
            'If they are not, pass --wrapped no (wrapped="no").',
            stacklevel=1,
        )
        return True
    if _sentences_begin_with_capitals(lines) and len(continued) >= MIN_CONTINUED_SHARE * len(pairs):
        line, after = continued[0]
        warnings.warn(
            f"The lines of {name} are read one by one, but {line[-20:]!r} may continue with {after[:20]!r}. If they "
            'are wrapped, pass --wrapped yes (wrapped="yes") to join them; if not, pass no.',
            stacklevel=1,
        )
    return False


def _lines_with_the_next(lines: Sequence[str]) -> list[tuple[str, str]]:
    return [pair for pair in pairwise(lines) if all(pair)]


def _are_most_full(lines: Sequence[str], pairs: Sequence[tuple[str, str]], inside: Sequence[tuple[str, str]]) -> bool:
    """Check whether most lines end inside a sentence and have no room for the next word."""
    lengths = sorted(len(line) for line in lines if line)
    width = lengths[(len(lengths) - 1) * 9 // 10]
    n_full = n_small = 0
    for line, after in inside:
        next_word = after.split()[0]
        if len(line) + 1 + len(next_word) > width:
            n_full += 1
            if after[0].islower():
                n_small += 1
    return width >= MIN_WIDTH and 2 * n_full > len(pairs) and n_small >= MIN_CONTINUED


def _most_go_on(lines: Sequence[str], pairs: Sequence[tuple[str, str]], continued: Sequence[tuple[str, str]]) -> bool:
    """Check whether most lines continue with a lower-case letter, in a text whose sentences begin with capitals."""
    is_most = len(continued) >= MIN_CONTINUED and 2 * len(continued) > len(pairs)
    return is_most and _sentences_begin_with_capitals(lines)


def _sentences_begin_with_capitals(lines: Sequence[str]) -> bool:
    """Check whether nearly all lines that certainly begin a sentence do not begin with a lower-case letter."""
    n_begin = n_small = 0
    for line, after in pairwise(["", *lines]):
        begins = not line or _ENDS_SENTENCE.search(line)
        if after and begins:
            n_begin += 1
            if after[0].islower():
                n_small += 1
    return 5 * n_small <= n_begin


def join_wrapped(name: str, lines: Iterable[tuple[int, str]], wrapped: Wrapped = "auto") -> Iterator[tuple[int, str]]:
    """Join the lines of each paragraph if raw text is wrapped; a paragraph gets the number of its first line."""
    lines = iter(lines)
    head = list(islice(lines, HEAD_LINES))
    if wrapped == "no" or (wrapped == "auto" and not are_wrapped(name, [line for _, line in head])):
        yield from chain(head, lines)
        return
    for is_text, paragraph in groupby(chain(head, lines), key=lambda line: bool(line[1].strip())):
        if is_text:
            numbers, texts = zip(*paragraph, strict=True)
            yield numbers[0], " ".join(texts)
        else:
            yield from paragraph  # where documents end
