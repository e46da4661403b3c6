"""MUC, B-cubed, CEAF-e and their mean as the reference scorer 8.01 counts them (Pradhan et al. 2014).

Each is a sum of numerators over a sum of denominators, over all documents. Mentions match by exact bounds. Singletons
count like any other cluster, on both sides (AllenNLP's port drops some of them). A mention that the response repeats
counts where it stands first, if the key knows it; else every time, as in the scorer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import MissingExtraError
from elmokit.tasks.scores.counts import f1, percent

Mention = tuple[int, int]
"""First and last token in the document, both included."""
Clusters = Sequence[Sequence[Mention]]
Matching = Callable[[NDArray[np.float64]], float]
"""The largest sum of a matrix's cells of which no two share a row or a column."""


@dataclass(frozen=True)
class Ratio:
    """One metric: recall and precision as fractions, and in percent."""

    recall_part: float = 0.0
    recall_whole: float = 0.0
    precision_part: float = 0.0
    precision_whole: float = 0.0

    @property
    def recall(self) -> float:
        return percent(self.recall_part, self.recall_whole)

    @property
    def precision(self) -> float:
        return percent(self.precision_part, self.precision_whole)

    @property
    def f1(self) -> float:
        return f1(self.precision, self.recall)

    def __add__(self, other: Ratio) -> Ratio:
        return Ratio(
            self.recall_part + other.recall_part,
            self.recall_whole + other.recall_whole,
            self.precision_part + other.precision_part,
            self.precision_whole + other.precision_whole,
        )


@dataclass(frozen=True)
class CorefScores:
    """The three metrics, and how many mentions were found at all."""

    muc: Ratio
    b_cubed: Ratio
    ceaf_e: Ratio
    mentions: Ratio

    @property
    def average_f1(self) -> float:
        """The number that is published: the mean of the three F1s, in percent."""
        return (self.muc.f1 + self.b_cubed.f1 + self.ceaf_e.f1) / 3


def coref_scores(key: Sequence[Clusters], response: Sequence[Clusters]) -> CorefScores:
    """Score documents.

    Args:
        key, response: for each document its clusters.

    Raises:
        MissingExtraError: SciPy is not installed.
        ValueError: documents without a counterpart.
    """
    best_matching = _best_matching()
    muc = b_cubed = ceaf_e = mentions = Ratio()
    for key_clusters, response_clusters in zip(key, response, strict=True):
        cleaned = _without_repeats(key_clusters, response_clusters)
        muc += _muc(key_clusters, cleaned)
        b_cubed += _b_cubed(key_clusters, cleaned)
        ceaf_e += _ceaf_e(key_clusters, cleaned, best_matching)
        mentions += _mentions(key_clusters, cleaned)
    return CorefScores(muc, b_cubed, ceaf_e, mentions)


def _without_repeats(key: Clusters, response: Clusters) -> list[list[Mention]]:
    known = {mention for cluster in key for mention in cluster}
    seen: set[Mention] = set()
    cleaned: list[list[Mention]] = []
    for cluster in response:
        kept: list[Mention] = []
        for mention in cluster:
            if mention not in seen:
                kept.append(mention)
            if mention in known:
                seen.add(mention)
        cleaned.append(kept)
    return [cluster for cluster in cleaned if cluster]


def _places(clusters: Clusters) -> dict[Mention, int]:
    """The cluster of each mention; the last one, where a key repeats it."""
    return {mention: place for place, cluster in enumerate(clusters) for mention in cluster}


def _muc(key: Clusters, response: Clusters) -> Ratio:
    """Links kept: a cluster that the other side has in n parts keeps its size less n (Vilain et al. 1995)."""
    places = _places(key)
    kept = 0
    for cluster in response:
        met = [places[mention] for mention in cluster if mention in places]
        kept += len(met) - len(set(met))
    wanted, given = (sum(len(cluster) - 1 for cluster in clusters if cluster) for clusters in (key, response))
    return Ratio(kept, wanted, kept, given)


def _b_cubed(key: Clusters, response: Clusters) -> Ratio:
    """Overlap of the two clusters of each mention of the response (Bagga and Baldwin 1998)."""
    places = _places(key)
    members = [set(cluster) for cluster in key]
    recall = precision = 0.0
    for cluster in response:
        for mention in cluster:
            if mention in places:
                place = places[mention]
                n_shared = sum(other in members[place] for other in cluster)
                recall += n_shared / len(key[place])
                precision += n_shared / len(cluster)
    return Ratio(recall, sum(map(len, key)), precision, sum(map(len, response)))


def _best_matching() -> Matching:
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise MissingExtraError("The coreference score CEAF", "tasks") from None

    def best(similarity: NDArray[np.float64]) -> float:
        return float(similarity[linear_sum_assignment(similarity, maximize=True)].sum())

    return best


def _ceaf_e(key: Clusters, response: Clusters, best_matching: Matching) -> Ratio:
    """The best one-to-one matching of clusters under ``2 |K & R| / (|K| + |R|)`` (Luo 2005)."""
    similarity = np.zeros((len(key), len(response)))
    places: dict[Mention, list[int]] = {}
    for row, cluster in enumerate(key):
        for mention in cluster:
            places.setdefault(mention, []).append(row)
    for column, cluster in enumerate(response):
        for mention in cluster:
            for row in places.get(mention, ()):
                similarity[row, column] += 2 / (len(key[row]) + len(cluster))
    best = best_matching(similarity)
    return Ratio(best, sum(map(bool, key)), best, len(response))


def _mentions(key: Clusters, response: Clusters) -> Ratio:
    wanted, given = ({mention for cluster in clusters for mention in cluster} for clusters in (key, response))
    return Ratio(len(wanted & given), len(wanted), len(wanted & given), len(given))
