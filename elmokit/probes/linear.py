"""A linear softmax classifier over one frozen layer, a mean of layers, or a learned mix of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.errors import ConfigError
from elmokit.nn.scalar_mix import ScalarMix

READ_ROWS = 4096
MIN_STEPS = 500  # a handful of tokens has few batches in an epoch, and is to be learnt all the same

LayerRows = Sequence[NDArray[Any]]
"""Per layer ``(tokens, dim)``, in memory or mapped from disk."""


@dataclass(frozen=True)
class LinearSettings:
    """How the classifier is trained: Adam, the rate falling to 0 along a cosine."""

    epochs: int = 5
    batch_size: int = 1024
    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise ConfigError(f"epochs is {self.epochs} and batch_size {self.batch_size}; both must be at least 1.")
        if not self.learning_rate > 0:
            raise ConfigError(f"learning_rate is {self.learning_rate}; it must be above 0.")


class LinearProbe(nn.Module):
    """Scores of classes from a mix of layers, each feature first brought to mean 0 and deviation 1.

    Those means and deviations are of the plain mean of the layers over the training tokens; the scaling changes
    nothing that a linear classifier can say, only how fast it is learnt.
    """

    def __init__(self, center: Tensor, scale: Tensor, n_layers: int, n_classes: int, learn_mix: bool) -> None:
        super().__init__()
        self.mix = ScalarMix(n_layers).requires_grad_(learn_mix)
        self.out = nn.Linear(len(center), n_classes)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.center, self.scale = center, scale

    def forward(self, rows: Tensor) -> Tensor:
        """``(layers, batch, dim)`` to scores ``(batch, classes)``."""
        mixed = self.mix(rows[:, None])[0]
        scores: Tensor = self.out((mixed - self.center) / self.scale)
        return scores


def train_linear(
    layers: LayerRows,
    labels: NDArray[np.int64],
    n_classes: int,
    learn_mix: bool = False,
    seed: int = 0,
    settings: LinearSettings = LinearSettings(),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> LinearProbe:
    """Train on tokens whose label is not negative.

    Args:
        layers: one layer, or several to average or mix.
        labels: ``(tokens,)``, classes from 0; negative where there is none.
        learn_mix: learn the weights of the layers; else they are averaged.
        progress: called now and then with the steps done and their number.
    """
    places = np.flatnonzero(labels >= 0)
    center, scale = _mean_and_deviation(layers, places)
    probe = LinearProbe(center, scale, len(layers), n_classes, learn_mix)
    n_per_epoch = -(-len(places) // settings.batch_size)
    n_steps = max(settings.epochs * n_per_epoch, MIN_STEPS)
    learnt = [parameter for parameter in probe.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(learnt, lr=settings.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_steps)
    shuffle = np.random.default_rng(seed)
    order = places[:0]
    progress(0, n_steps)
    for step in range(n_steps):
        if not len(order):
            order = shuffle.permutation(places)
        chosen, order = np.sort(order[: settings.batch_size]), order[settings.batch_size :]
        loss = nn.functional.cross_entropy(probe(_rows(layers, chosen)), torch.from_numpy(labels[chosen]))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if step % 100 == 99 or step + 1 == n_steps:
            progress(step + 1, n_steps)
    return probe


@torch.no_grad()
def predict_linear(probe: LinearProbe, layers: LayerRows) -> NDArray[np.int64]:
    """The best class of every token: ``(tokens,)``."""
    n_tokens = len(layers[0])
    found = [
        probe(_rows(layers, slice(start, start + READ_ROWS))).argmax(dim=1).numpy()
        for start in range(0, n_tokens, READ_ROWS)
    ]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


def _rows(layers: LayerRows, chosen: NDArray[np.int64] | slice) -> Tensor:
    """``(layers, chosen, dim)``"""
    return torch.from_numpy(np.stack([np.asarray(layer[chosen], dtype=np.float32) for layer in layers]))


def _mean_and_deviation(layers: LayerRows, places: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Of each feature of the mean of the layers, over the tokens at the places: ``(dim,)`` twice."""
    total = square = torch.zeros(layers[0].shape[1], dtype=torch.float64)
    for start in range(0, len(places), READ_ROWS):
        rows = _rows(layers, places[start : start + READ_ROWS]).double().mean(dim=0)
        total, square = total + rows.sum(dim=0), square + (rows**2).sum(dim=0)
    mean = total / len(places)
    deviation = (square / len(places) - mean**2).clamp(min=0).sqrt()
    return mean.float(), torch.where(deviation < 1e-6, 1.0, deviation).float()
