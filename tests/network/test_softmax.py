from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from elmokit.engine.precision import VARIABLE
from elmokit.engine.softmax import ROWS_AT_ONCE, SoftmaxConfig, WordSoftmax
from elmokit.errors import ConfigError
from elmokit.network.softmax import AdaptiveSoftmax, FullSoftmax, TiedSoftmax
from tests.helpers.instruction_sets import machine_library


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


@pytest.mark.parametrize("shrink", [4.0, 1e200, float("inf")])
def test_tails_that_have_no_dimension_left_are_refused(shrink: float) -> None:
    SoftmaxConfig("adaptive", (5, 8), shrink=4.0).check_sizes(12, 16, None)
    with pytest.raises(ConfigError, match=r"times narrower: nothing is left .* of 15 dimensions"):
        SoftmaxConfig("adaptive", (5, 8), shrink=shrink).check_sizes(12, 15, None)


def test_an_adaptive_softmax_is_a_distribution_and_its_surprisals_average_to_its_loss() -> None:
    layer = AdaptiveSoftmax(20, 8, [4, 10], 2.0)
    layer.reset_parameters(torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    hidden, words = torch.randn(ROWS_AT_ONCE + 9, 8), torch.randint(20, (ROWS_AT_ONCE + 9,))
    nats = layer.nats(hidden, words)
    torch.testing.assert_close(nats.mean(), layer(hidden, words).detach())
    torch.testing.assert_close(layer.scores(hidden).exp().sum(dim=1), torch.ones(len(hidden)))
    torch.testing.assert_close(-layer.scores(hidden).gather(1, words[:, None])[:, 0], nats)
    assert layer.stages.tail[1][0].out_features == 2  # 8 / 2 / 2


def test_the_compiled_surprisals_of_an_adaptive_softmax_equal_the_plain_ones_with_the_same_bits_in_any_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine_library()
    layer = AdaptiveSoftmax(1700, 24, [40, 300], 2.0)
    layer.reset_parameters(torch.Generator().manual_seed(0))
    arrays = {name: tensor.numpy() for name, tensor in layer.state_dict().items()}
    softmax = WordSoftmax(SoftmaxConfig("adaptive", (40, 300), shrink=2.0), arrays, 1700)
    numbers = np.random.default_rng(0)
    hidden = numbers.standard_normal((300, 24), np.float32)
    words = np.concatenate([[0, 39, 40, 299, 300, 1699], numbers.integers(0, 1700, 294)])
    nats = softmax.nats(hidden, words)
    one_by_one = [softmax.nats(hidden[row : row + 1], words[row : row + 1]) for row in range(len(words))]
    assert np.array_equal(np.concatenate(one_by_one), nats)
    monkeypatch.setenv(VARIABLE, "reference")
    np.testing.assert_allclose(softmax.nats(hidden, words), nats, atol=1e-5)
    monkeypatch.delenv(VARIABLE)
    for wrong in (-1, 1700):
        with pytest.raises(IndexError, match="from 0 to 1699"):
            softmax.nats(hidden[:1], np.array([wrong]))
