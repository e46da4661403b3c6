"""Spans of tokens: which there are, a vector and a score for each, and the best that do not cross (Lee et al. 2017).

A span's vector is that of its first token, of its last, of its width, and an attended sum over its tokens. All spans
of a document are far too many vectors to hold; ``MentionScorer`` scores them without forming them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def all_spans(sentence_ends: Tensor, max_width: int) -> tuple[Tensor, Tensor]:
    """Every span inside a sentence, by first token, then by width.

    Args:
        sentence_ends: ``(tokens,)``: of each token the last token of its sentence.

    Returns:
        first and last tokens, both included, ``(spans,)`` each.
    """
    starts = torch.arange(len(sentence_ends), device=sentence_ends.device)[:, None]
    ends = starts + torch.arange(max_width, device=sentence_ends.device)
    inside = ends <= sentence_ends[:, None]
    return starts.expand_as(ends)[inside], ends[inside]


def best_spans(scores: Sequence[float], starts: Sequence[int], ends: Sequence[int], n_best: int) -> list[int]:
    """The highest spans that do not cross one already taken; nested spans may both stay.

    Returns:
        their places, at most ``n_best``, ordered by first token, then by last.
    """
    chosen: list[int] = []
    last_from: dict[int, int] = {}  # of the spans taken: the last token of the longest that begins here
    first_to: dict[int, int] = {}  # the first token of the longest that ends here
    for place in sorted(range(len(scores)), key=lambda place: -scores[place]):
        if len(chosen) == n_best:
            break
        start, end = starts[place], ends[place]
        is_crossing = any(last_from.get(token, -1) > end for token in range(start + 1, end + 1)) or any(
            first_to.get(token, start) < start for token in range(start, end)
        )
        if not is_crossing:
            chosen.append(place)
            last_from[start] = max(last_from.get(start, end), end)
            first_to[end] = min(first_to.get(end, start), start)
    return sorted(chosen, key=lambda place: (starts[place], ends[place]))


def windowed_means(scores: Tensor, values: Tensor, max_width: int) -> Tensor:
    """Means of neighbours, weighted by the softmax of their scores, for every start and width at once.

    A softmax kept running from width to width: nothing is divided by a difference, and memory grows with tokens times
    widths, not with the square of the width.

    Args:
        scores: ``(tokens,)``.
        values: ``(tokens, dim)``.

    Returns:
        ``(tokens, max_width, dim)``: at ``[i, w]`` over tokens ``i`` to ``i + w``; those past the last token count
        for nothing.
    """
    n_tokens = len(scores)
    later_scores = F.pad(scores, (0, max_width), value=torch.finfo(scores.dtype).min)
    later_values = F.pad(values, (0, 0, 0, max_width))
    largest = scores.detach()  # what is subtracted in the exponent; it cancels out
    weight = (scores - largest).exp()
    total, total_weight = values * weight[:, None], weight
    means = [total / total_weight[:, None]]
    for shift in range(1, max_width):
        new = later_scores[shift : shift + n_tokens]
        new_largest = torch.maximum(largest, new.detach())
        scale, weight = (largest - new_largest).exp(), (new - new_largest).exp()
        total = total * scale[:, None] + later_values[shift : shift + n_tokens] * weight[:, None]
        total_weight = total_weight * scale + weight
        largest = new_largest
        means.append(total / total_weight[:, None])
    return torch.stack(means, dim=1)


class Scorer(nn.Module):
    """Layers of ReLU units with dropout, and one number out.

    Args:
        input_dim: size of the inputs.
        hidden_dim: units of each hidden layer.
        n_layers: hidden layers, at least 1.
        dropout: on the hidden units.
    """

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
        """``(..., input_dim)`` to ``(...)``."""
        return self.after_first(self.first(inputs))

    def after_first(self, sums: Tensor) -> Tensor:
        """The score from the first layer's sums, its bias included: ``(..., hidden_dim)`` to ``(...)``."""
        hidden = self.dropout(F.relu(sums))
        for layer in self.rest:
            hidden = self.dropout(F.relu(layer(hidden)))
        score: Tensor = self.last(hidden)[..., 0]
        return score


class SpanVectors(nn.Module):
    """What stands for a span: its first and last token in context, its width, its attended tokens.

    The attention's scores come from the tokens in context, its values from their vectors without context.

    Args:
        context_dim: size of the tokens in context.
        head_dim: size of the tokens without.
        max_width: of a span, in tokens.
        width_dim: size of a width's vector.
        dropout: on the width's vector.
    """

    def __init__(self, context_dim: int, head_dim: int, max_width: int, width_dim: int, dropout: float) -> None:
        super().__init__()
        self.max_width = max_width
        self.width = nn.Embedding(max_width, width_dim)
        nn.init.xavier_uniform_(self.width.weight)
        self.attention = nn.Linear(context_dim, 1)
        nn.init.xavier_uniform_(self.attention.weight)
        nn.init.zeros_(self.attention.bias)
        self.dropout = nn.Dropout(dropout)
        self.parts = (context_dim, context_dim, width_dim, head_dim)
        self.output_dim = sum(self.parts)

    def widths(self, starts: Tensor, ends: Tensor) -> Tensor:
        """``(spans, width_dim)``, dropout applied: drawn once, for the score and the vector of a span."""
        dropped: Tensor = self.dropout(self.width(ends - starts))
        return dropped

    def forward(self, context: Tensor, heads: Tensor, starts: Tensor, ends: Tensor, widths: Tensor) -> Tensor:
        """Vectors of spans.

        Args:
            context: ``(tokens, context_dim)``.
            heads: ``(tokens, head_dim)``.
            starts, ends: ``(spans,)``, both included.
            widths: ``(spans, width_dim)`` from ``widths``.

        Returns:
            ``(spans, output_dim)``
        """
        places = starts[:, None] + torch.arange(self.max_width, device=starts.device)  # (spans, max_width)
        inside = places <= ends[:, None]
        places = places.clamp(max=max(len(context) - 1, 0))
        scores = self.attention(context)[:, 0][places].masked_fill(~inside, torch.finfo(context.dtype).min)
        attended = torch.einsum("sw,swd->sd", scores.softmax(dim=1), heads[places])
        return torch.cat([context[starts], context[ends], widths, attended], dim=-1)


class MentionScorer(nn.Module):
    """How likely a span is a mention: ``Scorer`` over span vectors.

    ``forward`` gives the scores of all spans without their vectors: the first layer is linear, so its products with
    tokens are formed once for each token and added up for each span.
    """

    def __init__(self, vectors: SpanVectors, hidden_dim: int, n_layers: int, dropout: float) -> None:
        super().__init__()
        self.parts = vectors.parts
        self.max_width = vectors.max_width
        self.scorer = Scorer(vectors.output_dim, hidden_dim, n_layers, dropout)

    def forward(
        self, attention: Tensor, context: Tensor, heads: Tensor, starts: Tensor, ends: Tensor, widths: Tensor
    ) -> Tensor:
        """Score spans.

        Args:
            attention: ``(tokens,)``: the attention's scores; the rest as in ``SpanVectors.forward``.

        Returns:
            ``(spans,)``, equal to ``scorer`` of the spans' vectors.
        """
        of_start, of_end, of_width, of_head = self.scorer.first.weight.split(self.parts, dim=1)  # type: ignore[no-untyped-call]
        by_head = windowed_means(attention, heads @ of_head.t(), self.max_width)
        sums = (context @ of_start.t())[starts] + (context @ of_end.t())[ends] + by_head[starts, ends - starts]
        return self.scorer.after_first(sums + widths @ of_width.t() + self.scorer.first.bias)
