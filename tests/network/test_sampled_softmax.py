"""The sampled softmax is TensorFlow's: its law, its correction, its loss."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from elmokit.network.softmax_losses import Sample, draw_sample, log_expected_count, sampled_softmax_loss
from elmokit.network.softmax_module import FullSoftmax


def law(word: int, n_words: int) -> float:
    return math.log((word + 2) / (word + 1)) / math.log(n_words + 1)


def test_the_draws_end_with_the_one_that_gave_the_last_word() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    sample = draw_sample(5, 8)
    torch.set_rng_state(state)
    uniform = torch.rand(10, dtype=torch.float64)
    draws = [int(math.exp(u * math.log(9))) - 1 for u in uniform.tolist()]
    needed = next(n for n in range(len(draws) + 1) if len(set(draws[:n])) == 5)
    assert needed > 5, "a seed with a rejected draw shows more"
    assert sample.n_draws == needed
    assert sample.word_ids.tolist() == list(dict.fromkeys(draws[:needed]))


def test_more_samples_than_words_are_an_error() -> None:
    with pytest.raises(ValueError, match="6 distinct words of 5"):
        draw_sample(6, 5)


@pytest.mark.parametrize("n_draws", [4, 9])
def test_the_expected_count_is_that_of_tensorflow(n_draws: int) -> None:
    words = torch.tensor([0, 3, 19])
    found = log_expected_count(words, 20, 4, n_draws).exp()
    for word, count in zip(words.tolist(), found.tolist(), strict=True):
        share = law(word, 20)
        wanted = 4 * share if n_draws == 4 else 1 - (1 - share) ** n_draws
        assert count == pytest.approx(wanted, rel=1e-9)


def test_the_loss_is_cross_entropy_of_the_right_word_among_the_sampled_ones() -> None:
    torch.manual_seed(0)
    softmax = FullSoftmax(20, 6).double()
    softmax.reset_parameters()
    torch.nn.init.normal_(softmax.bias)
    hidden, words = torch.randn(5, 6, dtype=torch.float64, requires_grad=True), torch.tensor([0, 3, 7, 3, 19])
    sample = Sample(torch.tensor([3, 0, 11, 2]), 6)
    ours = sampled_softmax_loss(softmax, hidden, words, sample)

    def corrected(row: torch.Tensor, word: int) -> torch.Tensor:
        expected = 1 - (1 - law(word, 20)) ** 6
        return row @ softmax.weight[word] + softmax.bias[word] - math.log(expected)

    total = hidden.new_zeros(())
    for row, word in zip(hidden, words.tolist(), strict=True):
        others = [corrected(row, other) for other in sample.word_ids.tolist() if other != word]  # hits are struck out
        total = total + F.cross_entropy(torch.stack([corrected(row, word), *others])[None], torch.tensor([0]))
    torch.testing.assert_close(ours, total / 5, atol=1e-12, rtol=0)
    wanted = [hidden, softmax.weight, softmax.bias]
    theirs = torch.autograd.grad(total / 5, wanted)
    for mine, reference in zip(torch.autograd.grad(ours, wanted), theirs, strict=True):
        torch.testing.assert_close(mine, reference, atol=1e-12, rtol=0)
