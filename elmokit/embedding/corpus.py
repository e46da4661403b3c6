"""Embed a file of sentences into a file of vectors: HDF5, Parquet, Arrow or NumPy.

Three threads share the work: one reads the text and plans ahead, the calling one computes, one writes. The offset of a
sentence in the output follows from the lengths of the sentences before it, so batches are written in the order in which
they are computed (by length), and memory holds a few batches and the text of a few pools.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from elmokit.embedding.elmo import Elmo, Vectors
from elmokit.embedding.estimate import check_disk_space, describe_work
from elmokit.embedding.fingerprint import vector_settings
from elmokit.embedding.outputs.layout import DatasetNames, StoredDtype, VectorFileLayout
from elmokit.embedding.outputs.table import OutputFormat, output_format
from elmokit.embedding.outputs.writer import ResumableWriter, check_resumable_output, open_resumable
from elmokit.embedding.reading import SentencePool, count_sentences, read_corpus_sentences, read_pools
from elmokit.embedding.sentence_vectors import SentenceEmbedder
from elmokit.embedding.threads import BackgroundWriter, Prefetcher
from elmokit.engine.layer_selection import Layers
from elmokit.engine.state import State
from elmokit.errors import ConfigError
from elmokit.storage.progress import ProgressCallback
from elmokit.storage.text_files import STDIN, can_reread, check_input_file, split_tokens
from elmokit.text.batching import READ_AHEAD_BATCHES, plan_batches
from elmokit.text.tokenize import text_splitter
from elmokit.version import __version__

# A few items even out pools and writes of different speed; each one more costs memory.
POOLS_AHEAD = 2
WRITES_BEHIND = 2


@dataclass(frozen=True)
class EmbedSummary:
    """The result of :func:`embed_file`."""

    n_sentences: int
    n_tokens: int
    n_blank: int
    """Blank lines, which became empty datasets."""
    seconds: float
    """The time of reading, computing and writing, without what comes before the first batch: counting the text, and
    compiling and packing the model's kernels."""
    n_resumed_tokens: int = 0
    """Tokens that an earlier, interrupted run had computed."""

    @property
    def tokens_per_second(self) -> float:
        """The speed of this run."""
        return (self.n_tokens - self.n_resumed_tokens) / max(self.seconds, 1e-9)


