"""MUC, B-cubed, CEAF-e and their mean, counted like the reference scorer 8.01 (Pradhan et al. 2014).

Each metric is a sum of numerators over a sum of denominators, over all documents. Mentions match if their bounds are
equal. Following the field, the gold clusters are called the key and the predicted ones the response. Singletons count
like any other cluster on both sides; AllenNLP's port of the scorer drops some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import needs_extra
from elmokit.tasks.scores.counts import f1, percent

Mention = tuple[int, int]
"""The first and the last token of a span, both included, counted from the start of the document."""
Clusters = Sequence[Sequence[Mention]]
Matching = Callable[[NDArray[np.float64]], float]
"""Returns the largest sum of cells of a matrix such that no two share a row or a column."""


@dataclass(frozen=True)
class Ratio:
    """One metric: the numerators and denominators of recall and precision, and their values in percent."""

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
    """The three metrics, and the score of the mentions alone, whatever their cluster."""

    muc: Ratio
    b_cubed: Ratio
    ceaf_e: Ratio
    mentions: Ratio

    @property
    def average_f1(self) -> float:
        """The mean of the three F1 scores in percent, which is the published number."""
        return (self.muc.f1 + self.b_cubed.f1 + self.ceaf_e.f1) / 3


def coref_scores(key: Sequence[Clusters], response: Sequence[Clusters]) -> CorefScores:
    """Score the clusters of documents."""
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
    """Drop repeated mentions of the response like the reference scorer.

    A repeated mention counts only where it occurs first if the key contains it. A repeated mention that the key does
    not contain counts every time.
    """
    # This is what the Perl program does; published scores were computed with it.
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


def _cluster_of(clusters: Clusters) -> dict[Mention, int]:
    """Return the index of each mention's cluster; that of the last one if several contain it."""
    return {mention: index for index, cluster in enumerate(clusters) for mention in cluster}


def _muc(key: Clusters, response: Clusters) -> Ratio:
    """Count links (Vilain et al. 1995): a cluster that the other side splits into n parts keeps its size minus n."""
    cluster_of = _cluster_of(key)
    n_kept = 0
    for cluster in response:
        # Links that both sides share: recall and precision have the same numerator. A singleton has no link and counts
        # nothing.
        parts = [cluster_of[mention] for mention in cluster if mention in cluster_of]
        # n mentions that lie in p of the other side's clusters share n - p links.
        n_kept += len(parts) - len(set(parts))
    # Connecting n mentions takes n - 1 links.
    n_key, n_response = (sum(len(cluster) - 1 for cluster in clusters if cluster) for clusters in (key, response))
    return Ratio(n_kept, n_key, n_kept, n_response)


def _b_cubed(key: Clusters, response: Clusters) -> Ratio:
    """Average the overlap of each mention's two clusters over all mentions (Bagga and Baldwin 1998)."""
    cluster_of = _cluster_of(key)
    members = [set(cluster) for cluster in key]
    recall = precision = 0.0
    for cluster in response:
        for mention in cluster:
            if mention in cluster_of:
                index = cluster_of[mention]
                # The same overlap enters both sums, divided by the size of the key's cluster and of the response's.
                n_shared = sum(other in members[index] for other in cluster)
                recall += n_shared / len(key[index])
                precision += n_shared / len(cluster)
    return Ratio(recall, sum(map(len, key)), precision, sum(map(len, response)))


def _best_matching() -> Matching:
    with needs_extra("The coreference score CEAF", "tasks"):
        from scipy.optimize import linear_sum_assignment

    def best(similarity: NDArray[np.float64]) -> float:
        return float(similarity[linear_sum_assignment(similarity, maximize=True)].sum())

    return best


def _ceaf_e(key: Clusters, response: Clusters, best_matching: Matching) -> Ratio:
    """Match clusters one to one so that the sum of ``2 |K & R| / (|K| + |R|)`` is largest (Luo 2005)."""
    similarity = np.zeros((len(key), len(response)))
    rows: dict[Mention, list[int]] = {}  # the key's clusters that contain a mention
    for row, cluster in enumerate(key):
        for mention in cluster:
            rows.setdefault(mention, []).append(row)
    # Filled mention by mention, so that the cost grows with the number of mentions and not of pairs of clusters.
    for column, cluster in enumerate(response):
        for mention in cluster:
            for row in rows.get(mention, ()):
                similarity[row, column] += 2 / (len(key[row]) + len(cluster))
    # An assignment problem, solved exactly; the reference scorer uses the Kuhn-Munkres algorithm.
    best = best_matching(similarity)
    # Empty clusters of the response were dropped by `_without_repeats`; those of the key are left out here.
    return Ratio(best, sum(map(bool, key)), best, len(response))


def _mentions(key: Clusters, response: Clusters) -> Ratio:
    in_key, in_response = ({mention for cluster in clusters for mention in cluster} for clusters in (key, response))
    n_shared = len(in_key & in_response)
    return Ratio(n_shared, len(in_key), n_shared, len(in_response))
