"""Contextual nearest neighbours: which tokens of other sentences a token is like (Peters et al. 2018, table 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Neighbour:
    """A token in its sentence."""

    sentence: int
    token: int
    similarity: float
    """Cosine, from -1 to 1."""


def nearest_tokens(
    vectors: Sequence[NDArray[np.float32]],
    sentence: int,
    token: int,
    layer: int,
    n_neighbours: int = 5,
    among: Sequence[tuple[int, int]] | None = None,
) -> list[Neighbour]:
    """The tokens of other sentences whose vectors in a layer are most like that of one token.

    For a text in memory; ``occurrences`` has an index on disk for a large one.

    Args:
        vectors: ``(layers, tokens, dim)`` per sentence, as ``Elmo.embed`` gives them.
        sentence, token: the place of the token asked for.
        among: places to choose from, as (sentence, token); None for all tokens of all other sentences.
    """
    query = vectors[sentence][layer, token]
    found: list[Neighbour] = []
    for other, array in enumerate(vectors):
        if other == sentence:
            continue
        places = range(array.shape[1]) if among is None else [place for number, place in among if number == other]
        rows = array[layer, list(places)]
        cosines = rows @ query / (np.linalg.norm(rows, axis=1) * np.linalg.norm(query))
        found += [Neighbour(other, place, float(cosine)) for place, cosine in zip(places, cosines, strict=True)]
    return sorted(found, key=lambda neighbour: -neighbour.similarity)[:n_neighbours]


def in_context(tokens: Sequence[str], place: int, room: int = 30) -> str:
    """A sentence with one token in brackets, and the whole words around it that ``room`` characters on each side hold.

    The brackets of several such lines stand below each other.
    """
    before, after = list(tokens[:place]), list(tokens[place + 1 :])
    while len(" ".join(before)) > room:
        before = before[1:]
    while len(" ".join(after)) > room:
        after = after[:-1]
    return f"{' '.join(before):>{room}} [{tokens[place]}] {' '.join(after)}".rstrip()