def embed_file(
    elmo: Elmo | SentenceEmbedder,
    source: str | Path,
    output: str | Path,
    *,
    layers: Layers = "all",
    dtype: StoredDtype = "float32",
    use_sentence_keys: bool = False,
    forget_sentences: bool = False,
    include_sentence_indices: bool = False,
    strict: bool = False,
    fasta: bool = False,
    tokenize: Callable[[str], list[str]] = split_tokens,
    raw_language: str | None = None,
    batch_tokens: int = 2048,
    batch_size: int = 64,
    overwrite: bool = False,
    force: bool = False,
    report: Callable[[str], None] | None = None,
    progress: ProgressCallback | None = None,
) -> EmbedSummary:
    """Embed a text file of one sentence per line into a file of vectors.

    The output has one row per line: in HDF5 a dataset, in Parquet and Arrow a row of the table. A blank line becomes an
    empty row, so that the numbers of rows are line numbers. docs/reference/vector-files.md describes each format.

    If the process is interrupted, call the function again with the same arguments to resume: computed batches are kept
    in the directory ``OUTPUT.partial``. The vectors come from the same batches as in an uninterrupted run.

    Args:
        elmo: The model. With an :class:`Elmo`, each token gets its vectors; with a
            :class:`~elmokit.SentenceEmbedder`, each sentence gets one vector.
        source: A text file (``.gz``, ``.xz`` and ``.zst`` too), or ``-`` for standard input.
        output: The output. Its extension chooses the format: ``.hdf5``, ``.h5`` or none for HDF5, ``.parquet``,
            ``.arrow`` or ``.npz``. It appears when it is complete.
        layers: The layers to store, as in :meth:`Elmo.embed`. A ``SentenceEmbedder`` has its own.
        dtype: The type of the stored numbers. "float16" halves the file.
        use_sentence_keys: In HDF5, name the datasets by the text of the sentence instead of its line number.
        forget_sentences: Do not store the sentences. In HDF5 they are ``sentence_to_index``, which maps each sentence
            to its number. A sentence that occurs on several lines is mapped to the last, as in AllenNLP. Datasets named
            by sentences need no map. In other formats the sentences are ``tokens``.
        include_sentence_indices: In HDF5, also store that map as ``sentence_indices``, its name in early tutorials.
        strict: Raise an error if a line is blank.
        fasta: The source holds proteins in FASTA format: each residue is a token, and proteins are named by identifier.
        tokenize: Splits a line into tokens.
        raw_language: The language of raw text, such as "en". Each line is then split into sentences and tokens, as by
            :func:`elmokit.tokenize`, and each sentence gets a row. None: the source is tokenized, one sentence per
            line.
        batch_tokens: Positions per batch, as in :meth:`Elmo.embed`.
        batch_size: Sentences per batch if ``elmo.start`` is "stateful".
        overwrite: Start anew: replace an existing or partial output.
        force: Start even if the disk seems too small for the output.
        report: Called once, before computing, with a line that says how much there is to do, how large the output will
            be, and how long it will take. Not called for standard input and pipes, whose length is unknown.
        progress: Called with the number of tokens done and in total (None if unknown).

    Returns:
        The numbers of sentences and tokens, and the time.

    Raises:
        TextError: The text cannot be read or is not UTF-8; or, with ``strict``, a line is blank; or the text is not the
            one that the interrupted run had embedded.
        OutputError: The output exists, has the extension of another format, cannot be written, or will not fit; or
            there is a partial output of other settings.
        ConfigError: A layer does not exist, a batch size is below 1, or the format cannot have the requested names.
        MissingExtraError: The output is Parquet or Arrow, and pyarrow is not installed; or a tokenizer is not.

    Example:
        >>> from elmokit import Elmo
        >>> from elmokit.storage.progress import ProgressBar
        >>> with ProgressBar("tokens") as bar:
        ...     embed_file(Elmo.from_pretrained(), "corpus.txt", "vectors.hdf5", dtype="float16", progress=bar)
    """
    check_resumable_output(output, overwrite)
    check_input_file(source, output)
    keys: DatasetNames = "sentences" if use_sentence_keys else "numbers"
    format_ = output_format(output)
    pooler: SentenceEmbedder | None = None
    if isinstance(elmo, SentenceEmbedder):
        if layers != "all":
            raise ConfigError(f"layers is {layers!r}, but a SentenceEmbedder has its own. Choose them in its pooling.")
        pooler = elmo
        elmo, layers = pooler.elmo, pooler.pooling.layers
    # An empty call checks the arguments before the output is created.
    elmo.embed([], layers=layers, batch_tokens=batch_tokens, batch_size=batch_size)  # checks these three
    layout = format_.layout(
        _stored_layers(elmo, layers) if pooler is None else None,
        elmo.output_dim if pooler is None else pooler.dim,
        dtype,
        keys,
        not forget_sentences,
        include_sentence_indices,
        fasta,
        pooler is not None,
    )
    if raw_language is not None and (fasta or strict):
        raise ConfigError("Raw text cannot be read with fasta or strict: its rows are sentences, not lines.")
    split = None if raw_language is None else text_splitter(raw_language)
    read_source = partial(read_corpus_sentences, source, fasta, strict, tokenize, split)
    stateful = elmo.start == "stateful"
    tokenizer = f"raw {raw_language}" if split else f"{tokenize.__module__}.{tokenize.__qualname__}"
    settings = _settings(elmo, layers, dtype, fasta, tokenizer, batch_size if stateful else batch_tokens)
    if pooler is not None:
        settings["pooling"] = pooler.fingerprint()
    if not format_.is_hdf5:
        settings["sentences"] = not forget_sentences  # kept from the beginning, unlike the names of HDF5
    # The name alone: files are shared, and tell nobody about the directories of a machine.
    name = None if elmo.model.source is None else elmo.model.source.name
    layout = replace(layout, about=json.dumps({**settings, "model": name, "fingerprint": settings["model"]}))
    counted = None
    if can_reread(source):
        counted = count_sentences(source, fasta, strict, tokenize, progress, split)
    # The arguments were checked above, so that a mistake leaves no partial output behind.
    with open_resumable(output, settings, overwrite) as writer:
        before = writer.progress
        if counted is not None:
            n_bytes = format_.file_bytes(layout, counted)
            n_temporary_bytes = format_.temporary_bytes(layout, counted)
            if not force:
                check_disk_space(output, n_bytes, before, n_temporary_bytes)
            if report is not None:
                report(
                    describe_work(
                        elmo, output, counted, before, n_bytes, read_source(), layers, batch_tokens, n_temporary_bytes
                    )
                )
        count = _TokenCounter(progress, before.n_tokens, None if counted is None else counted.n_tokens)
        pools = read_pools(
            read_source(),
            before,
            layout.row_bytes,
            # In a stateful run, row r continues from row r of the batch before, so batches are consecutive sentences of
            # the text. In other runs batches are planned over pools whose limits depend on the text alone, never on
            # time or on where a run was interrupted: a resumed run computes the same batches, and so the same bits.
            max_tokens=None if stateful else READ_AHEAD_BATCHES * batch_tokens,
            max_sentences=batch_size if stateful else None,
            n_rows=layout.n_rows,
        )
        embedding = _Embedding(elmo, layers, batch_tokens, writer.state, pooler)
        # The first call compiles and packs, which would spoil the reported speed of a short text.
        elmo.embed([["."]], layers=layers)
        started = time.monotonic()
        # A thread that waits for standard input cannot be ended, and would crash Python on Ctrl-C.
        prefetched = contextlib.nullcontext(pools) if str(source) == STDIN else Prefetcher(pools, POOLS_AHEAD)
        with prefetched as pools_ahead:
            n_skipped = _embed_pools(embedding, pools_ahead, writer, layout, format_, count)
        format_.finish(writer, layout)
        done = writer.progress
    return EmbedSummary(
        done.n_sentences, done.n_tokens, done.n_blank, time.monotonic() - started, before.n_tokens + n_skipped
    )


