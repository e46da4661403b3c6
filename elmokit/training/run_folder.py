"""The folder of a run: what it was begun with, its log, and what a kill left behind."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmokit.config import config_from, config_to
from elmokit.errors import ConfigError, ModelError, TextError, TrainingError
from elmokit.io.atomic import atomic_write
from elmokit.io.lock import file_lock
from elmokit.text.vocabulary import Vocabulary
from elmokit.training.config import MAY_CHANGE, TrainingConfig

SETTINGS, LOG, VOCABULARY, LOCK = "settings.json", "metrics.jsonl", "vocab.txt", "lock"


@dataclass(frozen=True)
class Corpus:
    """The text of a run."""

    shards: Sequence[Path]
    """One tokenised sentence per line."""
    held_out: Sequence[Sequence[str]]
    """Sentences to judge by."""
    vocabulary: Vocabulary
    """The words that the softmax predicts."""
    n_sentences: int
    n_tokens: int
    """Of the shards, boundaries not counted."""

    @property
    def n_predictions(self) -> int:
        """Of one pass, per direction: a sentence of n tokens holds n + 1."""
        return self.n_tokens + self.n_sentences


@dataclass(frozen=True)
class Settings:
    """What a run was begun with, as ``settings.json`` says."""

    config: TrainingConfig
    shards: tuple[tuple[str, int], ...]
    """Each shard's path and size in bytes."""
    n_sentences: int
    n_tokens: int
    held_out_crc32: int
    vocabulary_crc32: int
    n_predictions: int
    """What the budget came to when it was last set."""


def open_settings(run: Path) -> Settings:
    """What stands in a run's folder.

    Raises:
        TrainingError: there is no run, or its settings are damaged.
    """
    path = run / SETTINGS
    try:
        return config_from(Settings, json.loads(path.read_text(encoding="utf-8")), str(path))
    except FileNotFoundError:
        raise TrainingError(f"{run} holds no run ({SETTINGS} is missing). Begin one with --out {run}.") from None
    except (ValueError, ConfigError, ModelError) as error:
        raise TrainingError(f"{path} is damaged ({error}). Start a new run.") from None


def save_settings(run: Path, settings: Settings) -> None:
    """Write ``settings.json``."""
    with atomic_write(run / SETTINGS, overwrite=True) as beside:
        beside.write_text(json.dumps(config_to(settings), indent=2) + "\n", encoding="utf-8")


def settings_of(config: TrainingConfig, corpus: Corpus, n_predictions: int) -> Settings:
    """The settings of a run that begins now."""
    return Settings(
        config,
        tuple((str(shard.resolve()), shard.stat().st_size) for shard in corpus.shards),
        corpus.n_sentences,
        corpus.n_tokens,
        _crc32("\n".join(" ".join(sentence) for sentence in corpus.held_out)),
        _crc32(corpus.vocabulary.to_text()),
        n_predictions,
    )


def refuse_other_settings(run: Path, earlier: Settings, now: Settings) -> None:
    """A run goes on with its own settings and text; the same shards may stand in another folder by now.

    Raises:
        TrainingError: something else changed; what was and what is.
    """
    was, is_now = config_to(earlier), config_to(now)
    was |= was.pop("config")
    is_now |= is_now.pop("config")
    for side in (was, is_now):
        side["shards"] = [[Path(name).name, size] for name, size in side["shards"]]
    may_change = {*MAY_CHANGE, "n_predictions"}
    changed = [name for name in is_now if name not in may_change and was[name] != is_now[name]]
    if changed:
        was_and_is = ", ".join(f"{name} was {was[name]!r} and is {is_now[name]!r}" for name in changed)
        raise TrainingError(
            f"{run} is a run with other settings: {was_and_is}. Resume with the same, or start a new run."
        )


def refuse_small_corpus(corpus: Corpus, config: TrainingConfig, n_processes: int) -> None:
    """Say before any work is done that a corpus cannot fill the windows.

    Raises:
        TextError: no held-out sentence; fewer sentences than rows; or a pass shorter than one window.
    """
    if not corpus.held_out:
        raise TextError("There is no held-out sentence: nothing to judge by.")
    if not corpus.n_sentences:
        raise TextError(f"There is no sentence in {', '.join(map(str, corpus.shards))}: nothing to train on.")
    n_rows = config.batch_size * n_processes
    if corpus.n_sentences < n_rows:
        raise TextError(
            f"The corpus holds {corpus.n_sentences:,} sentences and {n_rows:,} are read side by side. Lower batch_size "
            f"to at most {max(1, corpus.n_sentences // n_processes):,}, or give more text."
        )
    if corpus.n_predictions < n_rows * config.n_steps:
        raise TextError(
            f"A pass over the corpus holds {corpus.n_predictions:,} predictions, fewer than one window of {n_rows} x "
            f"{config.n_steps}. Lower batch_size or n_steps, or give more text."
        )


def run_lock(run: Path) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of a run's directory while a block runs.

    Raises:
        LockedError: Another process is training there.
    """
    return file_lock(
        run / LOCK, f"Another process is training in {run}. Wait until it is over, or choose another folder."
    )


def append_line(log: Path, content: dict[str, Any]) -> None:
    """One more line of the log."""
    with log.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(content) + "\n")


def _crc32(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "replace"))
