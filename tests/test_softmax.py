from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from elmokit.nn.softmax import ROWS_AT_ONCE, FullSoftmax


@pytest.fixture
def softmax() -> FullSoftmax:
    layer = FullSoftmax(11, 4).double()
    layer.reset_parameters(torch.Generator().manual_seed(0))
    torch.nn.init.normal_(layer.bias, generator=torch.Generator().manual_seed(1))
    return layer


@pytest.mark.parametrize("n_rows", [1, ROWS_AT_ONCE, ROWS_AT_ONCE + 3])
def test_loss_and_gradients_equal_cross_entropy_over_all_scores_at_once(softmax: FullSoftmax, n_rows: int) -> None:
    hidden = torch.randn(n_rows, 4, dtype=torch.float64, requires_grad=True)
    words = torch.randint(11, (n_rows,))
    wanted = [hidden, softmax.weight, softmax.bias]
    ours = softmax(hidden, words)
    plain = F.cross_entropy(F.linear(hidden, softmax.weight, softmax.bias), words)
    torch.testing.assert_close(ours, plain, atol=1e-12, rtol=0)
    for mine, theirs in zip(torch.autograd.grad(3 * ours, wanted), torch.autograd.grad(3 * plain, wanted), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=0)


def test_surprisals_average_to_the_loss(softmax: FullSoftmax) -> None:
    hidden, words = torch.randn(300, 4, dtype=torch.float64), torch.randint(11, (300,))
    nats = softmax.nats(hidden, words)
    assert nats.shape == (300,)
    torch.testing.assert_close(nats.mean(), softmax(hidden, words).detach())