def _embed_pools(
    embedding: _Embedding,
    pools: Iterable[SentencePool],
    writer: ResumableWriter,
    layout: VectorFileLayout,
    format_: OutputFormat,
    count: Callable[[int], None],
) -> int:
    """Write all pools that are left; return how many tokens of the first one an interrupted run had written."""
    before = writer.progress
    n_to_skip, n_skipped_tokens = before.n_batches, 0
    with BackgroundWriter(_call, WRITES_BEHIND) as background:
        for pool in pools:
            if layout.keys == "sentences":
                # Checked pool by pool, so that a name that the format cannot hold is reported before its vectors are
                # computed.
                for number, name in enumerate(pool.names, start=pool.progress.n_sentences - len(pool.names)):
                    format_.check_name(name, number)
            if n_to_skip and pool.progress.checksum != before.pool_checksum:
                # The text of the incomplete pool has changed: its batches are not those that were written.
                writer.discard_batches()
                n_to_skip = 0
            for batch in embedding.plan(pool):
                if n_to_skip:
                    # Batches of a pool come in a fixed order, so a count is enough to know which of them were written.
                    n_to_skip -= 1
                    n_tokens = sum(len(pool.sentences[row]) for row in batch)
                    n_skipped_tokens += n_tokens
                    count(n_tokens)
                    continue
                for chunks in embedding.compute(pool, batch):
                    # Writes and counts go through one queue: a batch is counted only after its vectors were written.
                    background.put(partial(_write_chunks, writer, chunks, layout.dtype))
                    for chunk in chunks:
                        count(chunk.n_tokens)
                if embedding.state is None:  # else a batch is a pool, and counts together with the state after it
                    background.put(partial(writer.end_batch, pool.progress.checksum))
            names = "".join(f"{name}\n" for name in pool.names).encode("utf-8")
            tokens = b""
            if layout.with_tokens:
                tokens = "".join(f"{json.dumps(sentence)}\n" for sentence in pool.sentences).encode("ascii")
            background.put(partial(writer.end_pool, pool.progress, pool.lengths, names, embedding.state, tokens))
    if n_to_skip:  # the text has become shorter and ends before the incomplete pool
        writer.discard_batches()
    return n_skipped_tokens


class _TokenCounter:
    """Counts tokens for a progress callback. The first report says what an interrupted run has done."""

    def __init__(self, progress: ProgressCallback | None, n_done: int, n_tokens: int | None) -> None:
        self.progress, self.n_done, self.n_tokens = progress, n_done, n_tokens
        self(0)

    def __call__(self, n_tokens: int) -> None:
        """Count more tokens."""
        self.n_done += n_tokens
        if self.progress is not None:
            self.progress("embedding", self.n_done, self.n_tokens)


class _VectorChunk(NamedTuple):
    """The vectors of a sentence, or of a part of a very long one, and where they belong."""

    offset: int
    """Where the vectors of the sentence begin in the file."""
    n_tokens: int
    """The number of tokens of the chunk."""
    n_rows: int
    """The number of vectors of the whole sentence, per layer: its tokens, or 1 for a sentence vector."""
    first_row: int
    """The position of the chunk's first vector in the sentence."""
    vectors: Vectors
    """``(rows, dim)`` or ``(layers, rows, dim)``."""


