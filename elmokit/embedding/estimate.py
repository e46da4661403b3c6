"""Estimate the size of an output and the time it takes, before computing it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from elmokit.embedding.batch_embedder import BatchEmbedder
from elmokit.embedding.outputs.writer import WriteProgress, partial_folder
from elmokit.embedding.reading import CorpusSentence, SentenceCounts
from elmokit.errors import OutputError
from elmokit.storage.progress import count_of, format_duration
from elmokit.storage.timing import seconds_per_unit

N_TRIALS = 5
TRIAL_TOKENS = 1000
"""Tokens of each trial at most."""
MAX_TRIAL_SHARE = 0.05
"""All trials together embed at most this share of the text."""
MIN_TOKENS_FOR_TRIAL = 20_000  # shorter texts take seconds


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
            f"{output} will take {size}, but its disk has {format_bytes(free)} left. Store less (--dtype float16, "
            "--top), or pass --force to start anyway."
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

    To measure the speed, the first tokens of ``sentences`` are embedded, unless there is little to do.
    """
    n_left = counts.n_tokens - done.n_tokens
    line = f"{count_of(counts.n_sentences, 'sentence')}, {count_of(counts.n_tokens, 'token')}"
    if done.n_tokens:
        line += f", {done.n_tokens:,} already done"
    line += f"; {output} will take {size}"
    if n_left >= MIN_TOKENS_FOR_TRIAL:
        seconds = _seconds_per_token(embedder, n_left, sentences)
        line += f" and about {format_duration(n_left * seconds)} ({1 / seconds:,.0f} tokens/s)"
    return f"{line}; computed in {embedder.elmo.model.network.computation()}"


def _seconds_per_token(embedder: BatchEmbedder, n_left: int, sentences: Iterable[CorpusSentence]) -> float:
    elmo, layers = embedder.elmo, embedder.layers
    trials = list(_trials(sentences, min(TRIAL_TOKENS, int(n_left * MAX_TRIAL_SHARE) // N_TRIALS)))

    def run(trial: list[list[str]]) -> int:
        elmo.embed(trial, layers=layers, batch_tokens=embedder.batch_tokens)
        return sum(map(len, trial))

    run(trials[0][:1])  # the first call compiles and packs; that happens only once
    return seconds_per_unit(partial(run, trial) for trial in trials)


def _trials(sentences: Iterable[CorpusSentence], n_tokens: int) -> Iterator[list[list[str]]]:
    """Cut trials of some tokens from the start of a text, which may be shorter."""
    trial: list[list[str]] = []
    n_trials, n_left = 0, n_tokens
    for sentence in sentences:
        tokens = sentence.tokens[:n_left]
        if tokens:
            trial.append(tokens)
            n_left -= len(tokens)
        if not n_left:
            yield trial
            trial, n_trials, n_left = [], n_trials + 1, n_tokens
        if n_trials == N_TRIALS:
            return
    if trial:
        yield trial


def format_bytes(n: float) -> str:
    """Return a size such as "1.6 GB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "bytes" or n >= 100 else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:,.1f} TB"
