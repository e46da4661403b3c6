"""The loss of a softmax that learns from another one, compared with PyTorch's own divergence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.engine.softmax import ROWS_AT_ONCE
from elmokit.network.softmax_losses import soft_target_loss
from elmokit.network.softmax_module import FullSoftmax, TiedSoftmax

N_WORDS = 11
N_POSITIONS = ROWS_AT_ONCE + 5  # more than one block


def softmax(dim: int, seed: int) -> FullSoftmax:
    made = FullSoftmax(N_WORDS, dim).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return made


@pytest.fixture
def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(N_POSITIONS, 4, generator=generator, dtype=torch.float64)
    other = torch.randn(N_POSITIONS, 6, generator=generator, dtype=torch.float64)
    return hidden.requires_grad_(), other, torch.randint(N_WORDS, (N_POSITIONS,), generator=generator)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize(("text", "prediction"), [(0.0, 1.0), (0.3, 0.7)])
def test_loss_and_gradients_are_those_of_plain_pytorch(
    inputs: tuple[Tensor, Tensor, Tensor], temperature: float, text: float, prediction: float
) -> None:
    (hidden, other, word_ids), student, teacher = inputs, softmax(4, 1), softmax(6, 2)
    wanted = (teacher.scores(other) / temperature).log_softmax(1).detach()
    given = (student.scores(hidden) / temperature).log_softmax(1)
    divergence = F.kl_div(given, wanted, reduction="batchmean", log_target=True) * temperature**2
    expected = prediction * divergence + text * F.cross_entropy(student.scores(hidden), word_ids)
    loss = soft_target_loss(student, teacher, hidden, other, temperature, None, word_ids, text, prediction)
    torch.testing.assert_close(loss, expected)
    variables = [hidden, student.weight, student.bias]
    # A factor, because a loss may be scaled before its backward pass.
    found, gradients = (torch.autograd.grad(3 * one, variables) for one in (loss, expected))
    torch.testing.assert_close(found, gradients)


def test_for_a_sample_the_other_words_do_not_count(inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    (hidden, other, _), student, teacher = inputs, softmax(4, 1), softmax(6, 2)
    words = torch.tensor([1, 4, 7])
    wanted = teacher.scores(other)[:, words].log_softmax(1).detach()
    expected = F.kl_div(student.scores(hidden)[:, words].log_softmax(1), wanted, reduction="batchmean", log_target=True)
    loss = soft_target_loss(student, teacher, hidden, other, words=words)
    torch.testing.assert_close(loss, expected)
    found, gradients = (torch.autograd.grad(one, student.weight)[0] for one in (loss, expected))
    torch.testing.assert_close(found, gradients)
    assert not found[0].any()


def test_gradients_reach_the_table_of_a_tied_softmax(inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    table = nn.Embedding(N_WORDS + 1, 4).double()
    tied = TiedSoftmax(table).double()
    tied.reset_parameters()
    soft_target_loss(tied, softmax(6, 2), inputs[0], inputs[1]).backward()
    assert not table.weight.grad[0].any()
    assert table.weight.grad[1:].any()
