"""The text of a training: its files, its held-out sentences and its vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elmokit.errors import TextError
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.config import TrainingConfig


@dataclass(frozen=True)
class TrainingCorpus:
    """The text of a training."""

    shards: Sequence[Path]
    """Text files with one tokenized sentence per line."""
    held_out: Sequence[Sequence[str]]
    """Sentences to evaluate on."""
    vocabulary: Vocabulary
    """The words that the softmax predicts."""
    n_sentences: int
    n_tokens: int
    """In all shards, sentence boundaries not counted."""

    @property
    def n_predictions(self) -> int:
        """Predictions of one epoch per direction: a sentence of n tokens has n + 1."""
        return self.n_tokens + self.n_sentences

    def check(self, config: TrainingConfig, n_processes: int) -> None:
        """Refuse a corpus that is too small for the settings, before any work is done.

        Raises:
            TextError: There is no held-out sentence; there are fewer sentences than rows in a batch; or an epoch is
                shorter than one window.
        """
        if not self.held_out:
            raise TextError("There is no held-out sentence to evaluate on.")
        if not self.n_sentences:
            raise TextError(f"There is no sentence in {', '.join(map(str, self.shards))}: nothing to train on.")
        n_rows = config.batch_size * n_processes
        if self.n_sentences < n_rows:
            raise TextError(
                f"The corpus has {self.n_sentences:,} sentences, but a batch reads {n_rows:,} in parallel. Lower "
                f"batch_size to at most {max(1, self.n_sentences // n_processes):,}, or add text."
            )
        if self.n_predictions < n_rows * config.n_steps:
            raise TextError(
                f"An epoch has {self.n_predictions:,} predictions, fewer than one window of {n_rows} x "
                f"{config.n_steps}. Lower batch_size or n_steps, or add text."
            )
