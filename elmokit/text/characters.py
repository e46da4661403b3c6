"""The character ids of a token.

A character is a UTF-8 byte. The ids are the same in all published models: bytes are 1 to 256, followed by five marks.
They are one higher than in bilm-tf's training code, so 0 can mean "no token here".
"""

from __future__ import annotations

from collections.abc import Sequence

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

# Bytes that no UTF-8 text has, from 0xFB on, stand for the marks while tokens are joined.
_BEGIN_TOKEN, _END_TOKEN, _PADDING = b"\xfb", b"\xfc", b"\xfd"
_BOUNDARIES = {BEGIN_SENTENCE: b"\xfe", END_SENTENCE: b"\xff"}
_ID_OF_BYTE = np.arange(1, 257, dtype=np.int64)
_ID_OF_BYTE[0xFB:] = BEGIN_TOKEN_CHAR, END_TOKEN_CHAR, PADDING_CHAR, BEGIN_SENTENCE_CHAR, END_SENTENCE_CHAR

CharIds = NDArray[np.int64]


def encode_tokens(tokens: Sequence[str], max_chars: int) -> CharIds:
    """Return the character ids of tokens, ``(tokens, max_chars)``: a begin mark, the UTF-8 bytes, an end mark, padding.

    As in bilm-tf and AllenNLP, bytes beyond ``max_chars - 2`` are cut off, even in the middle of a character, and
    unpaired surrogates are dropped. The tokens ``<S>`` and ``</S>`` get the marks of sentence boundaries.
    """
    spelled: list[bytes] = []
    for token in tokens:
        data = _BOUNDARIES.get(token)
        if data is None:
            data = token.encode("utf-8", errors="ignore")[: max_chars - 2]
        spelled.append((_BEGIN_TOKEN + data + _END_TOKEN).ljust(max_chars, _PADDING))
    characters = np.frombuffer(b"".join(spelled), dtype=np.uint8)
    return _ID_OF_BYTE.take(characters).reshape(len(tokens), max_chars)
