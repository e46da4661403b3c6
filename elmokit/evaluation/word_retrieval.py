"""Word retrieval: how often the nearest word vector of another model belongs to a translation.

The vectors of a word differ from sentence to sentence, so each word is represented by its anchor, the mean of its
vectors over a text.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmokit.embedding.elmo import Elmo
from elmokit.engine.layer_alignment import LayerAlignment
from elmokit.engine.unit_vectors import unit_vectors

Pair = tuple[str, str]
"""A word and its translation."""
N_NEIGHBORS = 10
"""Neighbors whose mean similarity CSLS subtracts, as in Conneau et al. (2018)."""
ROWS_AT_ONCE = 1024
"""Rows of a matrix of cosines that are in memory at a time."""


@dataclass(frozen=True)
class WordAnchors:
    """The mean vector of each word over a corpus, for words that occur in it."""

    words: list[str]
    counts: NDArray[np.int64]
    """How often each word occurs, ``(words,)``."""
    vectors: NDArray[np.float32]
    """``(layers, words, dim)``."""

    def rows(self, words: Iterable[str]) -> list[int]:
        """Find the rows of words that have an anchor."""
        rows = {word: row for row, word in enumerate(self.words)}
        return [rows[word] for word in words]


@dataclass(frozen=True)
class LayerRetrieval:
    """How often the nearest anchor of the other model is a translation, for one layer: precision at 1, from 0 to 1."""

    layer: int
    cosine_before: float
    """Nearest by cosine, without the alignment."""
    cosine: float
    """Nearest by cosine, with the alignment."""
    csls_before: float
    """Nearest by CSLS, a cosine that is reduced for words that are close to everything, without the alignment."""
    csls: float
    """Nearest by CSLS, with the alignment."""


def word_anchors(
    elmo: Elmo, sentences: Iterable[Sequence[str]], words: Iterable[str], min_count: int = 1
) -> WordAnchors:
    """Compute the mean vector of words over a text, which is read once, for words that occur ``min_count`` times."""
    rows = {word: row for row, word in enumerate(dict.fromkeys(words))}
    # float64: a frequent word sums up many vectors.
    sums = np.zeros((elmo.n_layers, len(rows), elmo.output_dim))
    counts = np.zeros(len(rows), np.int64)
    # Sentences without any of the words need not be embedded.
    for_elmo, for_words = itertools.tee(tokens for tokens in sentences if not rows.keys().isdisjoint(tokens))
    for tokens, vectors in zip(for_words, elmo.embed(for_elmo), strict=True):
        for position, token in enumerate(tokens):
            if (row := rows.get(token)) is not None:
                sums[:, row] += vectors[:, position]
                counts[row] += 1
    kept = counts >= min_count
    means = sums[:, kept] / counts[kept, None]
    return WordAnchors([word for word, row in rows.items() if kept[row]], counts[kept], means.astype(np.float32))


def measure_retrieval(
    source: WordAnchors, target: WordAnchors, pairs: Sequence[Pair], alignment: LayerAlignment
) -> Iterator[LayerRetrieval]:
    """Test every layer with and without an alignment of ``source``, on pairs of a word and its translation."""
    right: dict[str, list[str]] = {}
    for word, translation in pairs:
        right.setdefault(word, []).append(translation)
    queries, translations = source.rows(right), [set(target.rows(words)) for words in right.values()]
    aligned = alignment.apply(source.vectors, range(len(source.vectors)))
    for layer, (before, after, other) in enumerate(zip(source.vectors, aligned, target.vectors, strict=True)):
        plain, mapped, plain_csls, mapped_csls = (
            retrieval_precision(vectors, other, queries, translations, csls)
            for csls in (False, True)
            for vectors in (before, after)
        )
        yield LayerRetrieval(layer, plain, mapped, plain_csls, mapped_csls)


def retrieval_precision(
    source: NDArray[np.float32],
    target: NDArray[np.float32],
    queries: Sequence[int],
    translations: Sequence[set[int]],
    csls: bool = False,
) -> float:
    """Compute how often the most similar target vector belongs to a translation of the source word, from 0 to 1.

    Args:
        source: The vectors of the source words, ``(words, dim)``.
        target: The vectors of the candidates, ``(candidates, dim)``.
        queries: The rows of ``source`` to test.
        translations: For each of them the rows of ``target`` that are right.
        csls: Compare by CSLS (Conneau et al. 2018) instead of the cosine: from twice the cosine, subtract the mean
            cosine of each of the two words with its ten nearest neighbors on the other side. In high dimensions some
            words are near to all others, and would be wrong answers to many queries.
    """
    source, target = unit_vectors(source), unit_vectors(target)
    n_right, target_density = 0, np.zeros(len(target), np.float32)
    if csls:
        target_density = np.concatenate([_density(block @ source.T) for block in _blocks(target)])
    rows = source[list(queries)]
    for start, block in zip(range(0, len(rows), ROWS_AT_ONCE), _blocks(rows), strict=True):
        # The density of the query is the same for all its candidates, so it does not change which one is best.
        best = (2 * block @ target.T - target_density).argmax(axis=1)
        n_right += sum(int(row) in translations[start + index] for index, row in enumerate(best))
    return n_right / len(rows)


def _blocks(rows: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    return (rows[start : start + ROWS_AT_ONCE] for start in range(0, len(rows), ROWS_AT_ONCE))


def _density(cosines: NDArray[np.float32]) -> NDArray[np.float32]:
    """Average the largest cosines of each row."""
    n_neighbors = min(N_NEIGHBORS, cosines.shape[1])
    nearest = np.partition(cosines, cosines.shape[1] - n_neighbors, axis=1)[:, -n_neighbors:]
    return np.asarray(nearest.mean(axis=1), np.float32)
