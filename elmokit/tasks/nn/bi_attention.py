"""The attention layers of BiDAF++: passage to question and back, and passage to itself (Clark and Gardner 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.tasks.nn.layers import attend

INITIAL_NULL_SCORE = -1.0


class Trilinear(nn.Module):
    """A score of each pair of vectors: ``a . x_i + b . y_j + c . (x_i * y_j)`` (Seo et al. 2017, equation 1).

    There is no bias, because a softmax does not depend on an added constant; if there is a null score, that learns the
    constant.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.of_left = nn.Linear(dim, 1, bias=False)
        self.of_right = nn.Linear(dim, 1, bias=False)
        self.of_product = nn.Linear(dim, 1, bias=False)
        for part in (self.of_left, self.of_right, self.of_product):
            nn.init.xavier_uniform_(part.weight)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Score all pairs of ``(batch, m, dim)`` and ``(batch, n, dim)``; the result is ``(batch, m, n)``."""
        # c . (x_i * y_j) is (c * x_i) . y_j: one matrix product, without a tensor of the products of all pairs.
        products = (left * self.of_product.weight) @ right.transpose(1, 2)
        of_left = F.linear(left, self.of_left.weight)
        of_right = F.linear(right, self.of_right.weight)
        return products + of_left + of_right.transpose(1, 2)


class BiAttention(nn.Module):
    """Attention from the passage to the question and from the question to the passage.

    With scores ``s_ij`` for passage word ``x_i`` and question word ``q_j``::

        u_i = sum_j softmax_j(s_ij) q_j
        v   = sum_i softmax_i(max_j s_ij) x_i
        output_i = [x_i; u_i; x_i * u_i; x_i * v]

    Seo et al. 2017, section 2; the last part multiplies by the passage word ``x_i``, as in Clark and Gardner.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scores = Trilinear(dim)
        self.output_dim = 4 * dim

    def forward(self, passage: Tensor, question: Tensor, passage_mask: Tensor, question_mask: Tensor) -> Tensor:
        """Attend in both directions.

        Args:
            passage: ``(batch, m, dim)``.
            question: ``(batch, n, dim)``.
            passage_mask: ``(batch, m)`` bool, True on a real token; each row has at least one.
            question_mask: ``(batch, n)``, likewise.

        Returns:
            ``(batch, m, 4 * dim)``
        """
        # -inf, because padding could otherwise win the maximum over the question below.
        scores = self.scores(passage, question).masked_fill(~question_mask[:, None, :], -torch.inf)
        attended_question = attend(scores, question, question_mask)
        # One vector for the whole passage, from the words that best match any question word.
        best_matches = scores.amax(2)[:, None, :]  # (batch, 1, m)
        attended_passage = attend(best_matches, passage, passage_mask)  # (batch, 1, dim)
        return torch.cat([passage, attended_question, passage * attended_question, passage * attended_passage], dim=2)


class SelfAttention(nn.Module):
    """Attention of each word to all other words, or to nothing.

    With scores ``s_ij`` for ``i != j``, and a learned null score ``b`` that starts at -1::

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
        # As in the paper, a word does not attend to itself: the layer adds what other words contribute.
        scores = self.scores(words, words).masked_fill(itself | ~mask[:, None, :], -torch.inf)
        # Without the null score, the softmax of a one-word sequence would see only -inf and give NaN.
        null = self.null_score.expand(len(words), n_words, 1)
        # The null score has the value 0, so it only lowers the weights of the words.
        weights = torch.cat([scores, null], dim=2).softmax(2)
        attended = weights[..., :-1] @ words
        return torch.cat([attended, words, attended * words], dim=2)


def best_answer_spans(
    starts: Tensor, ends: Tensor, mask: Tensor, max_words: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the span with the highest sum of start and end score in each sequence.

    Ties go to the shortest span, and then to the first one.

    Args:
        starts: Score of each word as the first word of the span, ``(batch, time)``.
        ends: Score of each word as the last word of the span, ``(batch, time)``.
        mask: ``(batch, time)`` bool, True on a real token; each row has at least one.
        max_words: Longest span; None for no limit.

    Returns:
        First words, last words (inclusive) and the sums of the two scores, each ``(batch,)``.
    """
    n_words = starts.shape[1]
    # max returns the first of equal values, so the shortest of equal spans.
    sums, index = span_scores(starts, ends, mask, max_words).max(1)
    first = index % n_words
    last = first + index // n_words
    return first, last, sums


def span_scores(starts: Tensor, ends: Tensor, mask: Tensor, max_words: int | None) -> Tensor:
    """Return the sum of start and end score of each span; -inf for spans that are not entirely in the sequence.

    The arguments are as in ``best_answer_spans``.

    Returns:
        ``(batch, spans)``, ordered by length and then by first word: span ``i`` starts at word ``i % time`` and has
        ``i // time`` more words, where ``time`` is the padded length.
    """
    n_words = starts.shape[1]
    starts = starts.masked_fill(~mask, -torch.inf)
    ends = ends.masked_fill(~mask, -torch.inf)
    longest = n_words
    if max_words is not None:
        longest = min(max_words, n_words)
    by_length = []
    for more in range(longest):
        sums = starts[:, : n_words - more] + ends[:, more:]
        by_length.append(F.pad(sums, (0, more), value=-torch.inf))
    return torch.cat(by_length, dim=1)
