"""Antecedents: for each span, score the earlier spans that it may refer to (Lee et al. 2017, 2018).

Spans are in the order of the text. The first column of every matrix of antecedent scores is "none": the span is no
mention, or the first one of its entity; its score is always 0.

Pairs of spans are scored in blocks of rows, so that memory does not grow with the number of pairs. In training a block
is not kept for the backward pass but computed again (gradient checkpointing).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from elmokit.tasks.nn.spans import FeedForwardScorer

N_DISTANCES = 10
FLOATS_AT_ONCE = 1 << 24  # size of the largest tensor of a block, 64 MiB


class Candidates(NamedTuple):
    """The possible antecedents of each span."""

    indices: Tensor  # (spans, candidates): indices of earlier spans; 0 if there is none
    exists: Tensor  # (spans, candidates) bool
    scores: Tensor  # (spans, candidates): the part of the antecedent score that is known so far; -inf if there is none


def distance_buckets(offsets: Tensor) -> Tensor:
    """Return the number of each distance's bucket: 0, 1, 2, 3, 4, 5-7, 8-15, 16-31, 32-63, 64 and more."""
    # The buckets of e2e-coref. Distance counts kept spans, not tokens.
    bounds = torch.tensor([1, 2, 3, 4, 5, 8, 16, 32, 64], device=offsets.device)
    return torch.bucketize(offsets, bounds, right=True)


def nearest_antecedents(mention_scores: Tensor, n_candidates: int) -> Candidates:
    """Choose the nearest earlier spans (2017). Their score so far is the sum of both mention scores."""
    n_spans = len(mention_scores)
    n_candidates = min(n_candidates, n_spans)
    spans = torch.arange(n_spans, device=mention_scores.device)[:, None]
    indices = spans - 1 - torch.arange(n_candidates, device=mention_scores.device)
    # A valid index even where there is no candidate, so that gathering works; the score of -inf removes it.
    exists, indices = indices >= 0, indices.clamp(min=0)
    scores = mention_scores[:, None] + mention_scores[indices]
    return Candidates(indices, exists, scores.masked_fill(~exists, float("-inf")))


