# ruff: noqa: RUF001 (ambiguous characters are what this is about)
"""Text of any language is split by the classes of its characters."""

from __future__ import annotations

import random
from unicodedata import category

import pytest

from elmokit.text.any_language import split_any
from elmokit.text.marks import INVISIBLE
from elmokit.text.tokenize import tokenize
from tests.text.test_english import PARTS

TEXTS = {  # with a bar between sentences
    "Mwaka 2023, watu 1,500.5 walikuja! Je?": "Mwaka 2023 , watu 1,500.5 walikuja ! | Je ?",
    '"Sawa." J. Smith alisema. Sawa... ndiyo.': '" Sawa . " | J . Smith alisema . | Sawa . . . ndiyo .',
    "¿Qué? ¡No! (Sí.) Fin": "¿ Qué ? | ¡ No ! | ( Sí . ) | Fin",
    "п’ять l'eau 'quoted' B2B a_b x²": "п’ять l'eau ' quoted ' B 2 B a _ b x ²",
    "कुत्ता सोता है। बिल्ली नहीं।": "कुत्ता सोता है । | बिल्ली नहीं ।",
    "می\u200cخواهم بروم؟ بله.": "می\u200cخواهم بروم ؟ | بله .",
    "猫在睡觉。“外面下雨。”他说。「好」！": "猫在睡觉 。 | “ 外面下雨 。 ” | 他说 。 | 「 好 」 ！",
    "co\u00adop. \u200bX e\u0301t\u00e9": "co\u00adop . | X e\u0301t\u00e9",
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_split_into_sentences_and_tokens(text: str) -> None:
    assert " | ".join(" ".join(sentence) for sentence in split_any(text)) == TEXTS[text]
    assert tokenize(text, "any") == split_any(text)


def test_tokens_hold_all_that_can_be_seen_and_one_kind_of_character() -> None:
    rng = random.Random(0)
    for _ in range(200):
        text = "".join(rng.choices([*PARTS, *INVISIBLE, "\u0e01\u0e34", "猫", "٣", "\ue000", "\U0001f468\u200d"], k=20))
        located = tokenize(text, "any", offsets=True)
        seen = "".join(token.text for sentence in located for token in sentence)
        assert "".join(seen.split()).translate(dict.fromkeys(map(ord, INVISIBLE))) == "".join(text.split()).translate(
            dict.fromkeys(map(ord, INVISIBLE))
        )
        for sentence in located:
            for token in sentence:
                kinds = {category(char)[0] for char in token.text if char not in INVISIBLE}
                assert not kinds >= {"L", "N"}
