"""Which earlier span a span refers to: candidates, pair scores, refined spans (Lee et al. 2017, 2018).

Spans stand in the order of the text. Antecedent 0 of every span is "none", with score 0. Pairs are scored in blocks, so
that memory does not grow with their number; in training a block is computed again for its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from elmokit.tasks.nn.spans import Scorer

N_DISTANCES = 10
FLOATS_AT_ONCE = 1 << 24  # of a block's largest tensor


class Candidates(NamedTuple):
    """Possible antecedents."""

    places: Tensor  # (spans, candidates): places of earlier spans; 0 where there is none
    there: Tensor  # (spans, candidates) bool
    scores: Tensor  # (spans, candidates): what is known of the pair before it is looked at closely; -inf where none


def distance_buckets(offsets: Tensor) -> Tensor:
    """0, 1, 2, 3, 4, 5-7, 8-15, 16-31, 32-63, 64 and more, numbered from 0."""
    bounds = torch.tensor([1, 2, 3, 4, 5, 8, 16, 32, 64], device=offsets.device)
    return torch.bucketize(offsets, bounds, right=True)


def nearest(mention_scores: Tensor, n_candidates: int) -> Candidates:
    """The nearest earlier spans of each (2017); known of a pair: both mention scores."""
    n_spans = len(mention_scores)
    n_candidates = min(n_candidates, n_spans)
    spans = torch.arange(n_spans, device=mention_scores.device)[:, None]
    places = spans - 1 - torch.arange(n_candidates, device=mention_scores.device)
    there, places = places >= 0, places.clamp(min=0)
    scores = mention_scores[:, None] + mention_scores[places]
    return Candidates(places, there, scores.masked_fill(~there, float("-inf")))


class CoarseScorer(nn.Module):
    """A bilinear score for every pair, cheap enough to choose the candidates by it (2018).

    Args:
        span_dim: size of the spans' vectors.
        dropout: on both sides.
    """

    def __init__(self, span_dim: int, dropout: float) -> None:
        super().__init__()
        self.source = nn.Linear(span_dim, span_dim)
        nn.init.xavier_uniform_(self.source.weight)
        nn.init.zeros_(self.source.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, spans: Tensor, mention_scores: Tensor, n_candidates: int) -> Candidates:
        """The best candidates of each span by coarse score; it and both mention scores are what is known.

        Args:
            spans: ``(spans, span_dim)``.
            mention_scores: ``(spans,)``.
        """
        n_spans = len(spans)
        n_candidates = min(n_candidates, n_spans)
        source, target = self.dropout(self.source(spans)), self.dropout(spans)
        order = torch.arange(n_spans, device=spans.device)

        def block(start: int, stop: int) -> tuple[Tensor, ...]:
            scores = source[start:stop] @ target.t() + mention_scores[start:stop, None] + mention_scores
            scores = scores.masked_fill(order >= order[start:stop, None], float("-inf"))
            best = scores.topk(n_candidates, dim=1)
            return best.indices, best.values

        places, scores = in_blocks(block, n_spans, n_spans, self.training)
        there = places < order[:, None]
        return Candidates(places * there, there, scores)


class PairScorer(nn.Module):
    """The close look at a pair: both vectors, their product, and features of the pair.

    Args:
        span_dim: size of the spans' vectors.
        feature_dim: size of each feature's vector: same speaker or not, genre, distance in spans.
        n_genres: how many genres.
        hidden_dim, n_layers, dropout: of the ``Scorer``; the dropout falls on the features too.
    """

    def __init__(
        self, span_dim: int, feature_dim: int, n_genres: int, hidden_dim: int, n_layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.same_speaker, self.genre, self.distance = (
            nn.Embedding(n_rows, feature_dim) for n_rows in (2, n_genres, N_DISTANCES)
        )
        for table in (self.same_speaker, self.genre, self.distance):
            nn.init.xavier_uniform_(table.weight)
        self.parts = (span_dim, span_dim, span_dim, 3 * feature_dim)
        self.scorer = Scorer(sum(self.parts), hidden_dim, n_layers, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, spans: Tensor, candidates: Candidates, speakers: Tensor, genre: Tensor) -> Tensor:
        """Score the candidates.

        Args:
            spans: ``(spans, span_dim)``.
            speakers: ``(spans,)``, numbers; equal ones are the same speaker.
            genre: the document's, a scalar.

        Returns:
            ``(spans, candidates)``; any number where there is no candidate.
        """
        # The first layer is linear: each span's two products are formed once, only the pairs' own part pair by pair.
        of_span, of_other, of_product, _ = self.scorer.first.weight.split(self.parts, dim=1)  # type: ignore[no-untyped-call]
        own, other = spans @ of_span.t(), spans @ of_other.t()
        n_spans, n_candidates = candidates.places.shape

        def block(start: int, stop: int) -> tuple[Tensor, ...]:
            places = candidates.places[start:stop]
            product = (spans[start:stop, None] * spans[places]) @ of_product.t()
            features = self._features(start, stop, places, speakers, genre)
            sums = own[start:stop, None] + other[places] + product + features
            return (self.scorer.after_first(sums),)

        (scores,) = in_blocks(block, n_spans, n_candidates * spans.shape[1], self.training)
        return scores

    def plainly(self, spans: Tensor, candidates: Candidates, speakers: Tensor, genre: Tensor) -> Tensor:
        """The definition: each pair's vector formed and scored; what ``forward`` is tested against, without dropout."""
        own = spans[:, None].expand(-1, candidates.places.shape[1], -1)
        other = spans[candidates.places]
        pairs = torch.cat([own, other, own * other, self._pair(0, len(spans), candidates.places, speakers, genre)], -1)
        score: Tensor = self.scorer(pairs)
        return score

    def _pair(self, start: int, stop: int, places: Tensor, speakers: Tensor, genre: Tensor) -> Tensor:
        """``(block, candidates, 3 * feature_dim)``: the features of pairs, dropout applied."""
        order = torch.arange(start, stop, device=places.device)[:, None]
        is_same = (speakers[start:stop, None] == speakers[places]).long()
        distance = self.distance(distance_buckets((order - places).clamp(min=0)))
        parts = [self.same_speaker(is_same), self.genre(genre).expand_as(distance), distance]
        dropped: Tensor = self.dropout(torch.cat(parts, dim=-1))
        return dropped

    def _features(self, start: int, stop: int, places: Tensor, speakers: Tensor, genre: Tensor) -> Tensor:
        """What the features add to the first layer's sums, its bias included."""
        of_features = self.scorer.first.weight[:, -self.parts[-1] :]
        return self._pair(start, stop, places, speakers, genre) @ of_features.t() + self.scorer.first.bias


