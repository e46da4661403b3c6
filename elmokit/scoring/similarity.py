"""Similarity: does the cosine of two sentence vectors agree with people, as the STS benchmark tests it?"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import TextError
from elmokit.io.text_files import read_lines, split_tokens
from elmokit.sentence_vectors import SentenceEmbedder


@dataclass(frozen=True)
class ScoredPair:
    """Two sentences, and how similar people find them."""

    first: list[str]
    second: list[str]
    score: float
    """On any scale; higher means more similar."""


@dataclass(frozen=True)
class SimilarityScores:
    """The agreement of cosines with people's scores."""

    cosines: NDArray[np.float64]
    """``(pairs,)``; 0 if one of the sentences is empty."""
    spearman: float
    """Rank correlation, the measure of the STS benchmark; from -1 to 1."""
    pearson: float
    """Linear correlation."""


def read_scored_pairs(path: str | Path, tokenize: Callable[[str], list[str]] = split_tokens) -> list[ScoredPair]:
    """Read pairs in the layout of the STS benchmark: CSV without a header, two sentences and a score.

    Args:
        path: A CSV file in UTF-8.
        tokenize: Splits a sentence into tokens. The STS benchmark holds raw text, which
            :func:`~elmokit.text.tokenize.treebank_tokenizer` splits.

    Raises:
        TextError: The file cannot be read, or a row is not such a triple.
    """
    pairs = []
    try:
        # A quoted field may contain line ends, so the reader needs them.
        for number, row in enumerate(csv.reader(f"{line}\n" for line in read_lines(path)), start=1):
            try:
                first, second, score = (field.replace("\n", " ") for field in row)
                pairs.append(ScoredPair(tokenize(first), tokenize(second), _finite(score)))
            except ValueError:
                raise TextError(
                    f"{path}, row {number}: expected two sentences and a number, separated by commas, but got {row}."
                ) from None
    except csv.Error as error:
        raise TextError(f"{path} is not a CSV file that can be read: {error}.") from None
    return pairs


def score_similarity(embedder: SentenceEmbedder, pairs: Sequence[ScoredPair]) -> SimilarityScores:
    """Compare the cosine of each pair's vectors with the pair's score.

    Raises:
        TextError: There are fewer than two pairs, or all have the same score.
    """
    scores = np.array([pair.score for pair in pairs])
    if len(set(scores)) < 2:
        raise TextError(f"A correlation needs pairs with different scores, but all {len(pairs)} have the same.")
    vectors = embedder.embed([sentence for pair in pairs for sentence in (pair.first, pair.second)])
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    cosines = (unit[0::2].astype(np.float64) * unit[1::2]).sum(axis=1)
    return SimilarityScores(cosines, _correlation(_ranks(cosines), _ranks(scores)), _correlation(cosines, scores))


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each value; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    after = np.cumsum(counts)
    ranks: NDArray[np.float64] = (after - (counts - 1) / 2)[inverse]
    return ranks


def _correlation(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Return the linear correlation; 0 if ``x`` does not vary."""
    return 0.0 if np.ptp(x) == 0 else float(np.corrcoef(x, y)[0, 1])
