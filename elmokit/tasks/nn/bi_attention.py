"""The attention layers of BiDAF++: passage to question and back, and passage to itself (Clark and Gardner 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.tasks.nn.layers import attend

INITIAL_NULL_SCORE = -1.0


class Trilinear(nn.Module):
    """A score of each pair of vectors: ``a . x_i + b . y_j + c . (x_i * y_j)`` (Seo et al. 2017, equation 1).

    There is no bias: a softmax is not changed by a constant, and with a null score beside the scores, the null score
    learns the constant.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.of_left = nn.Linear(dim, 1, bias=False)
        self.of_right = nn.Linear(dim, 1, bias=False)
        self.of_product = nn.Linear(dim, 1, bias=False)
        for part in (self.of_left, self.of_right, self.of_product):
            nn.init.xavier_uniform_(part.weight)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Score all pairs: ``(batch, m, dim)`` and ``(batch, n, dim)`` to ``(batch, m, n)``."""
        # c . (x_i * y_j) is (c * x_i) . y_j: one matrix product, and no tensor of all pairs' products.
        products = (left * self.of_product.weight) @ right.transpose(1, 2)
        of_left, of_right = F.linear(left, self.of_left.weight), F.linear(right, self.of_right.weight)
        return products + of_left + of_right.transpose(1, 2)


class BiAttention(nn.Module):
    """Attention from the passage to the question and from the question to the passage.

    With scores ``s_ij`` of passage word ``x_i`` and question word ``q_j``::

        u_i = sum_j softmax_j(s_ij) q_j
        v   = sum_i softmax_i(max_j s_ij) x_i
        output_i = [x_i; u_i; x_i * u_i; x_i * v]

    This is section 2 of Seo et al. 2017; the last part multiplies by the passage word ``x_i``, as in Clark and Gardner.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scores = Trilinear(dim)
        self.output_dim = 4 * dim

    def forward(self, passage: Tensor, question: Tensor, passage_mask: Tensor, question_mask: Tensor) -> Tensor:
        """Attend in both directions.

        Args:
            passage: ``(batch, m, dim)``.
            question: ``(batch, n, dim)``; at least one real token each.
            passage_mask: ``(batch, m)`` bool, True on a real token; at least one each.
            question_mask: ``(batch, n)``.

        Returns:
            ``(batch, m, 4 * dim)``
        """
        # -inf before the maximum over the question below, which padding could otherwise win.
        scores = self.scores(passage, question).masked_fill(~question_mask[:, None, :], -torch.inf)
        attended_question = attend(scores, question, question_mask)
        # One vector for the whole passage: the words that some question word matches best.
        attended_passage = attend(scores.amax(2)[:, None, :], passage, passage_mask)  # (batch, 1, dim)
        return torch.cat([passage, attended_question, passage * attended_question, passage * attended_passage], dim=2)


class SelfAttention(nn.Module):
    """Attention of each word to all other words, or to nothing.

    With scores ``s_ij`` for ``i != j``, and a learned null score ``b`` that is initialized to -1::

        r_i = sum_j exp(s_ij) x_j / (exp(b) + sum_j exp(s_ij))
        output_i = [r_i; x_i; r_i * x_i]

    Clark and Gardner 2018, section 3.1.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scores = Trilinear(dim)
        self.null_score = nn.Parameter(torch.tensor(INITIAL_NULL_SCORE))
        self.output_dim = 3 * dim

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Attend within each sequence.

        Shapes: words (batch, time, dim), mask (batch, time); the result is (batch, time, 3 * dim).
        """
        n_words = words.shape[1]
        itself = torch.eye(n_words, dtype=torch.bool, device=words.device)
        # As in the paper, a word does not attend to itself: the layer is to bring in what other words say.
        scores = self.scores(words, words).masked_fill(itself | ~mask[:, None, :], -torch.inf)
        # Without it, a sequence of one word would have only -inf in its softmax, which gives NaN.
        null = self.null_score.expand(len(words), n_words, 1)
        # The null score takes part in the softmax with the value 0: it only lowers the weights of the words.
        weights = torch.cat([scores, null], dim=2).softmax(2)
        attended = weights[..., :-1] @ words
        return torch.cat([attended, words, attended * words], dim=2)


def best_answer_spans(
    starts: Tensor, ends: Tensor, mask: Tensor, max_words: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the span of each sequence with the highest sum of start and end score, of at most ``max_words`` words.

    Of equally good spans the shortest is taken, and of these the first.

    Args:
        starts: Scores of each word as the first of the span, ``(batch, time)``.
        ends: Scores of each word as the last of the span, ``(batch, time)``.
        mask: ``(batch, time)`` bool, True on a real token; at least one each.
        max_words: Longest span; None for no limit.

    Returns:
        First words, last words (inclusive) and the sums of the two scores, each ``(batch,)``.
    """
    n_words = starts.shape[1]
    # max returns the first of equal values, hence the shortest of equal spans.
    sums, index = span_scores(starts, ends, mask, max_words).max(1)
    first = index % n_words
    return first, first + index // n_words, sums


def span_scores(starts: Tensor, ends: Tensor, mask: Tensor, max_words: int | None) -> Tensor:
    """Return the sum of start and end score of each span, -inf for one that is not all in the sequence.

    The arguments are those of ``best_answer_spans``.

    Returns:
        ``(batch, spans)``, by length, and then by first word: span ``i`` of sequences of ``time`` words is the one from
        word ``i % time`` with ``i // time`` words after that.
    """
    n_words = starts.shape[1]
    starts = starts.masked_fill(~mask, -torch.inf)
    ends = ends.masked_fill(~mask, -torch.inf)
    by_length = []
    for more in range(min(max_words or n_words, n_words)):
        sums = starts[:, : n_words - more] + ends[:, more:]
        by_length.append(F.pad(sums, (0, more), value=-torch.inf))
    return torch.cat(by_length, dim=1)
