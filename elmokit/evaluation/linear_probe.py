"""A linear softmax classifier on one frozen layer, on the mean of several layers, or on a learned mix of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.network.scalar_mix import ScalarMix
from elmokit.storage.progress import ProgressCallback

READ_ROWS = 4096
MIN_STEPS = 500  # a handful of tokens makes few batches per epoch, but should be learned all the same

LayerRows = Sequence[NDArray[Any]]
"""For each layer ``(tokens, dim)``, in memory or memory-mapped."""


class LinearProbe(nn.Module):
    """A linear classifier of a mix of layers, whose features are standardized to mean 0 and deviation 1.

    The mean and deviation are those of the average of the layers over the training tokens. Standardizing does not
    change what a linear classifier can express, only how fast it is trained.
    """

    def __init__(self, center: Tensor, scale: Tensor, n_layers: int, n_classes: int, learn_mix: bool) -> None:
        super().__init__()
        self.mix = ScalarMix(n_layers).requires_grad_(learn_mix)
        self.out = nn.Linear(len(center), n_classes)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.center, self.scale = center, scale

    def forward(self, rows: Tensor) -> Tensor:
        """Score the classes, ``(batch, classes)``, of vectors ``(layers, batch, dim)``."""
        mixed = self.mix(rows[:, None])[0]
        scores: Tensor = self.out((mixed - self.center) / self.scale)
        return scores


def train_linear(
    layers: LayerRows,
    labels: NDArray[np.int64],
    n_classes: int,
    learn_mix: bool = False,
    seed: int = 0,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    progress: ProgressCallback | None = None,
    stage: str = "train",
) -> LinearProbe:
    """Train a classifier on one layer, or on several that are averaged or, with ``learn_mix``, mixed.

    ``labels`` are ``(tokens,)``, classes from 0; tokens with a negative label are not used.
    """
    tokens = np.flatnonzero(labels >= 0)
    center, scale = _mean_and_deviation(layers, tokens)
    probe = LinearProbe(center, scale, len(layers), n_classes, learn_mix)
    n_per_epoch = -(-len(tokens) // batch_size)
    n_steps = max(epochs * n_per_epoch, MIN_STEPS)
    trained = [parameter for parameter in probe.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    shuffle = np.random.default_rng(seed)
    order = tokens[:0]
    if progress is not None:
        progress(stage, 0, n_steps)
    for step in range(n_steps):
        if not len(order):
            order = shuffle.permutation(tokens)
        chosen, order = np.sort(order[:batch_size]), order[batch_size:]
        loss = nn.functional.cross_entropy(probe(_rows(layers, chosen)), torch.from_numpy(labels[chosen]))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if progress is not None and (step % 100 == 99 or step + 1 == n_steps):
            progress(stage, step + 1, n_steps)
    return probe


@torch.no_grad()
def predict_linear(probe: LinearProbe, layers: LayerRows) -> NDArray[np.int64]:
    """Find the best class of every token, ``(tokens,)``."""
    n_tokens = len(layers[0])
    best = [
        probe(_rows(layers, slice(start, start + READ_ROWS))).argmax(dim=1).numpy()
        for start in range(0, n_tokens, READ_ROWS)
    ]
    return np.concatenate(best) if best else np.zeros(0, dtype=np.int64)


def _rows(layers: LayerRows, chosen: NDArray[np.int64] | slice) -> Tensor:
    """Read the chosen rows of every layer, ``(layers, chosen, dim)``."""
    return torch.from_numpy(np.stack([np.asarray(layer[chosen], dtype=np.float32) for layer in layers]))


def _mean_and_deviation(layers: LayerRows, tokens: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Compute the mean and deviation of each feature of the averaged layers over some tokens: ``(dim,)`` twice."""
    total = square = torch.zeros(layers[0].shape[1], dtype=torch.float64)
    for start in range(0, len(tokens), READ_ROWS):
        rows = _rows(layers, tokens[start : start + READ_ROWS]).double().mean(dim=0)
        total, square = total + rows.sum(dim=0), square + (rows**2).sum(dim=0)
    mean = total / len(tokens)
    deviation = (square / len(tokens) - mean**2).clamp(min=0).sqrt()
    return mean.float(), torch.where(deviation < 1e-6, 1.0, deviation).float()
