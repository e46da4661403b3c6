"""Training in bfloat16 with products of tiles equals float32 within the rounding of the products.

``emulated`` computes the tiles in plain C and runs everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from elmokit.engine.instruction_sets import available_sets
from elmokit.engine.library import Library
from elmokit.engine.precision import VARIABLE
from elmokit.network import backends
from elmokit.network.char_cnn import CharCNN, Highway
from elmokit.network.lstm_module import LSTMState, ProjectedLSTM
from elmokit.network.native_training import softmax_loss, window_backward, window_forward
from elmokit.network.operators import takes_tiles
from elmokit.network.softmax_losses import draw_sample, sampled_softmax_loss
from elmokit.network.softmax_module import FullSoftmax
from elmokit.network.tile_layers import TileLinear, dropout
from tests.helpers.instruction_sets import build, one_per_set

# Rounding moves each factor by up to 2^-9 of itself; many such errors, of random signs, meet in a gradient.
NEAR, NEAR_GRADIENT = 0.005, 0.02


@pytest.fixture(params=one_per_set("amx", "avx512-bf16", "emulated"))
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    library = build(request.param)
    monkeypatch.setattr(backends, "native_library", lambda: library)
    return library


def check(
    compute: Callable[[], Tensor], wanted: Sequence[Tensor], near: float = NEAR, near_gradient: float = NEAR_GRADIENT
) -> None:
    """Compare a function in bfloat16 with itself in float32, in values and gradients."""
    exact = compute()
    assert exact.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        rounded = compute()
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).norm() < near * exact.norm()
    upstream = torch.randn(exact.shape, generator=torch.Generator().manual_seed(1))
    expected = torch.autograd.grad((exact * upstream).sum(), wanted)
    for ours, theirs in zip(torch.autograd.grad((rounded * upstream).sum(), wanted), expected, strict=True):
        assert (ours - theirs).norm() <= near_gradient * theirs.norm()


def window(n_rows: int, n_steps: int, sizes: tuple[int, int, int], clips: tuple[float | None, float | None]) -> tuple:
    torch.manual_seed(n_rows)
    layer = ProjectedLSTM(*sizes, *clips)
    layer.reset_parameters()
    inputs = torch.randn(n_rows, n_steps, sizes[0], requires_grad=True)
    state = LSTMState(0.3 * torch.randn(n_rows, sizes[2]), 0.3 * torch.randn(n_rows, sizes[1]))
    return layer, inputs, state


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("clips", [(None, None), (0.5, 0.3), (3.0, 3.0)])
@pytest.mark.parametrize(
    ("n_rows", "n_steps", "sizes"), [(3, 7, (8, 40, 16)), (33, 2, (70, 100, 50)), (32, 3, (64, 96, 32))]
)
def test_a_window_equals_float32_within_the_rounding_of_products(
    n_rows: int, n_steps: int, sizes: tuple[int, int, int], clips: tuple[float | None, float | None]
) -> None:
    layer, inputs, state = window(n_rows, n_steps, sizes, clips)
    # A number next to its bound is clipped in one precision only, and then has a gradient in the other.
    check(lambda: layer(inputs, state)[0], [inputs, *layer.parameters()], near_gradient=0.05 if clips[0] else 0.02)
    exact = layer(inputs, state)[1]
    with torch.autocast("cpu", torch.bfloat16):
        after = layer(inputs, state)[1]
    assert not after.hidden.requires_grad
    for ours, theirs in zip(after, exact, strict=True):
        torch.testing.assert_close(ours, theirs.detach(), atol=0.01, rtol=0)


def test_a_window_with_two_threads_has_the_bits_of_one(tiles: Library) -> None:
    layer, inputs, state = window(40, 3, (30, 70, 33), (3.0, 3.0))
    weights = (layer.weight, layer.bias, layer.projection)
    arguments = [tensor.detach().contiguous() for tensor in (inputs, *weights, *state)]
    results = []
    before = torch.get_num_threads()
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        outputs, cell, kept = window_forward(tiles, *arguments, 3.0, 3.0)
        gradients = window_backward(tiles, outputs, arguments[0], state.hidden, outputs, kept, 70, 3.0, 3.0)
        results.append((outputs, cell, *gradients))
    torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


@pytest.mark.usefixtures("tiles")
def test_a_number_that_is_not_one_reaches_the_outputs() -> None:
    layer, inputs, state = window(2, 3, (8, 40, 16), (3.0, 3.0))
    inputs = inputs.detach().index_put((torch.tensor(1), torch.tensor(1), torch.tensor(0)), torch.tensor(torch.nan))
    with torch.autocast("cpu", torch.bfloat16):
        outputs, after = layer(inputs, state)
    assert outputs[1, 1:].isnan().all()
    assert after.cell[1].isnan().all()
    assert outputs[0].isfinite().all()


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize(("n_rows", "n_inputs", "n_outputs"), [(1, 1, 1), (70, 40, 33), (64, 160, 96)])
def test_a_linear_layer_equals_float32_within_the_rounding_of_products(
    n_rows: int, n_inputs: int, n_outputs: int
) -> None:
    torch.manual_seed(0)
    layer = TileLinear(n_inputs, n_outputs)
    inputs = torch.randn(n_rows, n_inputs, requires_grad=True)
    check(lambda: layer(inputs), [inputs, layer.weight, layer.bias])


@pytest.mark.usefixtures("tiles")
def test_a_highway_equals_float32_within_the_rounding_of_products() -> None:
    torch.manual_seed(0)
    highway = Highway(75)
    highway.reset_parameters()
    inputs = torch.randn(45, 75, requires_grad=True)
    # Some sums next to zero change their sign, and with it whether the ReLU passes their gradient.
    check(lambda: highway(inputs), [inputs, *highway.parameters()], near_gradient=0.1)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("filters", [((1, 8), (2, 16), (3, 40)), ((7, 33),)])
def test_convolutions_by_table_equal_float32(filters: tuple[tuple[int, int], ...]) -> None:
    torch.manual_seed(0)
    n_features = sum(count for _, count in filters)
    cnn = CharCNN(261, 16, filters, "tanh", n_highway=0, output_dim=n_features)
    cnn.reset_parameters()
    for convolution in cnn.convolutions:
        torch.nn.init.normal_(convolution.bias)
    char_ids = torch.randint(1, 262, (20, 12))
    char_ids[:15, 5:] = 261
    char_ids[3] = 7
    char_ids[4] = 0
    # Nothing is rounded: only the order of the sums differs.
    exact = cnn(char_ids)
    with torch.autocast("cpu", torch.bfloat16):
        by_table = cnn(char_ids)
    torch.testing.assert_close(by_table, exact, atol=1e-6, rtol=0)
    upstream = torch.randn_like(exact)
    expected = torch.autograd.grad((exact * upstream).sum(), [*cnn.parameters()])
    found = torch.autograd.grad((by_table * upstream).sum(), [*cnn.parameters()])
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert not found[0][0].any()


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize(
    ("n_rows", "dim", "n_words", "n_samples"), [(70, 20, 500, 100), (33, 33, 50, 50), (200, 40, 300, 33)]
)
def test_a_sampled_softmax_equals_float32_within_the_rounding_of_products(
    n_rows: int, dim: int, n_words: int, n_samples: int
) -> None:
    softmax, hidden, word_ids = softmax_and_rows(n_rows, dim, n_words)
    sample = draw_sample(n_samples, n_words)
    check(lambda: sampled_softmax_loss(softmax, hidden, word_ids, sample), [hidden, softmax.weight, softmax.bias], 1e-3)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize(("n_rows", "dim", "n_words"), [(1, 1, 2), (70, 20, 100), (200, 33, 333)])
def test_a_full_softmax_equals_float32_within_the_rounding_of_products(n_rows: int, dim: int, n_words: int) -> None:
    softmax, hidden, word_ids = softmax_and_rows(n_rows, dim, n_words)
    check(lambda: softmax(hidden, word_ids), [hidden, softmax.weight, softmax.bias], 1e-3)


def test_positions_of_a_softmax_in_chunks_sum_to_the_same_gradient(tiles: Library) -> None:
    if tiles.instructions == "emulated" and {"amx", "avx512-bf16"}.intersection(available_sets()):
        pytest.skip("tiles of this processor try it in a hundredth of the time")
    # So many words that the probabilities of only two blocks of 32 positions are kept at a time.
    softmax, hidden, word_ids = softmax_and_rows(65, 2, 200_000)
    own = (hidden * softmax.weight[word_ids]).sum(dim=1)
    arguments = [tensor.detach() for tensor in (hidden, softmax.weight, softmax.bias, own)]
    _, together = softmax_loss(tiles, *arguments, word_ids)
    sums = torch.zeros_like(arguments[1])
    for start in range(0, 65, 32):
        here = slice(start, start + 32)
        part = arguments[0][here].contiguous(), *arguments[1:3], arguments[3][here].contiguous()
        _, gradients = softmax_loss(tiles, *part, word_ids[here].contiguous())
        sums += gradients[1]
    torch.testing.assert_close(together[1], sums, atol=1e-6, rtol=1e-4)


def softmax_and_rows(n_rows: int, dim: int, n_words: int) -> tuple[FullSoftmax, Tensor, Tensor]:
    torch.manual_seed(0)
    softmax = FullSoftmax(n_words, dim)
    softmax.reset_parameters()
    torch.nn.init.normal_(softmax.bias)
    return softmax, torch.randn(n_rows, dim, requires_grad=True), torch.randint(0, n_words, (n_rows,))


@pytest.mark.usefixtures("tiles")
def test_tiles_are_used_only_where_bfloat16_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.zeros(1)
    assert not takes_tiles(tensor)
    with torch.autocast("cpu", torch.bfloat16):
        assert takes_tiles(tensor)
        assert not takes_tiles(tensor.double())
        monkeypatch.setenv(VARIABLE, "reference")
        assert not takes_tiles(tensor)
    with torch.autocast("cpu", torch.float16):
        assert not takes_tiles(tensor)


@pytest.mark.usefixtures("tiles")
def test_dropout_keeps_the_share_and_the_sum_it_should_and_repeats_with_the_seed() -> None:
    inputs = torch.ones(300, 1001, requires_grad=True)
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = dropout(inputs, 0.25, training=True)
        results.append(outputs)
    assert torch.equal(*results)
    with torch.autocast("cpu", torch.bfloat16):
        other = dropout(inputs, 0.25, training=True)
        assert torch.equal(dropout(inputs, 0.25, training=False), inputs)
    kept, kept_later = outputs > 0, other > 0
    torch.testing.assert_close(outputs, kept * torch.tensor(4 / 3))
    # Each is within five standard deviations: zeros are independent of the column, of their neighbors and of the seed.
    for share, expected in (
        (kept, 0.75),
        (kept[:, 0], 0.75),
        (kept[0], 0.75),
        (kept[:, 1:] & kept[:, :-1], 0.75**2),
        (kept[1:] & kept[:-1], 0.75**2),
        (kept & kept_later, 0.75**2),
    ):
        assert abs(float(share.float().mean()) - expected) < 5 * (0.25 / share.numel()) ** 0.5
    (gradient,) = torch.autograd.grad(outputs.sum(), inputs)
    assert torch.equal(gradient, outputs)
