"""Estimate the size of an output and the time it takes, before computing it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from elmokit.embedding.elmo import Elmo
from elmokit.embedding.outputs.writer import WriteProgress, partial_folder
from elmokit.embedding.reading import CorpusSentence, SentenceCounts
from elmokit.engine.layer_selection import Layers
from elmokit.errors import OutputError
from elmokit.storage.progress import format_duration

TRIAL_TOKENS = 1000
MIN_TOKENS_FOR_TRIAL = 20 * TRIAL_TOKENS  # shorter texts take seconds


def check_disk_space(output: str | Path, n_bytes: int, done: WriteProgress, n_temporary_bytes: int = 0) -> None:
    """Check that an output fits on its disk.

    Args:
        output: The output file.
        n_bytes: Its final size.
        done: How much of it an interrupted run has already written.
        n_temporary_bytes: What is needed besides until the output is complete.

    Raises:
        OutputError: It does not fit.
    """
    free = shutil.disk_usage(partial_folder(output)).free
    if n_bytes + n_temporary_bytes - done.data_end > free:
        raise OutputError(
            f"{output} will take {_size(n_bytes, n_temporary_bytes)}, but its disk has {format_bytes(free)} left. Free "
            "some space, store less (--dtype float16, --top or --average), or pass --force to start anyway."
        )


def _size(n_bytes: int, n_temporary_bytes: int) -> str:
    temporary = f" (and {format_bytes(n_temporary_bytes)} more until it is complete)" if n_temporary_bytes else ""
    return format_bytes(n_bytes) + temporary


def describe_work(
    elmo: Elmo,
    output: str | Path,
    counts: SentenceCounts,
    done: WriteProgress,
    n_bytes: int,
    sentences: Iterable[CorpusSentence],
    layers: Layers,
    batch_tokens: int,
    n_temporary_bytes: int = 0,
) -> str:
    """Return one line that says how much there is to do, how large the output will be, how long it will take, and
    in which precision.

    Args:
        elmo: The model.
        output: The output file.
        counts: The size of the input.
        done: How much of it an interrupted run has already computed.
        n_bytes: The final size of the output.
        sentences: The input. The first thousand tokens are embedded to measure the speed, unless there is little to do.
        layers: As in :meth:`Elmo.embed`.
        batch_tokens: As in :meth:`Elmo.embed`.
        n_temporary_bytes: As in :func:`check_disk_space`.
    """
    n_left = counts.n_tokens - done.n_tokens
    line = f"{counts.n_sentences:,} sentences, {counts.n_tokens:,} tokens"
    if done.n_tokens:
        line += f", {done.n_tokens:,} already done"
    line += f"; {output} will take {_size(n_bytes, n_temporary_bytes)}"
    if n_left >= MIN_TOKENS_FOR_TRIAL:
        seconds = _seconds_per_token(elmo, _first_tokens(sentences), layers, batch_tokens)
        line += f" and about {format_duration(n_left * seconds)} ({1 / seconds:,.0f} tokens/s)"
    return f"{line}; computed in {elmo.model.network.computation()}"


def _seconds_per_token(elmo: Elmo, sentences: list[list[str]], layers: Layers, batch_tokens: int) -> float:
    elmo.embed(sentences[:1], layers=layers)  # the first call compiles and packs; that happens only once
    started = time.perf_counter()
    elmo.embed(sentences, layers=layers, batch_tokens=batch_tokens)
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
