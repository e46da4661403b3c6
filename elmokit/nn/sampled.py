"""The training loss over a sample of the vocabulary, exactly as TensorFlow's sampled softmax.

Jean et al. 2015; the law, the expected counts and the treatment of accidental hits are those of
``tf.nn.sampled_softmax_loss`` with its log-uniform sampler, which bilm-tf trained with. Words must stand by
descending frequency. The loss is not comparable with that of a full softmax.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit.nn.softmax import FullSoftmax, TiedSoftmax

ACCIDENTAL_HIT = -3.4028235e38  # added to the score of a sampled word that is the one to predict


class Sample(NamedTuple):
    """Distinct words drawn from the log-uniform law, and how many draws that took."""

    word_ids: Tensor  # (n_samples,) in the order drawn
    n_draws: int


def draw_sample(n_samples: int, n_words: int, generator: torch.Generator | None = None) -> Sample:
    """Draw ``n_samples`` distinct words of ``n_words`` by rejection: p(c) = ln((c + 2) / (c + 1)) / ln(n_words + 1).

    Args:
        generator: None for torch's own, on the CPU.

    Raises:
        ValueError: more samples than words.
    """
    if n_samples > n_words:
        raise ValueError(f"Cannot draw {n_samples} distinct words of {n_words}. Draw at most {n_words}.")
    draws = torch.empty(0, dtype=torch.int64)
    while True:
        uniform = torch.rand(2 * n_samples + len(draws), dtype=torch.float64, generator=generator)
        drawn = (uniform * math.log(n_words + 1)).exp().long() - 1
        draws = torch.cat([draws, drawn.clamp_(0, n_words - 1)])
        first = torch.full((n_words,), len(draws)).scatter_reduce_(0, draws, torch.arange(len(draws)), "amin")
        places = first[first < len(draws)].sort().values
        if len(places) >= n_samples:
            places = places[:n_samples]
            return Sample(draws[places], int(places[-1]) + 1)


def log_expected_count(word_ids: Tensor, n_words: int, n_samples: int, n_draws: int) -> Tensor:
    """The logarithm of how often a word is expected in a sample of so many draws, ``(words,)`` as ``word_ids``."""
    ids = word_ids.double()
    share = torch.log((ids + 2) / (ids + 1)) / math.log(n_words + 1)
    if n_draws == n_samples:  # no draw was rejected: TensorFlow counts them as drawn with replacement
        return (share * n_draws).log()
    return (-torch.expm1(n_draws * torch.log1p(-share))).log()


def sampled_nats(softmax: FullSoftmax | TiedSoftmax, hidden: Tensor, word_ids: Tensor, sample: Sample) -> Tensor:
    """The mean loss in nats per position of the right word among the sampled ones.

    Args:
        hidden: ``(positions, input_dim)``.
        word_ids: ``(positions,)``, the words to predict.
        sample: the words that stand against each of them.

    Returns:
        a scalar; no gradient passes through the sampler.
    """
    weight, bias = softmax.weight, softmax.bias
    n_words, n_samples = len(bias), len(sample.word_ids)
    drawn = sample.word_ids.to(hidden.device)
    both = torch.cat([word_ids, drawn])
    correction = log_expected_count(both, n_words, n_samples, sample.n_draws).to(hidden.dtype)
    rows, offsets = F.embedding(both, weight), bias[both] - correction
    n_positions = len(word_ids)
    right = (hidden * rows[:n_positions]).sum(dim=1, keepdim=True) + offsets[:n_positions, None]
    others = F.linear(hidden, rows[n_positions:]) + offsets[n_positions:]  # apart: bfloat16 rounds the product alone
    others = others + (drawn == word_ids[:, None]) * ACCIDENTAL_HIT
    return F.cross_entropy(torch.cat([right, others], dim=1), torch.zeros_like(word_ids))
