"""The loss of a softmax that learns from the predictions of another one (Hinton et al. 2015)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit.engine.softmax import ROWS_AT_ONCE
from elmokit.network.softmax import WordSoftmaxModule


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
    """Return the mean divergence of a student's predictions from its teacher's, in nats, plus that from the text.

    The divergence is KL(teacher || student). Both distributions are flattened by the temperature, so that the
    probabilities of unlikely words matter more; multiplying by the square of the temperature keeps the size of the
    gradients. With ``text_weight``, the cross-entropy of the words of the text is added, without temperature: computing
    both together takes the largest product, all positions times all words, once instead of twice.

    Args:
        student: Its weights are trained.
        teacher: A softmax over the same words.
        hidden: ``(positions, input_dim)``.
        teacher_hidden: ``(positions, the teacher's input_dim)``.
        temperature: Divides the logits of both.
        words: Compare the probabilities of these words only, as if there were no others; None for all words.
        word_ids: ``(positions,)``, the words of the text; needed for ``text_weight``, and not with ``words``.
        text_weight: Factor of the cross-entropy.
        prediction_weight: Factor of the divergence.

    Returns:
        A scalar, with gradient for ``hidden`` and the student's weights.
    """
    weight, bias = _rows(student, words)
    teacher_weight, teacher_bias = _rows(teacher, words)
    # Small differences of log probabilities matter here, which bfloat16 would round away.
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
    """Return the weights and biases of some words, or of all."""
    if words is None:
        return softmax.weight, softmax.bias
    return F.embedding(words, softmax.weight), softmax.bias[words]


class _SummedLoss(torch.autograd.Function):
    """The summed loss, computed in blocks of positions with its gradients, as ``softmax._SummedNats`` does.

    The scores of both models for all positions would not fit in memory with a large vocabulary.
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
            # Its gradient by the logits, before they were divided by T: T² (q - p) / T.
            scores = target.neg_().add_(probability).mul_(prediction_weight * temperature)
            if text_weight:
                assert word_ids is not None
                right = word_ids[here, None]
                if temperature != 1:
                    given = logits.log_softmax(dim=1)
                    probability = given.exp()
                total -= text_weight * given.gather(1, right).sum()
                # The gradient of the cross-entropy: the softmax, minus 1 at the right word.
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
