"""The output layer of the language model: scores over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS_AT_ONCE = 128  # positions whose scores are held at a time: memory is bounded and stays in the cache


class FullSoftmax(nn.Module):
    """A softmax over every word of the vocabulary, shared by both directions.

    Args:
        n_words: size of the vocabulary.
        input_dim: size of the LSTM's outputs.
    """

    def __init__(self, n_words: int, input_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_words, input_dim))
        self.bias = nn.Parameter(torch.empty(n_words))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights as bilm-tf does: N(0, 1/input_dim), biases 0."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5, generator=generator)
        nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor, word_ids: Tensor) -> Tensor:
        """The mean loss in nats per position, for training.

        Args:
            hidden: ``(positions, input_dim)``.
            word_ids: ``(positions,)``, the words to predict.

        Returns:
            a scalar.
        """
        return _mean_nats(hidden, self.weight, self.bias, word_ids)

    def scores(self, hidden: Tensor) -> Tensor:
        """Each word's score before the softmax, ``(positions, words)``."""
        return F.linear(hidden, self.weight, self.bias)

    @torch.no_grad()
    def nats(self, hidden: Tensor, word_ids: Tensor) -> Tensor:
        """Surprisal of each position's word, ``(positions,)`` in nats. Arguments as in ``forward``."""
        return _nats(hidden, self.weight, self.bias, word_ids)


class TiedSoftmax(nn.Module):
    """A softmax whose weights are the word embedding of a word-input model; only the bias is its own.

    Args:
        embedding: the table of the token layer; its row 0, "no token", predicts nothing.
    """

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(embedding.num_embeddings - 1, device=embedding.weight.device))
        self._embedding = (embedding,)  # in a tuple: its parameters belong to the biLM

    @property
    def weight(self) -> Tensor:
        """``(words, input_dim)``, a view of the embedding."""
        return self._embedding[0].weight[1:]

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Biases 0; the embedding is drawn with the biLM."""
        nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor, word_ids: Tensor) -> Tensor:
        """The mean loss in nats per position. As ``FullSoftmax.forward``."""
        return _mean_nats(hidden, self.weight, self.bias, word_ids)

    def scores(self, hidden: Tensor) -> Tensor:
        """Each word's score before the softmax. As ``FullSoftmax.scores``."""
        return F.linear(hidden, self.weight, self.bias)

    @torch.no_grad()
    def nats(self, hidden: Tensor, word_ids: Tensor) -> Tensor:
        """Surprisal of each position's word. As ``FullSoftmax.nats``."""
        return _nats(hidden, self.weight, self.bias, word_ids)


class AdaptiveSoftmax(nn.Module):
    """A softmax in two stages: a head of frequent words and clusters, and narrower tails of rarer ones.

    Grave et al. 2017, "Efficient softmax approximation for GPUs"; PyTorch's implementation. Words must stand by
    descending frequency.

    Args:
        n_words: size of the vocabulary.
        input_dim: size of the LSTM's outputs.
        cutoffs: the first word of each tail, ascending, below ``n_words``.
        shrink: each tail's projection is so many times narrower than the one before.
    """

    def __init__(self, n_words: int, input_dim: int, cutoffs: Sequence[int], shrink: float) -> None:
        super().__init__()
        self.stages = nn.AdaptiveLogSoftmaxWithLoss(input_dim, n_words, list(cutoffs), shrink, head_bias=True)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights from N(0, 1/input_dim) of each product; biases 0."""
        for parameter in self.stages.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5, generator=generator)
            else:
                nn.init.zeros_(parameter)

    def forward(self, hidden: Tensor, word_ids: Tensor) -> Tensor:
        """The mean loss in nats per position. As ``FullSoftmax.forward``."""
        # PyTorch's module writes scores of one precision among those of another under autocast, and refuses.
        with torch.autocast(hidden.device.type, enabled=False):
            loss: Tensor = self.stages(hidden.to(self.stages.head.weight.dtype), word_ids).loss
        return loss

    def scores(self, hidden: Tensor) -> Tensor:
        """Each word's log-probability, ``(positions, words)``: scores that a softmax leaves as they are."""
        scores: Tensor = self.stages.log_prob(hidden)
        return scores

    @torch.no_grad()
    def nats(self, hidden: Tensor, word_ids: Tensor) -> Tensor:
        """Surprisal of each position's word. As ``FullSoftmax.nats``."""
        nats = torch.empty_like(hidden[:, 0])
        for start in range(0, len(hidden), ROWS_AT_ONCE):
            here = slice(start, start + ROWS_AT_ONCE)
            nats[here] = -self.stages(hidden[here], word_ids[here]).output
        return nats


