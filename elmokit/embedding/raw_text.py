"""The vectors of texts of several sentences: each sentence is computed by itself, and their vectors are joined."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from elmokit.engine.state import Floats
from elmokit.errors import TextError
from elmokit.text.tokenize import text_splitter, tokenize

Embed = Callable[[Iterator[Sequence[str]]], Any]
"""Maps tokenized sentences to their vectors, ``(..., tokens, dim)``."""


def split_raw(texts: Iterable[Any], language: str) -> Iterator[list[list[str]]]:
    """Yield the tokenized sentences of raw texts; arguments are checked before the first one is read."""
    if not isinstance(texts, Iterable):
        raise TextError(f"Expected a raw text, or several, but got {texts!r} of type {type(texts).__name__}.")
    text_splitter(language)

    def read() -> Iterator[list[list[str]]]:
        for number, text in enumerate([texts] if isinstance(texts, str) else texts):
            if isinstance(text, list | tuple):
                raise TextError(f"texts[{number}] is a list: it is tokenized already. Leave out tokenize.")
            if not isinstance(text, str):
                raise TextError(
                    f"Expected raw texts as strings, but texts[{number}] is {text!r} of type {type(text).__name__}."
                )
            yield tokenize(text, language)

    return read()


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
