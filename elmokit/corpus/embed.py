"""A file of sentences to a file of vectors.

Three threads share the work: one reads and plans ahead, the caller's computes, one writes behind. A sentence's place in
the output follows from the lengths of those before it, so that batches are written as they come, and what is held in
memory is a few batches and the text of a few pools.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from elmokit.bilm import BiLMState
from elmokit.corpus.hdf5 import Keys, check_key, write_index
from elmokit.corpus.reading import Pool, read_pools, read_sentences
from elmokit.corpus.threads import BackgroundWriter, Prefetcher
from elmokit.corpus.unfinished import Done, ResumableWriter, Settings, begun
from elmokit.embedder import Elmo, Layers, Vectors
from elmokit.fingerprint import fingerprint
from elmokit.io.text_files import STDIN, split_tokens
from elmokit.nn.kernels.backends import asked
from elmokit.text.batching import READ_AHEAD_BATCHES, is_long, plan_batches

Storage = Literal["float32", "float16"]
POOLS_AHEAD = 2
BATCHES_BEHIND = 2


@dataclass(frozen=True)
class EmbedSummary:
    """What was written."""

    n_sentences: int
    n_tokens: int
    n_blank: int
    seconds: float
    n_resumed_tokens: int = 0
    """Those that an earlier run had done."""

    @property
    def tokens_per_second(self) -> float:
        """Over this run: reading, computing, writing."""
        return (self.n_tokens - self.n_resumed_tokens) / max(self.seconds, 1e-9)


def embed_file(
    elmo: Elmo,
    source: str | Path,
    output: str | Path,
    *,
    layers: Layers = "all",
    dtype: Storage = "float32",
    keys: Keys = "numbers",
    with_map: bool = True,
    with_old_map: bool = False,
    strict: bool = False,
    fasta: bool = False,
    tokenize: Callable[[str], list[str]] = split_tokens,
    batch_tokens: int = 2048,
    batch_size: int = 64,
    overwrite: bool = False,
    resume: bool = False,
    on_start: Callable[[Done], None] = lambda done: None,
    progress: Callable[[int], None] = lambda n_tokens: None,
) -> EmbedSummary:
    """Embed a file of one sentence per line.

    A blank line becomes an empty dataset, so that dataset numbers stay line numbers. Until the output is complete, it
    grows in a folder beside it (``unfinished.py``), which outlives a kill.

    Args:
        source: a text file (``.gz``, ``.xz`` and ``.zst`` too), or ``-`` for standard input.
        output: the HDF5 file to write; it appears when it is complete.
        layers, batch_tokens, batch_size: as in ``Elmo.embed``.
        dtype: how to store the vectors.
        keys, with_map, with_old_map: as in ``write_index``.
        strict: refuse blank lines.
        fasta: the input holds proteins, one residue a token; datasets are named by identifier.
        tokenize: from a line to its tokens.
        overwrite: replace what stands at the output; and without ``resume`` discard an unfinished run.
        resume: go on where an unfinished run stopped; the vectors come in the same batches as without the stop.
        on_start: called once everything is ready, before any work, with what an unfinished run had done.
        progress: called for each sentence with its number of tokens, in the order in which they are computed; for a
            very long one, part by part.

    Raises:
        TextError: the input cannot be read, a line is not UTF-8, or a line is blank and ``strict`` is set; on resuming,
            what was done is of another text (but for a pool that was not complete, which is done again).
        OutputError: the output exists and may not be overwritten, or cannot be written; an unfinished run is there and
            neither ``resume`` nor ``overwrite`` is set, or it was begun with other settings.
        ConfigError: there is no such layer.
    """
    started = time.monotonic()
    elmo.embed([], layers=layers, batch_tokens=batch_tokens, batch_size=batch_size)  # checks the three
    keys = "sentences" if fasta else keys
    n_layers, dim = shape_of(elmo, layers)
    token_bytes = (n_layers or 1) * dim * np.dtype(dtype).itemsize
    carried = elmo.start == "stateful"
    settings = _settings(elmo, layers, dtype, fasta, tokenize, batch_size if carried else batch_tokens)
    with begun(output, settings, resume, overwrite) as unfinished:
        before = unfinished.done
        on_start(before)
        sentences = read_sentences(source, fasta, strict, tokenize)
        if carried:
            pools = read_pools(sentences, before, token_bytes, max_sentences=batch_size)
        else:
            pools = read_pools(sentences, before, token_bytes, max_tokens=READ_AHEAD_BATCHES * batch_tokens)
        computing = _Computing(elmo, layers, batch_tokens, unfinished.state)
        n_before, n_to_skip = before.n_tokens, before.n_batches
        # A thread that waits for standard input cannot be ended, and crashes Python on Ctrl-C.
        source_thread = contextlib.nullcontext(pools) if str(source) == STDIN else Prefetcher(pools, POOLS_AHEAD)
        with source_thread as ahead, BackgroundWriter(_writer(unfinished, dtype, carried), BATCHES_BEHIND) as behind:
            for pool in ahead:
                if keys == "sentences":
                    for number, name in enumerate(pool.names, start=pool.done.n_sentences - len(pool.names)):
                        check_key(name, number)
                lengths = pool.lengths.tolist()
                if n_to_skip and pool.done.checksum != before.pool_checksum:  # its text is another now
                    unfinished.forget_batches()
                    n_to_skip = 0
                for batch in [list(range(len(lengths)))] if carried else plan_batches(lengths, batch_tokens):
                    if n_to_skip:
                        n_to_skip -= 1
                        n_before += sum(lengths[row] for row in batch)
                        for row in batch:
                            progress(lengths[row])
                        continue
                    for parts in computing.of(pool, batch):
                        behind.put(parts)
                        for part in parts:
                            progress(part.vectors.shape[-2])
                    behind.put(_BatchEnd(pool))
                behind.put(_PoolEnd(pool, computing.state))
        if n_to_skip:  # the text ends before their pool now
            unfinished.forget_batches()
        unfinished.commit()
        write_index(unfinished, n_layers, dim, dtype, keys, with_map, with_old_map)
        done = unfinished.done
    return EmbedSummary(done.n_sentences, done.n_tokens, done.n_blank, time.monotonic() - started, n_before)


def shape_of(elmo: Elmo, layers: Layers) -> tuple[int | None, int]:
    """How many layers a dataset has, None where it is ``(tokens, dim)``; and the size of a vector."""
    if layers == "all":
        return elmo.n_layers, elmo.output_dim
    return (None if isinstance(layers, (str, int)) else len(layers)), elmo.output_dim


class _Part(NamedTuple):
    """Vectors of a sentence, or of a part of a very long one, and where they go."""

    place: int
    """Where the sentence's vectors begin."""
    n_tokens: int
    """Of the whole sentence."""
    first: int
    """The part's first token."""
    vectors: Vectors


