"""Dropout with one mask per sequence."""

from __future__ import annotations

import torch

from elmokit.tasks.nn.layers import VariationalDropout


def test_a_feature_is_dropped_at_every_step_or_at_none() -> None:
    torch.manual_seed(0)
    dropped = VariationalDropout(0.5)(torch.ones(4, 6, 50))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert (dropped == dropped[:, :1]).all()
    assert not (dropped == dropped[:1]).all()  # rows are dropped each for itself


def test_in_evaluation_nothing_is_dropped() -> None:
    inputs = torch.randn(2, 3, 4)
    assert VariationalDropout(0.9).eval()(inputs) is inputs
