"""Maxout layers."""

from __future__ import annotations

import torch

from elmokit.tasks.nn.layers import Maxout


def test_maxout_takes_each_unit_s_largest_map() -> None:
    layer = Maxout(3, 2, pool=4)
    inputs = torch.randn(5, 3)
    maps = inputs @ layer.linear.weight.T + layer.linear.bias  # (5, 8)
    expected = torch.stack([maps[:, :4].amax(1), maps[:, 4:].amax(1)], dim=1)
    torch.testing.assert_close(layer(inputs), expected)