class _Embedding:
    """Computes the batches of pools. With ``start="stateful"`` it holds the state after the last batch."""

    def __init__(
        self,
        elmo: Elmo,
        layers: Layers,
        batch_tokens: int,
        state: State | None,
        pooler: SentenceEmbedder | None = None,
    ) -> None:
        self.elmo, self.layers, self.batch_tokens, self.pooler = elmo, layers, batch_tokens, pooler
        self.state: State | None = None
        if elmo.start == "stateful":
            self.state = elmo.zero_state(0) if state is None else state

    def plan(self, pool: SentencePool) -> list[list[int]]:
        """Return the batches of a pool, as row numbers. In a stateful run the pool is one batch, in text order."""
        if self.state is not None:
            return [list(range(len(pool.sentences)))]
        return plan_batches(pool.lengths.tolist(), self.batch_tokens)

    def compute(self, pool: SentencePool, batch: list[int]) -> Iterator[list[_VectorChunk]]:
        """Yield the vectors of a batch: all at once, or chunk by chunk for a sentence that is too long for that."""
        sentences = [pool.sentences[row] for row in batch]
        if self.state is not None:
            vectors, after = self.elmo.embed_batch(sentences, self.state.first_rows(len(batch)), self.layers)
            self.state = self.state.with_first_rows(after)
            computed: Iterable[list[Vectors]] = [vectors]
        else:
            computed = self.elmo.embed_planned_batch(sentences, self.layers)
        if self.pooler is not None:
            pooled = self.pooler.pool_planned_batch(sentences, computed)
            yield [
                _VectorChunk(pool.offsets[row], len(pool.sentences[row]), 1, 0, vector[None])
                for row, vector in zip(batch, pooled, strict=True)
            ]
            return
        first_row = 0
        for vectors in computed:
            yield [
                _VectorChunk(pool.offsets[row], array.shape[-2], len(pool.sentences[row]), first_row, array)
                for row, array in zip(batch, vectors, strict=True)
            ]
            first_row += vectors[0].shape[-2]  # used only for the further chunks of a single long sentence


def _call(write: Callable[[], None]) -> None:
    """Run one task of the writing thread."""
    write()


def _write_chunks(writer: ResumableWriter, chunks: list[_VectorChunk], dtype: StoredDtype) -> None:
    for chunk in chunks:
        vectors: Any = chunk.vectors
        if dtype == "float16":
            try:
                with np.errstate(over="raise"):
                    vectors = vectors.astype(np.float16)
            except FloatingPointError:
                raise ConfigError(
                    "A vector has a number beyond 65,504, the largest of float16. Pass --dtype float32."
                ) from None
        if vectors.shape[-2] == chunk.n_rows:
            writer.write_vectors(chunk.offset, vectors)
            continue
        # A dataset is stored layer by layer, so the tokens of a chunk are in one range per layer.
        layers = vectors.reshape(-1, *vectors.shape[-2:])
        token_bytes = layers.shape[-1] * layers.itemsize
        for number, layer in enumerate(layers):
            writer.write_vectors(chunk.offset + (number * chunk.n_rows + chunk.first_row) * token_bytes, layer)


def _stored_layers(elmo: Elmo, layers: Layers) -> tuple[int, ...] | None:
    """Return the numbers of the layers of an output; None if a token has one vector ``(dim,)``."""
    if layers == "all":
        return tuple(range(elmo.n_layers))
    return None if isinstance(layers, (str, int)) else tuple(layers)


def _settings(
    elmo: Elmo, layers: Layers, dtype: StoredDtype, fasta: bool, tokenizer: str, batch: int
) -> dict[str, Any]:
    """Return everything but the text that the vectors depend on; an interrupted run is resumed only with the same."""
    settings = vector_settings(elmo.model, elmo.start)
    if elmo.mix is not None:
        # Vectors of a learned mix depend on its weights, which the fingerprint of the model does not include.
        settings["model"] += f"-{elmo.mix.checksum:08x}"
    return {
        **settings,
        "elmokit": __version__,
        "layers": list(layers) if not isinstance(layers, (str, int)) else layers,
        "dtype": dtype,
        "fasta": fasta,
        "tokenizer": tokenizer,
        "batch": batch,
    }
