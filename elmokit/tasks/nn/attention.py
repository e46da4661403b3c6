"""Softmax, attention and pooling that look at real tokens only.

A row without any real token gives zeros, not NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor


def masked_softmax(scores: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Softmax over the places where ``mask`` is True; zero elsewhere.

    Args:
        scores: any shape.
        mask: bool, broadcast to the scores.
    """
    mask = mask.expand_as(scores)
    shifted = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return shifted.softmax(dim=dim).masked_fill(~mask, 0.0)


def masked_log_softmax(scores: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Log-softmax over the places where ``mask`` is True; the lowest number of the type elsewhere."""
    lowest = torch.finfo(scores.dtype).min
    mask = mask.expand_as(scores)
    return scores.masked_fill(~mask, lowest).log_softmax(dim=dim).masked_fill(~mask, lowest)


def attend(scores: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Weighted sums of values.

    Args:
        scores: ``(batch, queries, keys)``.
        values: ``(batch, keys, dim)``.
        mask: ``(batch, keys)`` bool, True on a real key.

    Returns:
        ``(batch, queries, dim)``
    """
    return masked_softmax(scores, mask[:, None, :]) @ values


def masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """The maximum over real steps: ``(batch, time, dim)`` and ``(batch, time)`` to ``(batch, dim)``."""
    lowest = torch.finfo(values.dtype).min
    highest = values.masked_fill(~mask[..., None], lowest).amax(dim=1)
    return highest.masked_fill(~mask.any(dim=1, keepdim=True), 0.0)


def masked_min(values: Tensor, mask: Tensor) -> Tensor:
    """The minimum over real steps; shapes as in ``masked_max``."""
    return -masked_max(-values, mask)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean over real steps; shapes as in ``masked_max``."""
    n_real = mask.sum(dim=1, keepdim=True).clamp(min=1)
    return (values * mask[..., None]).sum(dim=1) / n_real
