"""The vectors of texts of several sentences: each sentence is computed by itself, and their vectors are joined."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from elmokit.engine.state import Floats
from elmokit.text.tokenize import text_splitter, tokenize

Embed = Callable[[Iterator[Sequence[str]]], Any]
"""Maps tokenized sentences to their vectors, ``(..., tokens, dim)``."""


def split_raw(texts: Iterable[Any], language: str) -> Iterator[list[list[str]]]:
    """Return the tokenized sentences of each raw text; the language is checked before the first one is read."""
    text_splitter(language)
    return (tokenize(text, language) for text in ([texts] if isinstance(texts, str) else texts))


def embed_joined(texts: Iterable[Sequence[Sequence[str]]], embed: Embed) -> Iterator[Floats]:
    """Yield the vectors of texts, each a list of tokenized sentences."""
    counts: deque[int] = deque()  # sentences of each text that was read and is not embedded yet

    def read() -> Iterator[Sequence[str]]:
        for text in texts:
            sentences = text or [[]]
            counts.append(len(sentences))
            yield from sentences

    vectors = embed(read())

    def join() -> Iterator[Floats]:
        for first in vectors:
            rest = list(islice(vectors, counts.popleft() - 1))
            yield np.concatenate([first, *rest], axis=-2) if rest else first

    return join()
