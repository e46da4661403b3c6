from __future__ import annotations

import numpy as np
import pytest
import torch

from elmokit.engine.layer_selection import FixedMix
from elmokit.network.scalar_mix import ScalarMix


def test_scalar_mix_is_gamma_times_the_softmax_weighted_sum() -> None:
    mix = ScalarMix(3)
    with torch.no_grad():
        mix.weight.copy_(torch.tensor([0.1, 0.3, 0.5]))
        mix.gamma.fill_(1.1)
    layers = torch.randn(3, 2, 4, 5)
    weights = np.exp([0.1, 0.3, 0.5]) / np.exp([0.1, 0.3, 0.5]).sum()
    expected = 1.1 * sum(w * layer.numpy() for w, layer in zip(weights, layers, strict=True))
    np.testing.assert_allclose(mix(layers).detach().numpy(), expected, atol=1e-6)


def test_layer_norm_is_over_all_real_positions_of_the_batch() -> None:
    mix = ScalarMix(2, layer_norm=True)
    layers = 3 * torch.randn(2, 3, 4, 5) + 1
    mask = torch.tensor([[True] * 4, [True] * 2 + [False] * 2, [True] + [False] * 3])
    normalized = []
    for layer in layers.numpy():
        real = layer[mask.numpy()]
        normalized.append((layer - real.mean()) / np.sqrt(real.var() + 1e-12))
    np.testing.assert_allclose(mix(layers, mask).detach().numpy(), np.mean(normalized, axis=0), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_layer_norm_in_another_dtype_is_that_in_float32(dtype: torch.dtype) -> None:
    layers = torch.randn(2, 30, 20, 128)  # more numbers in a layer than float16 can count
    layers[:, 0] = 0
    expected = ScalarMix(2, layer_norm=True)(layers)
    mix = ScalarMix(2, layer_norm=True).to(dtype)
    torch.testing.assert_close(mix(layers.to(dtype)).float(), expected.detach(), atol=0.02, rtol=0.02)
    assert not mix(torch.zeros(2, 1, 2, 8, dtype=dtype)).any()  # as in a batch of empty sentences


def test_chosen_layers_are_mixed_alone() -> None:
    layers = torch.randn(4, 2, 3, 5)
    mix = ScalarMix(4, chosen=[1, 3])
    with torch.no_grad():
        mix.weight.copy_(torch.tensor([0.5, -1.0]))
        mix.gamma.fill_(2.0)
    shares = mix.weight.softmax(0)
    torch.testing.assert_close(mix(layers), 2 * (shares[0] * layers[1] + shares[1] * layers[3]))


def test_one_layer_or_a_fixed_mean_learns_gamma_alone() -> None:
    layers = torch.randn(3, 1, 2, 4)
    top, mean = ScalarMix(3, chosen=[2]), ScalarMix(3, learn_weights=False)
    torch.testing.assert_close(top(layers), layers[2])
    torch.testing.assert_close(mean(layers), layers.mean(0))
    for mix in (top, mean):
        mix(layers).sum().backward()
        assert mix.weight.grad is None
        assert mix.gamma.grad is not None
        assert mix.penalty() == 0


def test_the_penalty_is_on_the_raw_weights_and_leaves_gamma_out() -> None:
    mix = ScalarMix(3)
    assert mix.penalty() == 0
    with torch.no_grad():
        mix.weight.copy_(torch.tensor([1.0, -2.0, 3.0]))
        mix.gamma.fill_(9.0)
    assert mix.penalty().item() == 14.0
    mix.penalty().backward()
    assert mix.weight.grad.tolist() == [2.0, -4.0, 6.0]


def test_the_mix_of_a_published_model_is_the_same_without_pytorch() -> None:
    mix = ScalarMix(3)
    with torch.no_grad():
        mix.weight.copy_(torch.tensor([0.1, -0.3, 0.5]))
        mix.gamma.fill_(1.1)
    sentences = [np.random.default_rng(n).standard_normal((3, n, 5), np.float32) for n in (4, 0, 2)]
    for sentence, found in zip(sentences, FixedMix([0.1, -0.3, 0.5], 1.1)(sentences), strict=True):
        expected = mix(torch.from_numpy(sentence)[:, None])[0].detach().numpy()
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert found.dtype == np.float32
