"""Training losses of a softmax: with a sampled vocabulary, and against the predictions of a teacher.

In a sampled softmax (Jean et al. 2015), each position's word is scored against the same few thousand sampled words
instead of the whole vocabulary. Words are drawn from a log-uniform (Zipfian) distribution over word ids, so the
vocabulary must be sorted by descending frequency. Frequent words are drawn more often, which is corrected by
subtracting the logarithm of each word's expected count from its score.

The distribution, expected counts and accidental hits follow ``tf.nn.sampled_softmax_loss`` with its log-uniform
sampler, which bilm-tf used for training. The loss is lower than a full softmax's and cannot be compared with it.

``soft_target_loss`` is for distillation (Hinton et al. 2015).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit.engine.softmax import ROWS_AT_ONCE
from elmokit.network.operators import takes_tiles
from elmokit.network.softmax_module import WordSoftmaxModule
from elmokit.network.tile_layers import tile_cross_entropy

ACCIDENTAL_HIT = -3.4028235e38  # added to the score of a sampled word that is also the target, to remove it


class Sample(NamedTuple):
    """Distinct words drawn from the log-uniform distribution."""

    word_ids: Tensor  # (n_samples,), in the order in which they were drawn
    n_draws: int  # number of draws, including repeated words


def draw_sample(n_samples: int, n_words: int) -> Sample:
    """Draw words without replacement, with probability p(c) = ln((c + 2) / (c + 1)) / ln(n_words + 1)."""
    if n_samples > n_words:
        raise ValueError(f"Cannot draw {n_samples} distinct words of {n_words}. Draw at most {n_words}.")
    draws = torch.empty(0, dtype=torch.int64)
    while True:
        # Inverse transform sampling. Drawing more each time keeps the number of rounds small.
        uniform = torch.rand(2 * n_samples + len(draws), dtype=torch.float64)
        drawn = (uniform * math.log(n_words + 1)).exp().long() - 1
        draws = torch.cat([draws, drawn.clamp_(0, n_words - 1)])
        # The index of each word's first draw. Sorting by it gives the distinct words in the order drawn.
        first = torch.full((n_words,), len(draws)).scatter_reduce_(0, draws, torch.arange(len(draws)), "amin")
        indices = first[first < len(draws)].sort().values
        if len(indices) >= n_samples:
            indices = indices[:n_samples]
            return Sample(draws[indices], int(indices[-1]) + 1)


def log_expected_count(word_ids: Tensor, n_words: int, n_samples: int, n_draws: int) -> Tensor:
    """Compute the logarithm of each word's expected count, ``(words,)``, in a sample of ``n_draws`` draws."""
    ids = word_ids.double()
    probability = torch.log((ids + 2) / (ids + 1)) / math.log(n_words + 1)
    if n_draws == n_samples:  # no repeats: TensorFlow then counts as if drawn with replacement
        return (probability * n_draws).log()
    # The probability that a word is drawn at least once, 1 - (1 - p)^n, computed without cancellation for small p.
    return (-torch.expm1(n_draws * torch.log1p(-probability))).log()


def sampled_softmax_loss(
    softmax: WordSoftmaxModule,  # only the rows of words that occur here are read
    hidden: Tensor,  # (positions, input_dim)
    word_ids: Tensor,  # (positions,), the words to predict
    sample: Sample,  # the words to score each target against
) -> Tensor:
    """Compute the mean cross-entropy per position of the target among the sampled words, in nats."""
    weight, bias, hidden = softmax.weight, softmax.bias, softmax.after_inner(hidden)
    n_words, n_samples, n_positions = len(bias), len(sample.word_ids), len(word_ids)
    drawn = sample.word_ids.to(hidden.device)
    both = torch.cat([word_ids, drawn])
    correction = log_expected_count(both, n_words, n_samples, sample.n_draws).to(hidden.dtype)
    rows, offsets = F.embedding(both, weight), bias[both] - correction
    if n_positions and torch.is_grad_enabled() and takes_tiles(hidden, weight, bias):
        own = (hidden * rows[:n_positions]).sum(dim=1) + offsets[:n_positions]
        # The target's index in the sample, or a negative number.
        indices = torch.full((n_words,), -1).index_put_((drawn,), torch.arange(n_samples))
        total = tile_cross_entropy(hidden, rows[n_positions:], offsets[n_positions:], own, indices[word_ids])
        return total / n_positions
    right = (hidden * rows[:n_positions]).sum(dim=1, keepdim=True) + offsets[:n_positions, None]
    # The offsets are added after the product, so autocast to bfloat16 rounds only the product.
    others = F.linear(hidden, rows[n_positions:]) + offsets[n_positions:]
    others = others + (drawn == word_ids[:, None]) * ACCIDENTAL_HIT
    return F.cross_entropy(torch.cat([right, others], dim=1), torch.zeros_like(word_ids))


