"""Embed a file of sentences into a file of vectors.

The text is read first, and stored with the lengths of its sentences. So it is known where in the output the vectors of
a sentence belong, and batches are written in the order in which they are computed (by length), by a second thread.
Memory holds a few batches and the text of a pool.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from elmokit.embedding.batch_embedder import BatchEmbedder, describe_work, write_chunks
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.outputs.output_format import (
    DatasetNames,
    OutputFormat,
    StoredDtype,
    VectorFileLayout,
    stored_dtype,
)
from elmokit.embedding.outputs.table import output_format
from elmokit.embedding.outputs.writer import (
    ResumableWriter,
    check_disk_space,
    check_resumable_output,
    format_size,
    open_resumable,
)
from elmokit.embedding.reading import Corpus
from elmokit.embedding.sentence_vectors import SentenceEmbedder
from elmokit.embedding.threads import BackgroundWriter
from elmokit.engine.layer_selection import Layers
from elmokit.formats.model import PretrainedBiLM
from elmokit.storage.progress import ProgressCallback, StageCounter
from elmokit.storage.text_files import check_input_file, check_not_input, split_tokens
from elmokit.version import __version__

WRITES_BEHIND = 1
"""One item evens out writes of different speed; each one more costs memory."""


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
    The text, which is kept there too, must be the same.

    Args:
        elmo: The model. With an :class:`Elmo`, each token gets its vectors; with a
            :class:`~elmokit.SentenceEmbedder`, each sentence gets one vector.
        source: A text file (``.gz``, ``.xz`` and ``.zst`` too), or ``-`` for standard input.
        output: The output, which appears when it is complete. Its extension chooses the format, such as ``.parquet``,
            ``.arrow`` or ``.npz``; ``.hdf5``, ``.h5`` or none is HDF5.
        layers: The layers to store, as in :meth:`Elmo.embed`. A ``SentenceEmbedder`` has its own.
        dtype: Type of the stored numbers. "float16" halves the file.
        use_sentence_keys: In HDF5, name the datasets by their sentences instead of line numbers.
        forget_sentences: Do not store the sentences (in HDF5, their map to line numbers). In HDF5 they are
            ``sentence_to_index``, which maps each sentence to its number. A sentence that occurs on several lines is
            mapped to the last, as in AllenNLP. Datasets named by sentences need no map. In other formats the sentences
            are ``tokens``.
        include_sentence_indices: In HDF5, store the map from sentences to numbers under its old name,
            ``sentence_indices``, too.
        strict: Refuse blank lines, which otherwise become empty rows.
        fasta: The text is in FASTA format: each residue is a token, and sequences are named by identifier.
        tokenize: Splits a line into tokens.
        raw_language: The language of raw text, such as "en". Each line is then split into sentences and tokens, as by
            :func:`elmokit.tokenize`, and each sentence gets a row. None: the source is tokenized, one sentence per
            line.
        batch_tokens: Positions per batch, unless the start is stateful. As in :meth:`Elmo.embed`.
        batch_size: Sentences per batch if the start is stateful.
        overwrite: Start anew: replace an existing or partial output.
        force: Start even if the disk seems too small for the output.
        report: Called once, before computing, with a line that says how much there is to do, how large the output will
            be, and how long it will take.
        progress: Called with the number of tokens done and in total.

    Returns:
        The numbers of sentences and tokens, and the time.

    Raises:
        TextError: The text cannot be read or is not UTF-8; or, with ``strict``, a line is blank; or a sentence is too
            long for the name of a dataset; or the text is not the one that the interrupted run had embedded.
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
    dtype = stored_dtype(dtype)
    format_ = output_format(output)
    # Whatever is wrong with the arguments is found here, so that a mistake leaves no partial output behind.
    embedder = BatchEmbedder(elmo, layers, batch_tokens, batch_size)
    if (weights := embedder.elmo.model.source) is not None:
        check_not_input(output, [weights])
    layout = VectorFileLayout(
        embedder.stored_layers,
        embedder.dim,
        dtype,
        pooled=embedder.pooler is not None,
        keys=keys,
        fasta=fasta,
        with_sentences=not forget_sentences,
        with_old_map=include_sentence_indices,
    )
    format_.check(layout)
    corpus = Corpus(source, fasta, strict, tokenize, raw_language)
    settings = _settings(embedder, layout, corpus)
    layout = replace(layout, about=_about(embedder.elmo.model, settings, layout, format_))
    names = {"keys": keys, "sentences": layout.with_sentences, "sentence_indices": layout.with_old_map}
    with open_resumable(output, settings | names, overwrite) as writer:
        text = writer.read_text(corpus, progress)
        before = writer.progress
        n_bytes, n_temporary = format_.file_bytes(layout, text), format_.temporary_bytes(layout, text)
        if not force:
            check_disk_space(output, n_bytes - before.n_tokens * layout.row_bytes, n_temporary)
        if writer.is_new:
            format_.allocate(writer, layout)
        if report is not None:
            report(describe_work(embedder, output, format_size(n_bytes, n_temporary), writer))
        count = StageCounter(progress, "embedding", text.n_tokens, before.n_tokens)
        count(0)
        if writer.state is not None:
            embedder.state = writer.state
        # The first call compiles and packs, which would spoil the reported speed of a short text.
        embedder.elmo.embed([["."]], layers=embedder.layers)
        started = time.monotonic()
        n_skipped = _embed_pools(embedder, writer, layout, count)
        writer.commit()
        format_.write(writer, layout)
    return EmbedSummary(
        text.n_sentences, text.n_tokens, text.n_blank, time.monotonic() - started, before.n_tokens + n_skipped
    )


def _settings(embedder: BatchEmbedder, layout: VectorFileLayout, corpus: Corpus) -> dict[str, Any]:
    """Return everything but the text that the vectors depend on; an interrupted run is resumed only with the same."""
    settings = {
        **embedder.settings(),
        "elmokit": __version__,
        "layers": embedder.layers,
        "dtype": layout.dtype,
        "fasta": corpus.fasta,
        "tokenizer": corpus.tokenizer,
        "batch": embedder.batch_tokens if embedder.state is None else embedder.batch_size,
    }
    if embedder.pooler is not None:
        settings["pooling"] = embedder.pooler.fingerprint()
    return settings


def _about(model: PretrainedBiLM, settings: dict[str, Any], layout: VectorFileLayout, format_: OutputFormat) -> str:
    """Return what the file says about itself."""
    if format_.stores == "tokens":
        settings = settings | {"sentences": layout.with_sentences}
    return json.dumps({**settings, "model": model.source_name, "fingerprint": settings["model"]})


def _embed_pools(
    embedder: BatchEmbedder, writer: ResumableWriter, layout: VectorFileLayout, count: Callable[[int], None]
) -> int:
    """Write all pools that are left; return how many tokens of the first one an interrupted run had written."""
    first, n_to_skip, n_skipped_tokens = writer.progress.n_sentences, writer.progress.n_batches, 0
    offsets = writer.offsets()
    with BackgroundWriter[Callable[[], None]](lambda write: write(), WRITES_BEHIND) as background:
        for pool in embedder.read_pools(writer.read_tokens(first)):
            places = offsets[first : first + len(pool)].tolist()
            for batch in embedder.plan(pool):
                if n_to_skip:
                    # Batches of a pool come in a fixed order, so a count is enough to know which of them were written.
                    n_to_skip -= 1
                    n_tokens = sum(len(pool[row]) for row in batch)
                    n_skipped_tokens += n_tokens
                    count(n_tokens)
                    continue
                for chunks in embedder.compute(pool, places, batch):
                    # Writes and counts go through one queue: a batch is counted only after its vectors were written.
                    background.put(partial(write_chunks, writer, chunks, layout.dtype))
                    for chunk in chunks:
                        count(chunk.n_tokens)
                if embedder.state is None:  # else a batch is a pool, and counts together with the state after it
                    background.put(writer.end_batch)
            background.put(partial(writer.end_pool, len(pool), sum(map(len, pool)), embedder.state))
            first += len(pool)
    return n_skipped_tokens
