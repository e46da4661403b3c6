"""Masked softmax, attention and pooling equal their plain forms on the real tokens alone."""

from __future__ import annotations

import torch

from elmokit.tasks.nn.layers import attend, masked_max, masked_mean, masked_min, masked_softmax

VALUES = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)) - 5  # all maxima below zero
MASK = torch.tensor([[True, True, True, False], [False] * 4])


def test_softmax_ignores_padding() -> None:
    scores = torch.randn(2, 4)
    found = masked_softmax(scores, MASK)
    torch.testing.assert_close(found[0, :3], scores[0, :3].softmax(0))
    assert found[0, 3] == 0
    assert not found[1].any()


def test_attention_ignores_padding() -> None:
    scores = torch.randn(2, 5, 4)
    found = attend(scores, VALUES, MASK)
    torch.testing.assert_close(found[0], scores[0, :, :3].softmax(-1) @ VALUES[0, :3])
    assert not found[1].any()


def test_pooling_ignores_padding() -> None:
    for pool, plain in ((masked_max, torch.amax), (masked_min, torch.amin), (masked_mean, torch.mean)):
        found = pool(VALUES, MASK)
        torch.testing.assert_close(found[0], plain(VALUES[0, :3], dim=0))
        assert not found[1].any()
