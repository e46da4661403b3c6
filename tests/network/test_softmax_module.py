from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from elmokit.engine.softmax import ROWS_AT_ONCE
from elmokit.network.softmax_module import FullSoftmax, TiedSoftmax


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


def test_the_compiled_surprisals_equal_the_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = FullSoftmax(1700, 24)
    layer.reset_parameters(torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    hidden, words = 3 * torch.randn(ROWS_AT_ONCE + 3, 24), torch.randint(1700, (ROWS_AT_ONCE + 3,))
    hidden[7] = hidden[100] = hidden[3]
    nats = layer.nats(hidden, words)
    monkeypatch.setenv("ELMOKIT_BACKEND", "reference")
    torch.testing.assert_close(nats, layer.nats(hidden, words), atol=1e-5, rtol=1e-6)
    monkeypatch.undo()
    for row in (3, 7, 100):
        assert torch.equal(layer.nats(hidden[row : row + 1], words[row : row + 1]), nats[row : row + 1])
    assert layer.nats(hidden[:0], words[:0]).shape == (0,)


def test_a_certain_word_has_no_negative_surprisal_and_an_unknown_id_is_refused() -> None:
    layer = FullSoftmax(300, 8)
    layer.reset_parameters(torch.Generator().manual_seed(0))
    with torch.no_grad():
        layer.bias[5] = 60
    hidden = torch.randn(50, 8, generator=torch.Generator().manual_seed(1))
    assert (layer.nats(hidden, torch.full((50,), 5)) >= 0).all()
    for word in (-1, 300):
        with pytest.raises(IndexError):
            layer.nats(hidden, torch.full((50,), word))


def test_autocast_rounds_only_the_products() -> None:
    layer = FullSoftmax(11, 4)
    layer.reset_parameters(torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    hidden, words = torch.randn(ROWS_AT_ONCE + 3, 4, requires_grad=True), torch.randint(11, (ROWS_AT_ONCE + 3,))
    wanted = [hidden, layer.weight, layer.bias]
    exact = layer(hidden, words)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = layer(hidden, words)
    assert rounded.dtype == torch.float32
    assert 0 < abs(rounded - exact) < 0.01
    for ours, theirs in zip(torch.autograd.grad(rounded, wanted), torch.autograd.grad(exact, wanted), strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_a_tied_softmax_reads_and_trains_the_embedding() -> None:
    embedding = torch.nn.Embedding(12, 4, padding_idx=0)
    tied, full = TiedSoftmax(embedding), FullSoftmax(11, 4)
    tied.reset_parameters()
    with torch.no_grad():
        full.weight.copy_(embedding.weight[1:])
        full.bias.copy_(tied.bias)
    hidden, words = torch.randn(7, 4), torch.randint(11, (7,))
    torch.testing.assert_close(tied.nats(hidden, words), full.nats(hidden, words))
    torch.testing.assert_close(tied.scores(hidden), full.scores(hidden))
    (ours,) = torch.autograd.grad(tied(hidden, words), [embedding.weight])
    (theirs,) = torch.autograd.grad(full(hidden, words), [full.weight])
    torch.testing.assert_close(ours[1:], theirs)
    assert not ours[0].any()
    assert [name for name, _ in tied.named_parameters()] == ["bias"]


def test_parameters_keep_the_order_in_which_checkpoints_have_stored_their_optimizer_states() -> None:
    assert [name for name, _ in FullSoftmax(11, 4).named_parameters()] == ["weight", "bias"]
