from __future__ import annotations

import numpy as np
import pytest
import torch

from elmokit.nn.scalar_mix import ScalarMix


def test_scalar_mix_starts_as_the_plain_mean() -> None:
    layers = torch.randn(3, 2, 4, 5)
    torch.testing.assert_close(ScalarMix(3)(layers), layers.mean(dim=0))


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
    normalised = []
    for layer in layers.numpy():
        real = layer[mask.numpy()]
        normalised.append((layer - real.mean()) / np.sqrt(real.var() + 1e-12))
    np.testing.assert_allclose(mix(layers, mask).detach().numpy(), np.mean(normalised, axis=0), atol=1e-5)


def test_scalar_mix_refuses_another_number_of_layers() -> None:
    with pytest.raises(ValueError, match="mixes 3 layers and was given 2"):
        ScalarMix(3)(torch.zeros(2, 1, 1, 1))
