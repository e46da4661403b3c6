"""The attention layers of question answering equal their formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from elmokit.tasks.nn.bi_attention import BiAttention, SelfAttention, Trilinear, best_answer_spans


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def plain_score(scores: Trilinear, left: Tensor, right: Tensor) -> float:
    a, b, c = (part.weight[0] for part in (scores.of_left, scores.of_right, scores.of_product))
    return (a @ left + b @ right + c @ (left * right)).item()


def test_trilinear_scores_are_those_of_the_formula() -> None:
    scores, left, right = Trilinear(4), numbers(2, 3, 4), numbers(2, 5, 4)
    expected = [[[plain_score(scores, x, y) for y in right[i]] for x in left[i]] for i in range(2)]
    torch.testing.assert_close(scores(left, right), torch.tensor(expected))


def test_bi_attention_is_the_formula() -> None:
    attention, passage, question = BiAttention(4), numbers(1, 3, 4), numbers(1, 2, 4)
    everything = torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 2, dtype=torch.bool)
    outputs = attention(passage, question, *everything)[0]
    scores = np.array([[plain_score(attention.scores, x, q) for q in question[0]] for x in passage[0]])
    importance = np.exp(scores.max(1)) / np.exp(scores.max(1)).sum()
    v = sum(weight * x for weight, x in zip(importance.tolist(), passage[0], strict=True))
    for i, x in enumerate(passage[0]):
        weights = np.exp(scores[i]) / np.exp(scores[i]).sum()
        u = sum(weight * q for weight, q in zip(weights.tolist(), question[0], strict=True))
        torch.testing.assert_close(outputs[i], torch.cat([x, u, x * u, x * v]))


def test_self_attention_is_the_formula_with_its_null_score() -> None:
    attention, words = SelfAttention(4), numbers(1, 3, 4)
    outputs = attention(words, torch.ones(1, 3, dtype=torch.bool))[0]
    for i, x in enumerate(words[0]):
        others = [j for j in range(3) if j != i]
        shares = [math.exp(plain_score(attention.scores, x, words[0, j])) for j in others]
        seen = sum(share * words[0, j] for share, j in zip(shares, others, strict=True)) / (sum(shares) + math.exp(-1))
        torch.testing.assert_close(outputs[i], torch.cat([seen, x, seen * x]))


@pytest.mark.parametrize("padding", [0.0, 7.0])
def test_padding_does_not_change_the_result(padding: float) -> None:
    both, alone = BiAttention(4), SelfAttention(4)
    passage, question = numbers(1, 3, 4), numbers(1, 2, 4)
    mask, question_mask = torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 2, dtype=torch.bool)
    longer = torch.nn.functional.pad(passage, (0, 0, 0, 2), value=padding)
    longer_question = torch.nn.functional.pad(question, (0, 0, 0, 1), value=padding)
    longer_mask = torch.tensor([[True, True, True, False, False]])
    outputs = both(longer, longer_question, longer_mask, torch.tensor([[True, True, False]]))
    torch.testing.assert_close(outputs[:, :3], both(passage, question, mask, question_mask))
    assert outputs.isfinite().all()
    outputs = alone(longer, longer_mask)
    torch.testing.assert_close(outputs[:, :3], alone(passage, mask))
    assert outputs.isfinite().all()


@pytest.mark.parametrize("max_words", [1, 2, 17])
def test_best_spans_are_those_of_a_search_over_all_pairs(max_words: int) -> None:
    starts, ends = numbers(8, 7), numbers(8, 7) * 2
    mask = torch.arange(7) < torch.tensor([7, 6, 5, 4, 3, 2, 1, 7])[:, None]
    found = best_answer_spans(starts, ends, mask, max_words)
    for row in range(8):
        length = int(mask[row].sum())
        pairs = [(i, j) for i in range(length) for j in range(i, min(i + max_words, length))]
        i, j = max(pairs, key=lambda pair: float(starts[row, pair[0]] + ends[row, pair[1]]))
        assert [part[row].item() for part in found] == [i, j, pytest.approx(float(starts[row, i] + ends[row, j]))]


def test_of_equally_good_spans_the_shortest_and_earliest_is_taken() -> None:
    zeros = torch.zeros(1, 4)
    first, last, _ = best_answer_spans(zeros, zeros, torch.ones(1, 4, dtype=torch.bool), 17)
    assert (first.item(), last.item()) == (0, 0)