class _BatchEnd(NamedTuple):
    """All vectors of a batch have been given."""

    pool: Pool


class _PoolEnd(NamedTuple):
    """All vectors of a pool have been given."""

    pool: Pool
    state: BiLMState | None


class _Computing:
    """Batches to vectors; with ``start`` "stateful" it holds the state after the batch before."""

    def __init__(self, elmo: Elmo, layers: Layers, batch_tokens: int, state: BiLMState | None) -> None:
        self.elmo, self.layers, self.batch_tokens = elmo, layers, batch_tokens
        self.state: BiLMState | None = None
        if elmo.start == "stateful":
            self.state = elmo.bilm.zero_state(0) if state is None else state.to(elmo.bilm.device)

    def of(self, pool: Pool, batch: list[int]) -> Iterator[list[_Part]]:
        """The vectors of the pool's next batch; all at once, but for sentences too long for that."""
        if self.state is not None:
            sentences = [pool.sentences[row] for row in batch]
            vectors, after = self.elmo.embed_batch(sentences, self.state.first_rows(len(batch)), self.layers)
            self.state = self.state.with_first_rows(after)
            yield _whole(pool, batch, vectors)
            return
        long = [row for row in batch if is_long(len(pool.sentences[row])) and self.layers != "mix"]
        for row in long:
            first = 0
            for part in self.elmo.embed_document(pool.sentences[row], layers=self.layers):
                yield [_Part(pool.places[row], len(pool.sentences[row]), first, part)]
                first += part.shape[-2]
        if others := [row for row in batch if row not in long]:
            sentences = [pool.sentences[row] for row in others]
            vectors = self.elmo.embed(sentences, layers=self.layers, batch_tokens=self.batch_tokens)
            yield _whole(pool, others, vectors)


def _whole(pool: Pool, rows: list[int], vectors: list[Vectors]) -> list[_Part]:
    return [_Part(pool.places[row], array.shape[-2], 0, array) for row, array in zip(rows, vectors, strict=True)]


def _writer(
    unfinished: ResumableWriter, dtype: Storage, carried: bool
) -> Callable[[list[_Part] | _BatchEnd | _PoolEnd], None]:
    """What the writing thread does with what it is given."""

    def write(item: list[_Part] | _BatchEnd | _PoolEnd) -> None:
        if isinstance(item, _PoolEnd):
            names = "".join(f"{name}\n" for name in item.pool.names).encode("utf-8")
            unfinished.end_pool(item.pool.done, item.pool.lengths, names, item.state)
        elif isinstance(item, _BatchEnd):
            if not carried:  # else the batch counts together with the state after it
                unfinished.end_batch(item.pool.done.checksum)
        else:
            for part in item:
                _write_part(unfinished, part, dtype)

    return write


def _write_part(unfinished: ResumableWriter, part: _Part, dtype: Storage) -> None:
    # torch rounds eight times as fast as numpy
    vectors = torch.from_numpy(part.vectors).half().numpy() if dtype == "float16" else part.vectors
    if vectors.shape[-2] == part.n_tokens:
        unfinished.write(part.place, vectors)
        return
    layers = vectors.reshape(-1, *vectors.shape[-2:])
    token_bytes = layers.shape[-1] * layers.itemsize
    for number, layer in enumerate(layers):
        unfinished.write(part.place + (number * part.n_tokens + part.first) * token_bytes, layer)


def _settings(
    elmo: Elmo, layers: Layers, dtype: Storage, fasta: bool, tokenize: Callable[[str], list[str]], batch: int
) -> Settings:
    """All that the vectors depend on beside the text."""
    return {
        "model": _fingerprint(elmo),
        "start": elmo.start,
        "kernels": asked(),
        "layers": list(layers) if not isinstance(layers, (str, int)) else layers,
        "dtype": dtype,
        "fasta": fasta,
        "tokenizer": f"{tokenize.__module__}.{tokenize.__qualname__}",
        "batch": batch,
    }


def _fingerprint(elmo: Elmo) -> str:
    """Of the model, its word lists and tables, and of the mixes."""
    mixes = zlib.crc32(b"".join(part.detach().float().cpu().numpy().tobytes() for part in elmo.mixes.parameters()))
    return f"{fingerprint(elmo.model, elmo.start)}-{mixes:08x}"
