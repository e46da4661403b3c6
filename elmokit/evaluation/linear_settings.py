"""How to train the linear classifier of a probe."""

from __future__ import annotations

from dataclasses import dataclass

from elmokit.config import check_at_least, check_positive


@dataclass(frozen=True)
class LinearSettings:
    """How to train the classifier, with Adam and a learning rate that falls to 0 along a cosine."""

    epochs: int = 5
    batch_size: int = 1024
    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        check_at_least("epochs", self.epochs, 1)
        check_at_least("batch_size", self.batch_size, 1)
        check_positive("learning_rate", self.learning_rate)
