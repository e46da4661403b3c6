"""Attention of a passage to a question and to itself (Seo et al. 2017; Clark and Gardner 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.tasks.nn.attention import attend

FIRST_NULL_SCORE = -1.0


class Trilinear(nn.Module):
    """A score for each pair of vectors: ``a . x_i + b . y_j + c . (x_i * y_j)``.

    Seo et al. 2017, equation 1. No constant is added: a softmax takes it out, and where a null score stands
    beside the scores, that one learns it.

    Args:
        dim: size of both vectors.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.of_left = nn.Linear(dim, 1, bias=False)
        self.of_right = nn.Linear(dim, 1, bias=False)
        self.of_product = nn.Linear(dim, 1, bias=False)
        for part in (self.of_left, self.of_right, self.of_product):
            nn.init.xavier_uniform_(part.weight)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """``(batch, m, dim)`` and ``(batch, n, dim)`` to ``(batch, m, n)``."""
        products = (left * self.of_product.weight) @ right.transpose(1, 2)
        of_left, of_right = F.linear(left, self.of_left.weight), F.linear(right, self.of_right.weight)
        return products + of_left + of_right.transpose(1, 2)


class BiAttention(nn.Module):
    """Each passage word beside what it sees of the question, and the passage as the question sees it.

    With scores ``s_ij`` of passage word ``x_i`` and question word ``q_j``::

        u_i = sum_j softmax_j(s_ij) q_j
        v   = sum_i softmax_i(max_j s_ij) x_i
        output_i = [x_i; u_i; x_i * u_i; x_i * v]

    Seo et al. 2017, section 2, with the passage's own vector in the last part, as Clark and Gardner 2018.

    Args:
        dim: size of the vectors of both.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scores = Trilinear(dim)
        self.output_dim = 4 * dim

    def forward(self, passage: Tensor, question: Tensor, passage_mask: Tensor, question_mask: Tensor) -> Tensor:
        """Attend in both directions.

        Args:
            passage: ``(batch, m, dim)``.
            question: ``(batch, n, dim)``; at least one real word each.
            passage_mask: ``(batch, m)`` bool, True on a real token; at least one each.
            question_mask: ``(batch, n)``.

        Returns:
            ``(batch, m, 4 * dim)``
        """
        scores = self.scores(passage, question).masked_fill(~question_mask[:, None, :], -torch.inf)
        seen_of_question = attend(scores, question, question_mask)
        seen_of_passage = attend(scores.amax(2)[:, None, :], passage, passage_mask)  # (batch, 1, dim)
        return torch.cat([passage, seen_of_question, passage * seen_of_question, passage * seen_of_passage], dim=2)


class SelfAttention(nn.Module):
    """Each word beside what it sees of the others, or of nothing.

    With scores ``s_ij``, none for ``i = j``, and a learned null score ``b``, from -1 on::

        r_i = sum_j exp(s_ij) x_j / (exp(b) + sum_j exp(s_ij))
        output_i = [r_i; x_i; r_i * x_i]

    Clark and Gardner 2018, section 3.1.

    Args:
        dim: size of the vectors.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scores = Trilinear(dim)
        self.null_score = nn.Parameter(torch.tensor(FIRST_NULL_SCORE))
        self.output_dim = 3 * dim

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Attend within each sequence.

        Args:
            words: ``(batch, time, dim)``.
            mask: ``(batch, time)`` bool, True on a real token.

        Returns:
            ``(batch, time, 3 * dim)``
        """
        n_words = words.shape[1]
        itself = torch.eye(n_words, dtype=torch.bool, device=words.device)
        scores = self.scores(words, words).masked_fill(itself | ~mask[:, None, :], -torch.inf)
        null = self.null_score.expand(len(words), n_words, 1)
        seen = torch.cat([scores, null], dim=2).softmax(2)[..., :-1] @ words
        return torch.cat([seen, words, seen * words], dim=2)


def best_spans(starts: Tensor, ends: Tensor, mask: Tensor, max_words: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best span of each sequence: highest start plus end, of 1 to ``max_words`` words.

    Of equally good spans the shorter one is taken, then the earlier.

    Args:
        starts: ``(batch, time)`` scores of a span's first word.
        ends: ``(batch, time)`` scores of its last.
        mask: ``(batch, time)`` bool, True on a real token; at least one each.

    Returns:
        first words, last words (inclusive) and sums of the two scores, each ``(batch,)``.
    """
    n_words = starts.shape[1]
    starts, ends = (scores.masked_fill(~mask, -torch.inf) for scores in (starts, ends))
    by_length = [
        F.pad(starts[:, : n_words - more] + ends[:, more:], (0, more), value=-torch.inf)
        for more in range(min(max_words, n_words))
    ]
    sums, place = torch.cat(by_length, dim=1).max(1)  # over (length, first word)
    first = place % n_words
    return first, first + place // n_words, sums
