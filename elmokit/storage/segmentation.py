"""Recognize text that was not split into tokens, so that whatever reads text warns.

Split at spaces, a whole line of Japanese is one token, and a model reads the first 50 bytes of it. In English, "mat."
is read as one word. Nothing fails, but the vectors mean little.

Tokenized text has punctuation marks as tokens of their own. So the first sentence with punctuation decides: if a mark
is a token, the text is tokenized, and nothing more is looked at. If marks are attached to words instead, the text looks
raw. None of the 49 tokenized files in English, Turkish and Uyghur that this was tried on is taken for raw text. Of
their 965,010 sentences, 133 would be if each was a text of its own: tweets with a period attached, "Mr." in a heading.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

MAX_CHARACTERS = 20
"""Tokens with more characters of these scripts are taken for unsplit text. Words in them are rarely longer than ten."""
_JAPANESE = "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # Hiragana, Katakana
_CHINESE = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_THAI = "\u0e01-\u0e5b"
_WITHOUT_CODE = "\u0e81-\u0edf\u1000-\u109f\u1780-\u17dd"  # Lao, Burmese, Khmer: spaCy does not split them
_UNSPLIT = re.compile(f"[{_JAPANESE}{_CHINESE}{_THAI}{_WITHOUT_CODE}]")
_MARKS = frozenset(
    [*".,;:?!\"'()", "''", "``", "--", "...", "-LRB-", "-RRB-", *"\u2026\u201c\u201d\u00ab\u00bb\u060c\u061f\u3002"]
)
_ATTACHED = re.compile(r"[^\W\d_]{2,}[.,;:?!][\"')\u2019\u201d]*")
MIN_ATTACHED = 3
"""Tokens such as "mat." that make a text look raw; a shorter text needs one."""
MAX_LOOKED_AT = 1000
"""Sentences without punctuation after which nothing more is looked at, because it takes time."""
_CODES = ((re.compile(f"[{_JAPANESE}]"), "ja"), (re.compile(f"[{_CHINESE}]"), "zh"), (re.compile(f"[{_THAI}]"), "th"))


class SegmentationCheck:
    """Warns once about a text whose lines look as if they were not split into tokens.

    Args:
        name: The name of the text.
        is_split: Whether a tokenizer has split it: then punctuation is not looked at.
    """

    def __init__(self, name: str, is_split: bool = False) -> None:
        self.name, self._is_reported = name, False
        self._is_decided = is_split
        self._attached: list[str] = []
        self._n_looked_at = 0

    def __call__(self, tokens: Sequence[str]) -> None:
        """Look at a sentence."""
        if not self._is_decided:
            self._look_at_punctuation(tokens)
        if self._is_reported:
            return
        for token in tokens:
            # The length is compared first: it costs nothing beside reading the text.
            if len(token) > MAX_CHARACTERS and len(_UNSPLIT.findall(token)) > MAX_CHARACTERS:
                self._is_reported = True
                # One location for all readers, so that a text that is read twice is reported once.
                warnings.warn(self._message(token), stacklevel=1)
                return

    def end(self) -> None:
        """Decide about a text that has ended."""
        if not self._is_decided and self._attached:
            self._report_raw()

    def _look_at_punctuation(self, tokens: Sequence[str]) -> None:
        if not _MARKS.isdisjoint(tokens):
            self._is_decided = True
            return
        self._attached += [token for token in tokens if _ATTACHED.fullmatch(token)]
        if len(self._attached) >= MIN_ATTACHED:
            self._report_raw()
        self._n_looked_at += 1
        self._is_decided = self._is_decided or self._n_looked_at == MAX_LOOKED_AT

    def _report_raw(self) -> None:
        self._is_decided = True
        warnings.warn(
            f"{self.name} looks like raw text: {self._attached[0]!r} is read as one token. Separate punctuation from "
            "words by spaces; elmokit embed, surprisal and others do it with --raw, and elmokit.tokenize(text) in "
            "Python.",
            stacklevel=1,
        )

    def _message(self, token: str) -> str:
        code = next((code for pattern, code in _CODES if pattern.search(token)), None)
        advice = "Split it into words, separated by spaces"
        if code is not None:
            advice += f"; elmokit embed --raw --language {code} and elmokit.tokenize(text, {code!r}) do that"
        return (
            f"In {self.name}, {token[:10]!r}... is read as one token of {len(token)} characters, because it has no "
            f"spaces. {advice}."
        )
