"""Nearest neighbors of a token among the tokens of other sentences in memory (Peters et al. 2018, table 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Neighbor:
    """A token of another sentence and its similarity."""

    sentence: int
    token: int
    similarity: float
    """Cosine, from -1 to 1."""


def nearest_tokens(
    vectors: Sequence[NDArray[np.float32]],
    sentence: int,
    token: int,
    layer: int,
    n_neighbors: int = 5,
    among: Sequence[tuple[int, int]] | None = None,
) -> list[Neighbor]:
    """Find the tokens of other sentences whose vectors are most similar to the vector of one token.

    This is for text in memory. For a large corpus, ``occurrences`` has an index on disk.

    Args:
        vectors: ``(layers, tokens, dim)`` per sentence, as :meth:`Elmo.embed` returns them.
        sentence: The sentence of the query.
        token: The token of the query.
        layer: The layer to compare.
        n_neighbors: How many neighbors to return.
        among: The candidates as ``(sentence, token)``; None for all tokens of all other sentences.
    """
    query = vectors[sentence][layer, token]
    found: list[Neighbor] = []
    for other, array in enumerate(vectors):
        if other == sentence:
            continue
        tokens = range(array.shape[1]) if among is None else [index for number, index in among if number == other]
        rows = array[layer, list(tokens)]
        cosines = rows @ query / (np.linalg.norm(rows, axis=1) * np.linalg.norm(query))
        found += [Neighbor(other, index, float(cosine)) for index, cosine in zip(tokens, cosines, strict=True)]
    return sorted(found, key=lambda neighbor: -neighbor.similarity)[:n_neighbors]


def in_context(tokens: Sequence[str], token: int, width: int = 30) -> str:
    """Return a sentence with one token in brackets, and as many words around it as fit into ``width`` characters a
    side.

    The brackets of several such lines are aligned.
    """
    before, after = list(tokens[:token]), list(tokens[token + 1 :])
    while len(" ".join(before)) > width:
        before = before[1:]
    while len(" ".join(after)) > width:
        after = after[:-1]
    return f"{' '.join(before):>{width}} [{tokens[token]}] {' '.join(after)}".rstrip()
