"""Recognize text that was not split into tokens, in languages that are written without spaces.

Split at spaces, a whole line of Japanese is one token, and a model reads the first 50 bytes of it. Nothing fails, but
the vectors mean nothing. So whatever reads text warns.
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
_CODES = ((re.compile(f"[{_JAPANESE}]"), "ja"), (re.compile(f"[{_CHINESE}]"), "zh"), (re.compile(f"[{_THAI}]"), "th"))


class SegmentationCheck:
    """Warns once about a text, called ``name``, whose lines look as if they were not split into tokens."""

    def __init__(self, name: str) -> None:
        self.name, self._is_reported = name, False

    def __call__(self, tokens: Sequence[str]) -> None:
        """Look at a sentence."""
        if self._is_reported:
            return
        for token in tokens:
            # The length is compared first: it costs nothing beside reading the text.
            if len(token) > MAX_CHARACTERS and len(_UNSPLIT.findall(token)) > MAX_CHARACTERS:
                self._is_reported = True
                # One location for all readers, so that a text that is read twice is reported once.
                warnings.warn(self._message(token), stacklevel=1)
                return

    def _message(self, token: str) -> str:
        code = next((code for pattern, code in _CODES if pattern.search(token)), None)
        advice = "Split it into words, separated by spaces"
        if code is not None:
            advice += f"; elmokit embed --raw --language {code} and elmokit.tokenize(text, {code!r}) do that"
        return (
            f"In {self.name}, {token[:10]!r}... is read as one token of {len(token)} characters, because it has no "
            f"spaces. {advice}."
        )
