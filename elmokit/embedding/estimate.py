"""Estimate the size of an output and the time it takes, before computing it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from elmokit.embedding.batch_embedder import BatchEmbedder
from elmokit.embedding.outputs.writer import WriteProgress, partial_folder
from elmokit.embedding.reading import CorpusSentence, SentenceCounts
from elmokit.errors import OutputError
from elmokit.storage.progress import format_duration

TRIAL_TOKENS = 1000
MIN_TOKENS_FOR_TRIAL = 20 * TRIAL_TOKENS  # shorter texts take seconds


class OutputSize(NamedTuple):
    """How many bytes an output takes on its disk."""

    final: int
    temporary: int = 0
    """What is needed besides until the output is complete."""

    def __str__(self) -> str:
        """Say it as in "1.6 GB (and 1.5 GB more until it is complete)"."""
        more = f" (and {format_bytes(self.temporary)} more until it is complete)" if self.temporary else ""
        return format_bytes(self.final) + more


def check_disk_space(output: str | Path, size: OutputSize, done: WriteProgress) -> None:
    """Raise an OutputError if the output, of which an earlier run has written a part, does not fit on its disk."""
    free = shutil.disk_usage(partial_folder(output)).free
    if sum(size) - done.data_end > free:
        raise OutputError(
            f"{output} will take {size}, but its disk has {format_bytes(free)} left. Free some space, store less "
            "(--dtype float16, --top or --average), or pass --force to start anyway."
        )


def describe_work(
    embedder: BatchEmbedder,
    output: str | Path,
    counts: SentenceCounts,
    done: WriteProgress,
    size: OutputSize,
    sentences: Iterable[CorpusSentence],
) -> str:
    """Say in one line how much there is to do, how large the output will be, how long it will take, in which precision.

    To measure the speed, the first thousand tokens of ``sentences`` are embedded, unless there is little to do.
    """
    n_left = counts.n_tokens - done.n_tokens
    line = f"{counts.n_sentences:,} sentences, {counts.n_tokens:,} tokens"
    if done.n_tokens:
        line += f", {done.n_tokens:,} already done"
    line += f"; {output} will take {size}"
    if n_left >= MIN_TOKENS_FOR_TRIAL:
        seconds = _seconds_per_token(embedder, _first_tokens(sentences))
        line += f" and about {format_duration(n_left * seconds)} ({1 / seconds:,.0f} tokens/s)"
    return f"{line}; computed in {embedder.elmo.model.network.computation()}"


def _seconds_per_token(embedder: BatchEmbedder, sentences: list[list[str]]) -> float:
    elmo, layers = embedder.elmo, embedder.layers
    elmo.embed(sentences[:1], layers=layers)  # the first call compiles and packs; that happens only once
    started = time.perf_counter()
    elmo.embed(sentences, layers=layers, batch_tokens=embedder.batch_tokens)
    return (time.perf_counter() - started) / sum(map(len, sentences))


def _first_tokens(sentences: Iterable[CorpusSentence]) -> list[list[str]]:
    taken: list[list[str]] = []
    n_left = TRIAL_TOKENS
    for sentence in sentences:
        taken.append(sentence.tokens[:n_left])
        n_left -= len(taken[-1])
        if not n_left:
            break
    return taken


def format_bytes(n: float) -> str:
    """Return a size such as "1.6 GB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "bytes" or n >= 100 else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:,.1f} TB"
