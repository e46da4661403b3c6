"""Spans of tokens: enumerate, score, prune and represent them (Lee et al. 2017).

A span is represented by its first token, its last token, its width, and an attention-weighted sum of its tokens. A
document has about tokens times ``max_width`` spans, too many to hold all their vectors in memory. ``MentionScorer``
therefore scores spans without computing their vectors, and only the spans that survive pruning get one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Spans:
    """Spans of a document's tokens."""

    starts: Tensor  # (spans,): first tokens
    ends: Tensor  # (spans,): last tokens, inclusive
    widths: Tensor  # (spans, width_dim): vectors of the widths after dropout, shared by mention scores and span vectors

    def __getitem__(self, index: Tensor | slice) -> Spans:
        """Select some of the spans."""
        return Spans(self.starts[index], self.ends[index], self.widths[index])

    def relative_to(self, token: int) -> Spans:
        """Return the spans with positions counted from a token."""
        return Spans(self.starts - token, self.ends - token, self.widths)


def all_spans(sentence_ends: Tensor, max_width: int) -> tuple[Tensor, Tensor]:
    """Return all spans within sentences, ordered by first token and then by width.

    Args:
        sentence_ends: The last token of each token's sentence, ``(tokens,)``.
        max_width: Longest span, in tokens.

    Returns:
        The first and last tokens, both inclusive, ``(spans,)`` each.
    """
    starts = torch.arange(len(sentence_ends), device=sentence_ends.device)[:, None]
    ends = starts + torch.arange(max_width, device=sentence_ends.device)
    # (tokens, max_width); selecting with it flattens in row order, by first token and then by width.
    inside = ends <= sentence_ends[:, None]
    return starts.expand_as(ends)[inside], ends[inside]


def prune_spans(scores: Sequence[float], starts: Sequence[int], ends: Sequence[int], n_best: int) -> list[int]:
    """Choose the spans with the highest scores, skipping those that cross a span already chosen.

    Two spans cross if they overlap and neither contains the other. Mentions do not cross, but they can nest.

    Args:
        scores, starts, ends: The score, first token and last token of each span.
        n_best: The maximum number of spans.

    Returns:
        Indices of the chosen spans, ordered by first token and then by last token.
    """
    chosen: list[int] = []
    # A chosen span crosses (start, end) if it starts inside and ends after it, or starts before it and ends inside. If
    # any of the chosen spans with the same start (or end) crosses, the longest one does, so one entry is enough.
    longest_from: dict[int, int] = {}  # by first token: the last token of the longest chosen span
    longest_to: dict[int, int] = {}  # by last token: the first token of the longest chosen span
    # The sort is stable, so the first of several spans with equal scores wins.
    for span in sorted(range(len(scores)), key=lambda span: -scores[span]):
        if len(chosen) == n_best:
            break
        start, end = starts[span], ends[span]
        starts_inside = any(longest_from.get(token, -1) > end for token in range(start + 1, end + 1))
        ends_inside = any(longest_to.get(token, start) < start for token in range(start, end))
        if not (starts_inside or ends_inside):
            chosen.append(span)
            longest_from[start] = max(longest_from.get(start, end), end)
            longest_to[end] = min(longest_to.get(end, start), start)
    return sorted(chosen, key=lambda span: (starts[span], ends[span]))


def windowed_means(scores: Tensor, values: Tensor, max_width: int) -> Tensor:
    """Return attention-weighted means of adjacent tokens for all first tokens and widths.

    The means of width w + 1 are computed from those of width w by adding one token to a running softmax, so memory
    grows with tokens times widths, not with tokens times the square of the widths. As in a stable softmax, the largest
    score so far is subtracted in each exponent.

    Args:
        scores: Attention scores before the softmax, ``(tokens,)``.
        values: ``(tokens, dim)``.
        max_width: Largest width, in tokens.

    Returns:
        ``(tokens, max_width, dim)``; ``[i, w]`` is the mean of tokens ``i`` to ``i + w``. Positions after the last
        token have no weight.
    """
    n_tokens = len(scores)
    # After the last token, the score is the smallest float, whose exponential is 0.
    later_scores = F.pad(scores, (0, max_width), value=torch.finfo(scores.dtype).min)
    later_values = F.pad(values, (0, 0, 0, max_width))
    largest = scores.detach()  # it cancels out in the mean, so it needs no gradient
    weight = (scores - largest).exp()
    total = values * weight[:, None]
    total_weight = weight
    means = [total / total_weight[:, None]]
    for shift in range(1, max_width):
        window = slice(shift, shift + n_tokens)
        added_scores, added_values = later_scores[window], later_values[window]
        new_largest = torch.maximum(largest, added_scores.detach())
        # A larger score rescales the sums so far (the "online softmax" of Milakov and Gimelshein 2018). Maxima can be
        # detached because they cancel out in total / total_weight.
        scale = (largest - new_largest).exp()
        weight = (added_scores - new_largest).exp()
        total = total * scale[:, None] + added_values * weight[:, None]
        total_weight = total_weight * scale + weight
        largest = new_largest
        means.append(total / total_weight[:, None])
    return torch.stack(means, dim=1)


