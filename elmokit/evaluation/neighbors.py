"""Nearest neighbors of a word in its sentence (Peters et al. 2018, table 4), and how they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Occurrence:
    """A token in its sentence, and its similarity to the query."""

    similarity: float
    """Cosine, from -1 to 1."""
    sentence: int
    token: int
    words: list[str]

    @property
    def word(self) -> str:
        """The token itself."""
        return self.words[self.token]


@dataclass(frozen=True)
class SimilarWord:
    """A distinct word of the corpus with a similar context-free vector."""

    similarity: float
    """Cosine, from -1 to 1."""
    word: str
    count: int
    """Its number of occurrences in the corpus."""


@dataclass(frozen=True)
class Neighbors:
    """The nearest neighbors of one word in its sentence."""

    words: list[str]
    token: int
    context_free: list[SimilarWord]
    """The nearest words by layer 0, where a word has the same vector in every sentence (the paper's GloVe column)."""
    layers: dict[int, list[Occurrence]]

    @classmethod
    def from_layers(cls, words: Sequence[str], token: int, by_layer: Mapping[int, list[Any]]) -> Neighbors:
        """Combine the results of :meth:`OccurrenceIndex.searches`: similar words for layer 0, else occurrences."""
        occurrences = {layer: similar for layer, similar in by_layer.items() if layer}
        return cls(list(words), token, by_layer[0], occurrences)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        facts = asdict(self)
        return facts | {"layers": {str(layer): found for layer, found in facts["layers"].items()}}

    def to_text(self) -> str:
        """Return a readable table: one line per neighbor, aligned at the word."""
        words = ", ".join(f"{word.word} {word.similarity:.2f}" for word in self.context_free) or "none"
        lines = [f"             {in_context(self.words, self.token)}", f"without context: {words}"]
        for layer, neighbors in self.layers.items():
            for neighbor in neighbors:
                shown = in_context(neighbor.words, neighbor.token)
                lines.append(f"layer {layer}  {neighbor.similarity:.2f}  {shown}")
            if not neighbors:
                lines.append(f"layer {layer}  none")
        return "\n".join(lines)


@dataclass(frozen=True)
class Neighbor:
    """A token of another sentence in memory and its similarity."""

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
    """Find the tokens of other sentences that are most similar to one token, for text in memory.

    ``vectors`` are ``(layers, tokens, dim)`` per sentence, and ``among`` the candidates as ``(sentence, token)``: None
    for all tokens of all other sentences. For a large corpus, ``occurrences`` has an index on disk.
    """
    query = vectors[sentence][layer, token]
    neighbors: list[Neighbor] = []
    for other, layers in enumerate(vectors):
        if other == sentence:
            continue
        tokens = list(range(layers.shape[1]))
        if among is not None:
            tokens = [index for number, index in among if number == other]
        rows = layers[layer, tokens]
        cosines = rows @ query / (np.linalg.norm(rows, axis=1) * np.linalg.norm(query))
        for index, cosine in zip(tokens, cosines, strict=True):
            neighbors.append(Neighbor(other, index, float(cosine)))
    return sorted(neighbors, key=lambda neighbor: -neighbor.similarity)[:n_neighbors]


def in_context(tokens: Sequence[str], token: int, width: int = 30) -> str:
    """Show a token in brackets, with as many words around it as fit into ``width`` characters per side.

    The brackets of several such lines are aligned.
    """
    # More words than characters do not fit.
    before = list(tokens[max(token - width - 1, 0) : token])
    after = list(tokens[token + 1 : token + width + 2])
    while len(" ".join(before)) > width:
        del before[0]
    while len(" ".join(after)) > width:
        del after[-1]
    return f"{' '.join(before):>{width}} [{tokens[token]}] {' '.join(after)}".rstrip()
