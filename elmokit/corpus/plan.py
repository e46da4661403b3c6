"""Before the work: how large the output will be, whether it fits, and about how long it takes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from elmokit.corpus.embed import Storage, shape_of
from elmokit.corpus.hdf5 import Keys, index_bytes
from elmokit.corpus.hdf5_format import DATA_START
from elmokit.corpus.reading import Sentence, Survey
from elmokit.corpus.unfinished import Done, partial_folder
from elmokit.embedder import Elmo, Layers
from elmokit.errors import OutputError

TRIAL_TOKENS = 1000
WORTH_A_TRIAL = 20 * TRIAL_TOKENS  # what is shorter takes seconds


def output_bytes(elmo: Elmo, found: Survey, layers: Layers, dtype: Storage, keys: Keys, n_maps: int) -> int:
    """The size of the output: the vectors exactly, the rest nearly."""
    n_layers, dim = shape_of(elmo, layers)
    vectors = found.n_tokens * (n_layers or 1) * dim * np.dtype(dtype).itemsize
    return DATA_START + vectors + index_bytes(found.n_sentences, found.n_text_bytes, n_layers, keys, n_maps)


def refuse_too_large(output: str | Path, n_bytes: int, done: Done) -> None:
    """See whether an output fits on its disk, beside what an unfinished run has written.

    Raises:
        OutputError: it does not.
    """
    free = shutil.disk_usage(partial_folder(output)).free
    missing = n_bytes - done.data_end
    if missing > free:
        raise OutputError(
            f"{output} will take {in_bytes(n_bytes)}, and its disk has {in_bytes(free)} left. Free some, store less "
            "(--dtype float16, --top, --average), or go on all the same with --force."
        )


def describe(
    elmo: Elmo,
    output: str | Path,
    found: Survey,
    done: Done,
    n_bytes: int,
    sentences: Iterable[Sentence],
    layers: Layers,
    batch_tokens: int,
) -> str:
    """One line: how much there is to do, how large the output will be, and about how long it takes.

    Args:
        n_bytes: the size of the output.
        sentences: the input, of which the first thousand tokens are embedded to see how fast that goes; where there is
            little to do, none are, and no time is said.
    """
    left = found.n_tokens - done.n_tokens
    line = f"{found.n_sentences:,} sentences, {found.n_tokens:,} tokens"
    if done.n_tokens:
        line += f", {done.n_tokens:,} done before"
    line += f"; {output} will take {in_bytes(n_bytes)}"
    if left >= WORTH_A_TRIAL:
        seconds = seconds_per_token(elmo, _first_tokens(sentences), layers, batch_tokens)
        line += f" and about {in_time(left * seconds)} ({1 / seconds:,.0f} tokens/s)"
    return line


def seconds_per_token(elmo: Elmo, sentences: list[list[str]], layers: Layers, batch_tokens: int) -> float:
    """Measured on some sentences."""
    elmo.embed(sentences[:1], layers=layers)  # what happens only once is no part of it
    started = time.perf_counter()
    elmo.embed(sentences, layers=layers, batch_tokens=batch_tokens)
    return (time.perf_counter() - started) / sum(map(len, sentences))


def _first_tokens(sentences: Iterable[Sentence]) -> list[list[str]]:
    taken: list[list[str]] = []
    left = TRIAL_TOKENS
    for sentence in sentences:
        taken.append(sentence.tokens[:left])
        left -= len(taken[-1])
        if not left:
            break
    return taken


def in_bytes(n: float) -> str:
    """1.6 GB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "bytes" or n >= 100 else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:,.1f} TB"


def in_time(seconds: float) -> str:
    """40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
