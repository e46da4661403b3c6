"""A CRF gives the probabilities of its formula, and decodes the best sequence that its rules allow."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from elmokit.tasks.nn.crf import CRF, TagRules

N_TAGS = 3


def rules() -> TagRules:
    follow = torch.tensor([[True, True, False], [False, True, True], [True, True, True]])
    return TagRules(follow, torch.tensor([True, False, True]), torch.tensor([True, True, False]))


def made(**flags: bool) -> CRF:
    torch.manual_seed(0)
    return CRF(N_TAGS, rules(), **flags)


def score(crf: CRF, emissions: Tensor, path: tuple[int, ...]) -> Tensor:
    total = sum(emissions[step, tag] for step, tag in enumerate(path))
    total = total + sum(crf.transitions[one, two] for one, two in itertools.pairwise(path))
    if crf.start is not None and crf.end is not None:
        total = total + crf.start[path[0]] + crf.end[path[-1]]
    return total


def is_allowed(path: tuple[int, ...]) -> bool:
    follow, start, end = rules()
    inside = all(follow[one, two] for one, two in itertools.pairwise(path))
    return bool(start[path[0]] and end[path[-1]] and inside)


@pytest.mark.parametrize("learn_ends", [False, True])
@pytest.mark.parametrize("rules_in_training", [False, True])
def test_loss_is_the_negative_log_likelihood_over_all_sequences(learn_ends: bool, rules_in_training: bool) -> None:
    crf = made(learn_ends=learn_ends, rules_in_training=rules_in_training).double()
    emissions = torch.randn(2, 4, N_TAGS, dtype=torch.float64)
    gold = (0, 1, 2, 0)
    tags = torch.tensor([gold, gold])
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    losses = crf.loss(emissions, tags, mask)
    for row, length in enumerate((4, 2)):
        paths = list(itertools.product(range(N_TAGS), repeat=length))
        if rules_in_training:
            paths = [path for path in paths if is_allowed(path)]
        every = torch.stack([score(crf, emissions[row], path) for path in paths])
        expected = every.logsumexp(0) - score(crf, emissions[row], gold[:length])
        torch.testing.assert_close(losses[row], expected)


@pytest.mark.parametrize("learn_ends", [False, True])
def test_decode_finds_the_best_allowed_sequence(learn_ends: bool) -> None:
    crf = made(learn_ends=learn_ends)
    emissions = 2 * torch.randn(40, 5, N_TAGS)
    lengths = torch.arange(40) % 5 + 1
    mask = torch.arange(5)[None, :] < lengths[:, None]
    for row, path in enumerate(crf.decode(emissions, mask)):
        every = [one for one in itertools.product(range(N_TAGS), repeat=int(lengths[row])) if is_allowed(one)]
        assert tuple(path) == max(every, key=lambda one: score(crf, emissions[row], one).item())


def test_rules_change_the_loss_only_when_asked() -> None:
    emissions, tags = torch.randn(1, 4, N_TAGS), torch.tensor([[0, 1, 2, 0]])
    mask = torch.ones(1, 4, dtype=torch.bool)
    free, bound = made(), made(rules_in_training=True)
    plain = CRF(N_TAGS)
    plain.load_state_dict(free.state_dict())
    assert free.loss(emissions, tags, mask).equal(plain.loss(emissions, tags, mask))
    assert bound.loss(emissions, tags, mask).item() < free.loss(emissions, tags, mask).item()


def test_padding_is_ignored_and_the_loss_of_an_empty_row_is_zero() -> None:
    crf = made()
    emissions, tags = torch.randn(2, 3, N_TAGS), torch.tensor([[0, 1, 1], [0, 0, 0]])
    mask = torch.tensor([[True, True, False], [False, False, False]])
    losses = crf.loss(emissions, tags, mask)
    torch.testing.assert_close(losses[0], crf.loss(emissions[:1, :2], tags[:1, :2], mask[:1, :2])[0])
    assert losses[1].item() == 0.0
    assert [len(path) for path in crf.decode(emissions, mask)] == [2, 0]


def test_gradients_are_those_of_the_formula() -> None:
    crf = made(rules_in_training=True, learn_ends=True).double()
    tags, mask = torch.tensor([[0, 1, 2, 0]]), torch.tensor([[True, True, True, False]])
    emissions = torch.randn(1, 4, N_TAGS, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda values: crf.loss(values, tags, mask), (emissions,))