class CoarseScorer(nn.Module):
    """A bilinear score that is cheap enough to compute for all pairs and to choose the candidates by (2018).

    Args:
        span_dim: Size of the spans' vectors.
        dropout: Dropout on both vectors.
    """

    def __init__(self, span_dim: int, dropout: float) -> None:
        super().__init__()
        self.source = nn.Linear(span_dim, span_dim)
        nn.init.xavier_uniform_(self.source.weight)
        nn.init.zeros_(self.source.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, spans: Tensor, mention_scores: Tensor, n_candidates: int) -> Candidates:
        """Choose the candidates with the highest coarse score plus both mention scores, which is their score so far.

        Shapes: spans (spans, span_dim), mention_scores (spans,).
        """
        n_spans = len(spans)
        n_candidates = min(n_candidates, n_spans)
        source, target = self.sides(spans)  # one matrix product for all pairs
        order = torch.arange(n_spans, device=spans.device)

        def block(start: int, stop: int) -> tuple[Tensor, ...]:
            scores = source[start:stop] @ target.t() + mention_scores[start:stop, None] + mention_scores
            scores = scores.masked_fill(order >= order[start:stop, None], float("-inf"))
            # Only the best few of each row leave the block, so that no matrix of all pairs exists.
            best = scores.topk(n_candidates, dim=1)
            return best.indices, best.values

        indices, scores = compute_in_blocks(block, n_spans, n_spans, self.training)
        exists = indices < order[:, None]  # the first spans have fewer earlier spans than candidates
        return Candidates(indices * exists, exists, scores)

    def sides(self, spans: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two factors of the bilinear form ``(W x_i + b) . x_j``: of a span and of its antecedent."""
        return self.dropout(self.source(spans)), self.dropout(spans)


class PairScorer(nn.Module):
    """The full score of a pair, from both vectors, their product, and features of the pair.

    Args:
        span_dim: Size of the spans' vectors.
        feature_dim: Size of the vector of each feature: same speaker or not, genre, distance in spans.
        n_genres: Number of genres.
        hidden_dim, n_layers, dropout: As for ``FeedForwardScorer``. The dropout is applied to the features too.
    """

    same_speaker: nn.Embedding
    genre: nn.Embedding
    distance: nn.Embedding

    def __init__(
        self, span_dim: int, feature_dim: int, n_genres: int, hidden_dim: int, n_layers: int, dropout: float
    ) -> None:
        super().__init__()
        tables = {name: nn.Embedding(n_rows, feature_dim) for name, n_rows in self.table_sizes(n_genres).items()}
        for name, table in tables.items():
            nn.init.xavier_uniform_(table.weight)
            self.add_module(name, table)
        self.parts = (span_dim, span_dim, span_dim, len(tables) * feature_dim)
        self.scorer = FeedForwardScorer(sum(self.parts), hidden_dim, n_layers, dropout)
        self.dropout = nn.Dropout(dropout)

    def table_sizes(self, n_genres: int) -> dict[str, int]:
        """Return the number of values of each feature."""
        return {"same_speaker": 2, "genre": n_genres, "distance": N_DISTANCES}

    def forward(self, spans: Tensor, candidates: Candidates, speakers: Tensor, genre: Tensor) -> Tensor:
        """Score the candidates.

        Args:
            spans: ``(spans, span_dim)``.
            candidates: The pairs to score.
            speakers: Numbers of the spans' speakers, ``(spans,)``.
            genre: Number of the document's genre, a scalar.

        Returns:
            ``(spans, candidates)``; values are meaningless where there is no candidate.
        """
        # The first layer is linear, so its products with single spans are computed once per span. Only the products
        # with the features and with the elementwise product of both spans are computed pair by pair.
        of_span, of_other, of_product, of_features = self.scorer.first.weight.split(self.parts, dim=1)  # type: ignore[no-untyped-call]
        own, other = spans @ of_span.t(), spans @ of_other.t()
        n_spans, n_candidates = candidates.indices.shape

        def block(start: int, stop: int) -> tuple[Tensor, ...]:
            indices = candidates.indices[start:stop]
            product = (spans[start:stop, None] * spans[indices]) @ of_product.t()
            features = self.features(start, stop, indices, speakers, genre) @ of_features.t() + self.scorer.first.bias
            return (self.scorer.from_first_layer(own[start:stop, None] + other[indices] + product + features),)

        (scores,) = compute_in_blocks(block, n_spans, n_candidates * spans.shape[1], self.training)
        return scores

    def features(self, start: int, stop: int, indices: Tensor, speakers: Tensor, genre: Tensor) -> Tensor:
        """Return the features of the pairs of spans ``start`` to ``stop - 1``, with dropout applied.

        Shapes: indices (block, candidates); the result is (block, candidates, n_features * feature_dim).
        """
        distance = self.distances(start, stop, indices)
        is_same = (speakers[start:stop, None] == speakers[indices]).long()
        parts = [self.same_speaker(is_same), self.genre(genre).expand_as(distance), distance]
        dropped: Tensor = self.dropout(torch.cat(parts, dim=-1))
        return dropped

    def distances(self, start: int, stop: int, indices: Tensor) -> Tensor:
        """Return the feature of the distance, ``(block, candidates, feature_dim)``."""
        spans = torch.arange(start, stop, device=indices.device)[:, None]
        vectors: Tensor = self.distance(distance_buckets((spans - indices).clamp(min=0)))
        return vectors


class SpanRefinement(nn.Module):
    """Moves span vectors towards their antecedents, so that later rounds see more than one link (2018).

    A gate interpolates between a span and the expected vector of its antecedent. For the antecedent "none"
    that vector is the span itself.
    """

    def __init__(self, span_dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * span_dim, span_dim)
        nn.init.xavier_uniform_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, spans: Tensor, candidates: Candidates, scores: Tensor) -> Tensor:
        """Refine spans by one step.

        Shapes: spans (spans, span_dim), scores (spans, 1 + candidates); the result is (spans, span_dim).
        """
        # (spans, 1 + candidates). Missing candidates have a score of -inf and get no weight.
        weights = scores.softmax(dim=1)
        n_spans = len(spans)

        def block(start: int, stop: int) -> tuple[Tensor, ...]:
            # Weights as a dense matrix over all spans avoid copying the vector of each candidate of each span.
            dense = spans.new_zeros(stop - start, n_spans)
            dense = dense.scatter_add(1, candidates.indices[start:stop], weights[start:stop, 1:])
            return (weights[start:stop, :1] * spans[start:stop] + dense @ spans,)

        (expected,) = compute_in_blocks(block, n_spans, n_spans, self.training)
        gate = torch.sigmoid(self.gate(torch.cat([spans, expected], dim=1)))
        return gate * expected + (1 - gate) * spans


def antecedent_loss(scores: Tensor, candidates: Candidates, clusters: Tensor) -> Tensor:
    """Return the negative log-probability that a span chooses any correct antecedent, summed over spans, in nats.

    "None" is the correct antecedent of a span that has no earlier span of its cluster among its candidates.

    Args:
        scores: ``(spans, 1 + candidates)``, "none" first, -inf if there is no candidate.
        candidates: The candidates that were scored.
        clusters: The gold cluster of each span, from 1, or 0 if the span is not a gold mention, ``(spans,)``.
    """
    same = (clusters[candidates.indices] == clusters[:, None]) & (clusters > 0)[:, None] & candidates.exists
    correct = torch.cat([~same.any(dim=1, keepdim=True), same], dim=1)
    # The marginal likelihood: the probabilities of all correct antecedents are summed before the logarithm, because the
    # text does not say which of them is the one.
    return (scores.logsumexp(dim=1) - scores.masked_fill(~correct, float("-inf")).logsumexp(dim=1)).sum()


def compute_in_blocks(
    block: Callable[[int, int], tuple[Tensor, ...]], n_rows: int, row_floats: int, training: bool
) -> tuple[Tensor, ...]:
    """Compute a function of ranges of rows block by block and concatenate the results.

    Args:
        block: Computes the results for rows ``start`` to ``stop - 1``.
        n_rows: Number of rows.
        row_floats: Size of the largest tensor that ``block`` allocates per row.
        training: Compute each block a second time in the backward pass instead of keeping its intermediate results. A
            single block is kept, because that is faster and fits in memory.
    """
    size = max(1, FLOATS_AT_ONCE // max(row_floats, 1))
    # At least one block, so that results have their shape even without rows.
    starts = range(0, max(n_rows, 1), size)
    results = []
    for start in starts:
        stop = min(start + size, n_rows)
        if training and len(starts) > 1:
            # `checkpoint` restores the random state, so that both computations drop the same units.
            results.append(checkpoint(block, start, stop, use_reentrant=False))
        else:
            results.append(block(start, stop))
    return tuple(torch.cat(parts) for parts in zip(*results, strict=True))
