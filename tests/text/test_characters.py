from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.text.characters import encode_tokens

SHIFT = 1  # the numbers in bilm-tf's own tests are one below ours


@pytest.mark.parametrize(
    ("token", "unshifted"),
    [
        ("th", [258, 116, 104, 259, 260]),
        ("thhhhh", [258, 116, 104, 104, 259]),
        ("Āt", [258, 196, 128, 116, 259]),
        ("<S>", [258, 256, 259, 260, 260]),
        ("</S>", [258, 257, 259, 260, 260]),
        ("", [258, 259, 260, 260, 260]),
        ("a\ud800b", [258, 97, 98, 259, 260]),  # lone surrogates are dropped
    ],
)
def test_char_ids_are_bilm_tfs_plus_one(token: str, unshifted: list[int]) -> None:
    assert encode_tokens([token], 5)[0].tolist() == [number + SHIFT for number in unshifted]


def test_a_long_token_is_cut_by_bytes_in_the_middle_of_a_character() -> None:
    row = encode_tokens(["é" * 30], 50)[0]
    assert row[-1] == 260
    assert row[1:-1].tolist() == [byte + 1 for byte in ("é" * 24).encode()]
    assert encode_tokens(["aé" * 30], 5)[0].tolist() == [259, 98, 196, 170, 260]


@settings(max_examples=30)
@given(st.lists(st.text(max_size=80), max_size=5), st.integers(3, 60))
def test_any_text_becomes_ids_in_range_with_begin_and_end(tokens: list[str], max_chars: int) -> None:
    ids = encode_tokens(tokens, max_chars)
    assert ids.shape == (len(tokens), max_chars)
    assert np.all((ids >= 1) & (ids <= 261))
    assert np.all(ids[:, 0] == 259)
    assert np.all((ids == 260).sum(axis=1) == 1)