class Refinement(nn.Module):
    """Spans moved towards what they refer to: a gate between a span and the expected vector of its antecedent (2018).

    Args:
        span_dim: size of the spans' vectors.
    """

    def __init__(self, span_dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * span_dim, span_dim)
        nn.init.xavier_uniform_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, spans: Tensor, candidates: Candidates, scores: Tensor) -> Tensor:
        """Refine spans.

        Args:
            spans: ``(spans, span_dim)``.
            scores: ``(spans, 1 + candidates)``, "none" first.

        Returns:
            ``(spans, span_dim)``
        """
        weights = scores.softmax(dim=1)
        n_spans = len(spans)

        def block(start: int, stop: int) -> tuple[Tensor, ...]:
            # As a matrix over all spans: no vector of an antecedent is copied.
            dense = spans.new_zeros(stop - start, n_spans)
            dense = dense.scatter_add(1, candidates.places[start:stop], weights[start:stop, 1:])
            return (weights[start:stop, :1] * spans[start:stop] + dense @ spans,)

        (expected,) = in_blocks(block, n_spans, n_spans, self.training)
        gate = torch.sigmoid(self.gate(torch.cat([spans, expected], dim=1)))
        return gate * expected + (1 - gate) * spans


def antecedent_loss(scores: Tensor, candidates: Candidates, clusters: Tensor) -> Tensor:
    """How improbable all right antecedents of each span are together, in nats, summed over spans.

    Args:
        scores: ``(spans, 1 + candidates)``, "none" first, -inf where there is no candidate.
        clusters: ``(spans,)``: the gold cluster, from 1 up; 0 for none.
    """
    same = (clusters[candidates.places] == clusters[:, None]) & (clusters > 0)[:, None] & candidates.there
    right = torch.cat([~same.any(dim=1, keepdim=True), same], dim=1)
    return (scores.logsumexp(dim=1) - scores.masked_fill(~right, float("-inf")).logsumexp(dim=1)).sum()


def in_blocks(
    block: Callable[[int, int], tuple[Tensor, ...]], n_rows: int, row_floats: int, training: bool
) -> tuple[Tensor, ...]:
    """Results for rows ``start`` to ``stop`` joined; if there are several blocks, training computes each one twice."""
    size = max(1, FLOATS_AT_ONCE // max(row_floats, 1))
    starts = range(0, max(n_rows, 1), size)
    results = []
    for start in starts:
        stop = min(start + size, n_rows)
        if training and len(starts) > 1:
            results.append(checkpoint(block, start, stop, use_reentrant=False))
        else:
            results.append(block(start, stop))
    return tuple(torch.cat(parts) for parts in zip(*results, strict=True))
