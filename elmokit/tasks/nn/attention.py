"""Softmax, attention and pooling that ignore padding.

A row without any real token gives zeros, not NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute the softmax over the last dimension where ``mask`` is True, with 0 elsewhere."""
    mask = mask.expand_as(scores)
    shifted = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return shifted.softmax(dim=-1).masked_fill(~mask, 0.0)


def attend(scores: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Return sums of the values, weighted by the softmax of the scores.

    Shapes: scores (batch, queries, keys), values (batch, keys, dim), mask (batch, keys); the result is (batch, queries,
    dim).
    """
    return masked_softmax(scores, mask[:, None, :]) @ values


def masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """Return the maximum over real tokens: ``(batch, time, dim)`` and ``(batch, time)`` to ``(batch, dim)``."""
    lowest = torch.finfo(values.dtype).min
    highest = values.masked_fill(~mask[..., None], lowest).amax(dim=1)
    return highest.masked_fill(~mask.any(dim=1, keepdim=True), 0.0)


def masked_min(values: Tensor, mask: Tensor) -> Tensor:
    """Return the minimum over real tokens, with shapes as in ``masked_max``."""
    return -masked_max(-values, mask)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over real tokens, with shapes as in ``masked_max``."""
    n_real = mask.sum(dim=1, keepdim=True).clamp(min=1)
    return (values * mask[..., None]).sum(dim=1) / n_real