def soft_target_loss(
    student: WordSoftmaxModule,
    teacher: WordSoftmaxModule,
    hidden: Tensor,
    teacher_hidden: Tensor,
    temperature: float = 1.0,
    words: Tensor | None = None,
    word_ids: Tensor | None = None,
    text_weight: float = 0.0,
    prediction_weight: float = 1.0,
) -> Tensor:
    """Compute the mean divergence of a student's predictions from its teacher's, in nats, plus a loss on the text.

    The divergence is KL(teacher || student). Both distributions are flattened by the temperature, which gives more
    weight to the probabilities of unlikely words; the factor T² preserves the scale of the gradients. With
    ``text_weight``, the cross-entropy of the text's words is added, without temperature. Computing both together avoids
    computing the largest product, all positions times all words, twice.

    Args:
        student: Its weights are trained.
        teacher: A softmax over the same words.
        hidden: ``(positions, input_dim)``.
        teacher_hidden: ``(positions, the teacher's input_dim)``.
        temperature: Divides the logits of both.
        words: Only compare the probabilities of these words, renormalized; None for all words.
        word_ids: ``(positions,)``, the words of the text; required for ``text_weight``, not allowed with ``words``.
        text_weight: Factor of the cross-entropy.
        prediction_weight: Factor of the divergence.

    Returns:
        A scalar, with gradients for ``hidden`` and the student's weights.
    """
    weight, bias = _rows(student, words)
    teacher_weight, teacher_bias = _rows(teacher, words)
    # bfloat16 would round away the small differences of log probabilities that matter here.
    with torch.autocast(hidden.device.type, enabled=False):
        total: Tensor = _SummedLoss.apply(  # type: ignore[no-untyped-call]
            student.after_inner(hidden.to(weight.dtype)),
            weight,
            bias,
            teacher.after_inner(teacher_hidden.to(teacher_weight.dtype)).detach().to(weight.dtype),
            teacher_weight.detach(),
            teacher_bias.detach(),
            word_ids,
            (text_weight, prediction_weight, temperature),
        )
        return total / len(hidden)


def _rows(softmax: WordSoftmaxModule, words: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the weights and biases of the given words, or of all."""
    if words is None:
        return softmax.weight, softmax.bias
    return F.embedding(words, softmax.weight), softmax.bias[words]


class _SummedLoss(torch.autograd.Function):
    """The summed loss, computed in blocks of positions with its gradients, as ``softmax._SummedNats`` does.

    With a large vocabulary, the scores of both models for all positions would not fit in memory.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        teacher_hidden: Tensor,
        teacher_weight: Tensor,
        teacher_bias: Tensor,
        word_ids: Tensor | None,
        factors: tuple[float, float, float],
    ) -> Tensor:
        text_weight, prediction_weight, temperature = factors
        total = hidden.new_zeros(())
        wants_gradient = any(ctx.needs_input_grad[:3])
        if wants_gradient:
            hidden_gradient, weight_gradient = torch.empty_like(hidden), torch.zeros_like(weight)
            bias_gradient = torch.zeros_like(bias)
        for start in range(0, len(hidden), ROWS_AT_ONCE):
            here = slice(start, start + ROWS_AT_ONCE)
            wanted = F.linear(teacher_hidden[here], teacher_weight, teacher_bias).div_(temperature).log_softmax(dim=1)
            logits = F.linear(hidden[here], weight, bias)
            given = (logits / temperature).log_softmax(dim=1)
            target, probability = wanted.exp(), given.exp()
            # T² times the sum of p (log p - log q).
            total += prediction_weight * temperature**2 * (target * wanted.sub_(given)).sum()
            # Its gradient with respect to the logits, before dividing by T: T² (q - p) / T.
            scores = target.neg_().add_(probability).mul_(prediction_weight * temperature)
            if text_weight:
                assert word_ids is not None
                right = word_ids[here, None]
                if temperature != 1:
                    given = logits.log_softmax(dim=1)
                    probability = given.exp()
                total -= text_weight * given.gather(1, right).sum()
                # The gradient of the cross-entropy: the softmax, minus 1 at the target.
                scores.add_(probability, alpha=text_weight)
                scores.scatter_add_(1, right, scores.new_full((1, 1), -text_weight).expand(len(right), 1))
            if wants_gradient:
                torch.mm(scores, weight, out=hidden_gradient[here])
                weight_gradient.addmm_(scores.t(), hidden[here])
                bias_gradient += scores.sum(dim=0)
        if wants_gradient:
            ctx.save_for_backward(hidden_gradient, weight_gradient, bias_gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        return *(gradient * upstream[0] for gradient in ctx.saved_tensors), None, None, None, None, None
