"""The ids of the characters of a token.

A character is a UTF-8 byte. The ids are those of all published models: bytes are 1 to 256, followed by five marks.
They are one higher than in bilm-tf's training code, so that 0 can mean "no token here".
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

_BOUNDARY_CHARS = {BEGIN_SENTENCE: BEGIN_SENTENCE_CHAR, END_SENTENCE: END_SENTENCE_CHAR}

CharIds = NDArray[np.int64]


def encode_tokens(tokens: Sequence[str], max_chars: int) -> CharIds:
    """Return the character ids of tokens ``(tokens, max_chars)``: a begin mark, the UTF-8 bytes, an end mark, padding.

    As in bilm-tf and AllenNLP, bytes beyond ``max_chars - 2`` are cut off, even in the middle of a character, and lone
    surrogates are dropped. The tokens ``<S>`` and ``</S>`` get the marks of a sentence boundary.
    """
    ids = np.full((len(tokens), max_chars), PADDING_CHAR, dtype=np.int64)
    ids[:, 0] = BEGIN_TOKEN_CHAR
    for row, token in zip(ids, tokens, strict=True):
        if token in _BOUNDARY_CHARS:
            row[1] = _BOUNDARY_CHARS[token]
            row[2] = END_TOKEN_CHAR
            continue
        data = token.encode("utf-8", errors="ignore")[: max_chars - 2]
        row[1 : 1 + len(data)] = np.frombuffer(data, dtype=np.uint8)
        row[1 : 1 + len(data)] += 1
        row[1 + len(data)] = END_TOKEN_CHAR
    return ids