Softmax = FullSoftmax | TiedSoftmax | AdaptiveSoftmax


def _mean_nats(hidden: Tensor, weight: Tensor, bias: Tensor, word_ids: Tensor) -> Tensor:
    device = hidden.device.type
    lower = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    with torch.autocast(device, enabled=False):
        total: Tensor = _SummedNats.apply(  # type: ignore[no-untyped-call]
            hidden.to(weight.dtype), weight, bias, word_ids, lower
        )
        return total / len(word_ids)


def _nats(hidden: Tensor, weight: Tensor, bias: Tensor, word_ids: Tensor) -> Tensor:
    nats = torch.empty_like(hidden[:, 0])
    for start in range(0, len(hidden), ROWS_AT_ONCE):
        here = slice(start, start + ROWS_AT_ONCE)
        nats[here] = F.cross_entropy(F.linear(hidden[here], weight, bias), word_ids[here], reduction="none")
    return nats


class _SummedNats(torch.autograd.Function):
    """Summed cross-entropy of a softmax layer, some rows at a time.

    The gradients are formed in the forward pass, while a block of scores is at hand, so that the scores
    of all positions never stand in memory together and are computed once. Products are in a lower precision where one
    is given.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, word_ids: Tensor, lower: torch.dtype | None
    ) -> Tensor:
        total = hidden.new_zeros(())
        wants_gradient = any(ctx.needs_input_grad[:3])
        if wants_gradient:
            hidden_gradient, weight_gradient = torch.empty_like(hidden), torch.zeros_like(weight)
            bias_gradient = torch.zeros_like(bias)
        low_weight = weight if lower is None else weight.to(lower)
        for start in range(0, len(hidden), ROWS_AT_ONCE):
            rows = hidden[start : start + ROWS_AT_ONCE]
            words = word_ids[start : start + ROWS_AT_ONCE, None]
            if lower is None:
                scores = F.linear(rows, weight, bias)
            else:
                scores = F.linear(rows.to(lower), low_weight).to(rows.dtype).add_(bias)
            top = scores.amax(dim=1, keepdim=True)
            right = scores.gather(1, words)
            scores.sub_(top).exp_()
            norm = scores.sum(dim=1, keepdim=True)
            total += (norm.log() + top - right).sum()
            if wants_gradient:
                scores.div_(norm)
                scores.scatter_add_(1, words, scores.new_full((1, 1), -1.0).expand(len(words), 1))
                if lower is None:
                    torch.mm(scores, weight, out=hidden_gradient[start : start + ROWS_AT_ONCE])
                    weight_gradient.addmm_(scores.t(), rows)
                else:
                    low_scores = scores.to(lower)
                    hidden_gradient[start : start + ROWS_AT_ONCE] = low_scores @ low_weight
                    weight_gradient += low_scores.t() @ rows.to(lower)
                bias_gradient += scores.sum(dim=0)
        if wants_gradient:
            ctx.save_for_backward(hidden_gradient, weight_gradient, bias_gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        hidden, weight, bias = ctx.saved_tensors
        return hidden * upstream[0], weight * upstream[0], bias * upstream[0], None, None
