"""The vectors of raw texts: each is split into sentences and tokens, whose vectors are joined."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from elmokit.engine.state import Floats
from elmokit.errors import TextError
from elmokit.text.tokenize import text_splitter, tokenize


def embed_raw(
    texts: Iterable[Any], language: str, embed: Callable[[Iterator[Sequence[str]]], Iterator[Floats]]
) -> Iterator[Floats]:
    """Yield the vectors of raw texts; arguments are checked before the first one is read."""
    if not isinstance(texts, Iterable):
        raise TextError(f"Expected a raw text, or several, but got {texts!r} of type {type(texts).__name__}.")
    text_splitter(language)
    counts: deque[int] = deque()  # sentences of each text that was read and is not embedded yet

    def read() -> Iterator[Sequence[str]]:
        for number, text in enumerate([texts] if isinstance(texts, str) else texts):
            if isinstance(text, list | tuple):
                raise TextError(f"texts[{number}] is a list: it is tokenized already. Leave out tokenize.")
            if not isinstance(text, str):
                raise TextError(
                    f"Expected raw texts as strings, but texts[{number}] is {text!r} of type {type(text).__name__}."
                )
            split = tokenize(text, language) or [[]]
            counts.append(len(split))
            yield from split

    vectors = embed(read())

    def join() -> Iterator[Floats]:
        for first in vectors:
            rest = list(islice(vectors, counts.popleft() - 1))
            yield np.concatenate([first, *rest], axis=-2) if rest else first

    return join()