class FeedForwardScorer(nn.Module):
    """A feed-forward network that scores a vector: ReLU layers with dropout, and one output."""

    def __init__(self, input_dim: int, hidden_dim: int, n_layers: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(input_dim, hidden_dim)
        self.rest = nn.ModuleList(nn.Linear(hidden_dim, hidden_dim) for _ in range(n_layers - 1))
        self.last = nn.Linear(hidden_dim, 1)
        self.dropout = nn.Dropout(dropout)
        for layer in (self.first, *self.rest, self.last):
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Score vectors, ``(..., input_dim)``; the result is ``(...)``."""
        return self.from_first_layer(self.first(inputs))

    def from_first_layer(self, sums: Tensor) -> Tensor:
        """Score vectors, given the first linear layer's output including its bias, ``(..., hidden_dim)``."""
        hidden = self.dropout(F.relu(sums))
        for layer in self.rest:
            hidden = self.dropout(F.relu(layer(hidden)))
        score: Tensor = self.last(hidden)[..., 0]
        return score


class SpanVectors(nn.Module):
    """The vectors of spans: contextual vectors of the first and last token, the width, and attended tokens.

    Attention scores are computed from contextual vectors, but the attended values are context-free vectors, as in Lee
    et al.: attention looks for the head word of the span.

    Args:
        context_dim: Size of the contextual vectors.
        head_dim: Size of the context-free vectors.
        max_width: Longest span, in tokens.
        width_dim: Size of a width's vector.
        dropout: Dropout on the width's vector.
        scored_dim: Size of the vectors that attention scores are computed from. The default is ``context_dim``.
    """

    def __init__(
        self,
        context_dim: int,
        head_dim: int,
        max_width: int,
        width_dim: int,
        dropout: float,
        scored_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.max_width = max_width
        self.width = nn.Embedding(max_width, width_dim)
        nn.init.xavier_uniform_(self.width.weight)
        self.attention = nn.Linear(scored_dim or context_dim, 1)
        nn.init.xavier_uniform_(self.attention.weight)
        nn.init.zeros_(self.attention.bias)
        self.dropout = nn.Dropout(dropout)
        self.parts = (context_dim, context_dim, width_dim, head_dim)
        self.output_dim = sum(self.parts)

    def attention_scores(self, context: Tensor, heads: Tensor) -> Tensor:
        """Return the attention score of each token, ``(tokens,)``."""
        scores: Tensor = self.attention(context)[:, 0]
        return scores

    def spans(self, starts: Tensor, ends: Tensor) -> Spans:
        """Return the spans with the vectors of their widths, given first and last tokens, ``(spans,)``.

        Dropout is applied here, so mention scores and span vectors see the same dropout mask.
        """
        return Spans(starts, ends, self.dropout(self.width(ends - starts)))

    def forward(self, context: Tensor, heads: Tensor, spans: Spans) -> Tensor:
        """Return the vectors of spans.

        Args:
            context: Contextual vectors of the tokens, ``(tokens, context_dim)``.
            heads: Context-free vectors of the tokens, ``(tokens, head_dim)``.
            spans: The spans, from ``spans``.

        Returns:
            ``(spans, output_dim)``
        """
        positions = torch.arange(self.max_width, device=context.device)
        tokens = spans.starts[:, None] + positions  # (spans, max_width)
        inside = tokens <= spans.ends[:, None]
        # Positions after the last token of the text get no weight, but need a valid index.
        tokens = tokens.clamp(max=max(len(context) - 1, 0))
        scores = self.attention_scores(context, heads)[tokens]
        lowest = torch.finfo(context.dtype).min
        weights = scores.masked_fill(~inside, lowest).softmax(dim=1)
        attended = torch.einsum("sw,swd->sd", weights, heads[tokens])
        return torch.cat([context[spans.starts], context[spans.ends], spans.widths, attended], dim=-1)


class MentionScorer(nn.Module):
    """Scores how likely a span is to be a mention, with a ``FeedForwardScorer`` of span vectors.

    ``forward`` scores all spans without computing their vectors. The first layer is linear, so its product with a span
    vector is the sum of its products with the vector's parts. The products with tokens are computed once per token, and
    the product with the attended sum is the attended sum of the products.
    """

    def __init__(self, vectors: SpanVectors, hidden_dim: int, n_layers: int, dropout: float) -> None:
        super().__init__()
        self.parts = vectors.parts
        self.max_width = vectors.max_width
        self.scorer = FeedForwardScorer(vectors.output_dim, hidden_dim, n_layers, dropout)

    def forward(self, attention: Tensor, context: Tensor, heads: Tensor, spans: Spans) -> Tensor:
        """Score spans.

        Args:
            attention: Attention scores of the tokens, ``(tokens,)``. The other arguments are as in
                ``SpanVectors.forward``.

        Returns:
            ``(spans,)``, equal to ``scorer`` applied to the spans' vectors.
        """
        of_start, of_end, of_width, of_head = self.scorer.first.weight.split(self.parts, dim=1)  # type: ignore[no-untyped-call]
        # (tokens, max_width, hidden): averaging and multiplying by the weight commute, so the small products are
        # averaged instead of the vectors.
        by_head = windowed_means(attention, heads @ of_head.t(), self.max_width)
        by_start = context @ of_start.t()
        by_end = context @ of_end.t()
        by_width = spans.widths @ of_width.t()
        starts, ends = spans.starts, spans.ends
        sums = by_start[starts] + by_end[ends] + by_head[starts, ends - starts]
        return self.scorer.from_first_layer(sums + by_width + self.scorer.first.bias)
