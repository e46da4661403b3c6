"""The run folder of a biLM training.

::

    settings.json           the settings and the text's fingerprint
    vocab.txt               the words of the softmax
    held-out.txt            the sentences to evaluate on
    old-text.txt            for fine-tuning: sentences of the old domain
    card.json               the model card, without results
    initial/                for fine-tuning: the model that training started from
    metrics.jsonl           one line for each logged step
    checkpoints/step-N/     the two newest checkpoints
    model/                  the best model so far, by held-out perplexity
    curves.png, curves.svg  training loss and held-out perplexity, drawn at the end
    lock                    held by the process that trains there
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmokit.config import from_dict, to_dict
from elmokit.errors import ConfigError, ModelError, TrainingError
from elmokit.training.config import MAY_CHANGE, TrainingConfig
from elmokit.training.corpus import TrainingCorpus
from elmokit.training.run_folder import check_settings, write_json

SETTINGS, LOG, VOCABULARY = "settings.json", "metrics.jsonl", "vocab.txt"


@dataclass(frozen=True)
class RunSettings:
    """What a run was started with: the content of ``settings.json``."""

    config: TrainingConfig
    shards: tuple[tuple[str, int], ...]
    """Each shard's path and size in bytes."""
    n_sentences: int
    n_tokens: int
    held_out_crc32: int
    vocabulary_crc32: int
    n_predictions: int
    """The length of the training, as it was last computed from epochs, tokens or hours."""

    @classmethod
    def of(cls, config: TrainingConfig, corpus: TrainingCorpus, n_predictions: int) -> RunSettings:
        """The settings of a run that starts now."""
        return cls(
            config,
            tuple((str(shard.resolve()), shard.stat().st_size) for shard in corpus.shards),
            corpus.n_sentences,
            corpus.n_tokens,
            _crc32("\n".join(" ".join(sentence) for sentence in corpus.held_out)),
            _crc32(corpus.vocabulary.to_text()),
            n_predictions,
        )

    @classmethod
    def open(cls, run: Path) -> RunSettings:
        """Read a run's settings.

        Raises:
            TrainingError: There is no run, or its settings are damaged.
        """
        path = run / SETTINGS
        try:
            return from_dict(cls, json.loads(path.read_text(encoding="utf-8")), str(path))
        except FileNotFoundError:
            raise TrainingError(f"{run} is not a run: it has no {SETTINGS}. Start one with --out {run}.") from None
        except (ValueError, ConfigError, ModelError) as error:
            raise TrainingError(f"{path} is damaged ({error}). Start a new run.") from None

    def save(self, run: Path) -> None:
        """Write ``settings.json``."""
        write_json(run / SETTINGS, to_dict(self))

    def check_resumes(self, run: Path, earlier: RunSettings) -> None:
        """Refuse to resume a run whose settings or text differ.

        Raises:
            TrainingError: Something differs that may not change.
        """
        check_settings(run, earlier._comparable(), self._comparable(), {*MAY_CHANGE, "n_predictions"})

    def _comparable(self) -> dict[str, Any]:
        table = to_dict(self)
        table |= table.pop("config")
        # The corpus may have moved to another directory: names and sizes identify its files.
        table["shards"] = [[Path(name).name, size] for name, size in table["shards"]]
        return table


def _crc32(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "replace"))
