"""Sampled softmax: a training loss over a sample of the vocabulary (Jean et al. 2015).

Each position's word is scored against the same few thousand sampled words instead of the whole vocabulary. Words are
drawn from a log-uniform (Zipfian) distribution over word ids, so the vocabulary must be sorted by descending
frequency. Frequent words are drawn more often; subtracting the logarithm of each word's expected count from its score
corrects for that.

Distribution, expected counts and accidental hits follow ``tf.nn.sampled_softmax_loss`` with its log-uniform sampler,
which bilm-tf trained with. The loss is lower than that of a full softmax and cannot be compared with it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit.network.backends import tile_library_for
from elmokit.network.softmax import WordSoftmaxModule
from elmokit.network.tile_layers import tile_cross_entropy

ACCIDENTAL_HIT = -3.4028235e38  # added to the score of a sampled word that is the word to predict: removes it


class Sample(NamedTuple):
    """Distinct words drawn from the log-uniform distribution."""

    word_ids: Tensor  # (n_samples,) in the order drawn
    n_draws: int  # draws that it took, repeated words included


def draw_sample(n_samples: int, n_words: int, generator: torch.Generator | None = None) -> Sample:
    """Draw distinct words with probability p(c) = ln((c + 2) / (c + 1)) / ln(n_words + 1), without repetition."""
    if n_samples > n_words:
        raise ValueError(f"Cannot draw {n_samples} distinct words of {n_words}. Draw at most {n_words}.")
    draws = torch.empty(0, dtype=torch.int64)
    while True:
        # Inverse transform sampling. Drawing more each time keeps the number of rounds small.
        uniform = torch.rand(2 * n_samples + len(draws), dtype=torch.float64, generator=generator)
        drawn = (uniform * math.log(n_words + 1)).exp().long() - 1
        draws = torch.cat([draws, drawn.clamp_(0, n_words - 1)])
        # For each word, the index of its first draw; sorted, these are the distinct words in the order drawn.
        first = torch.full((n_words,), len(draws)).scatter_reduce_(0, draws, torch.arange(len(draws)), "amin")
        indices = first[first < len(draws)].sort().values
        if len(indices) >= n_samples:
            indices = indices[:n_samples]
            return Sample(draws[indices], int(indices[-1]) + 1)


def log_expected_count(word_ids: Tensor, n_words: int, n_samples: int, n_draws: int) -> Tensor:
    """Return the logarithm of how often each word is expected in a sample of ``n_draws`` draws, ``(words,)``."""
    ids = word_ids.double()
    probability = torch.log((ids + 2) / (ids + 1)) / math.log(n_words + 1)
    if n_draws == n_samples:  # nothing was rejected: TensorFlow then counts as if words were drawn with replacement
        return (probability * n_draws).log()
    # The probability that a word is drawn at least once, 1 - (1 - p)^n, computed without cancellation for small p.
    return (-torch.expm1(n_draws * torch.log1p(-probability))).log()


def sampled_softmax_loss(
    softmax: WordSoftmaxModule,  # only the rows of the words that occur here are read
    hidden: Tensor,  # (positions, input_dim)
    word_ids: Tensor,  # (positions,), the words to predict
    sample: Sample,  # the words to score each of them against
) -> Tensor:
    """Compute the mean cross-entropy per position of the right word among the sampled words, in nats."""
    weight, bias, hidden = softmax.weight, softmax.bias, softmax.after_inner(hidden)
    n_words, n_samples, n_positions = len(bias), len(sample.word_ids), len(word_ids)
    drawn = sample.word_ids.to(hidden.device)
    both = torch.cat([word_ids, drawn])
    correction = log_expected_count(both, n_words, n_samples, sample.n_draws).to(hidden.dtype)
    rows, offsets = F.embedding(both, weight), bias[both] - correction
    library = tile_library_for(hidden) if weight.dtype == torch.float32 and n_positions else None
    if library is not None and torch.is_grad_enabled():
        own = (hidden * rows[:n_positions]).sum(dim=1) + offsets[:n_positions]
        # Where the word to predict is in the sample, or a negative number.
        indices = torch.full((n_words,), -1).index_put_((drawn,), torch.arange(n_samples))
        total = tile_cross_entropy(library, hidden, rows[n_positions:], offsets[n_positions:], own, indices[word_ids])
        return total / n_positions
    right = (hidden * rows[:n_positions]).sum(dim=1, keepdim=True) + offsets[:n_positions, None]
    # The offsets are added after the product, so that autocast to bfloat16 rounds the product only.
    others = F.linear(hidden, rows[n_positions:]) + offsets[n_positions:]
    others = others + (drawn == word_ids[:, None]) * ACCIDENTAL_HIT
    return F.cross_entropy(torch.cat([right, others], dim=1), torch.zeros_like(word_ids))
